"""The outbox: tasks that were committed and are not created yet; swept."""

import asyncio

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError

from rollforward.local.console.frame import PATIENCE_S, Route, Section, back
from rollforward.local.console.reading.outbox import METRICS_PATH, SWEEP_URL, Shown, relayed_per_s


class Outbox(Section):
    """The outbox: tasks that were committed and are not created yet; swept."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/outbox", self.outbox),
            ("POST", "/outbox/sweep", self.sweep_outbox),
        ]

    async def outbox(self, request: web.Request) -> web.Response:
        """Show what was committed and waits to be created."""
        problem, shown = "", Shown([], [])
        try:
            shown = await self.screen.outbox.oldest(self.platform.datastore_address)
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        rate = await self._relayed_per_s()
        return self.page(request, "outbox.html", shown=shown, rate=rate, problem=problem)

    async def sweep_outbox(self, request: web.Request) -> web.Response:
        """Sweep the outbox now, whatever cron.yaml schedules."""
        status, _ = await self.platform.cron.ask(SWEEP_URL)
        raise await back(request, "/outbox", "swept" if status == 200 else "not-swept")

    async def _relayed_per_s(self) -> float | None:
        """Return the relay's rate, None if the app does not say in time."""
        try:
            asking = self.platform.cron.ask(METRICS_PATH)
            return relayed_per_s((await asyncio.wait_for(asking, PATIENCE_S))[1])
        except TimeoutError:
            return None
