"""The dead tasks: what the app parked; replayed."""

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError

from devserver.console.dead_tasks import MAX_NAME_BYTES, PAGE_DEAD, enqueue_replay
from devserver.console.pages.frame import Route, Section, back


class DeadTasks(Section):
    """The dead tasks: what the app parked; replayed."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/dead", self.dead),
            ("POST", "/dead/{id}/replay", self.replay),
        ]

    async def dead(self, request: web.Request) -> web.Response:
        """Show what the app parked."""
        problem, rows = "", []
        try:
            rows = await self.console.dead_tasks.newest(self.platform.datastore_address)
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        return self.page(
            request, "dead.html", rows=rows, problem=problem, is_cut=len(rows) == PAGE_DEAD
        )

    async def replay(self, request: web.Request) -> web.Response:
        """Enqueue the replay of a dead task."""
        dead_id = request.match_info["id"]
        if len(dead_id.encode(errors="replace")) > MAX_NAME_BYTES:
            raise web.HTTPNotFound(text="There is no such dead task.")
        enqueue_replay(
            self.engine,
            dead_id,
            self.platform.app_url,
            self.platform.settings.service_account,
        )
        raise await back(request, "/dead", "replayed")
