"""The dead tasks: what the app parked; replayed, one or all that a filter finds."""

from urllib.parse import urlencode

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError

from rollforward.local.console.frame import Route, Section, back
from rollforward.local.console.reading.dead_tasks import (
    MAX_NAME_BYTES,
    MAX_REPLAYED,
    PAGE_DEAD,
    DeadTask,
    enqueue_replay,
    enqueue_replays,
)

_SHOWN = 5
_MAX_TEXT = 200


class DeadTasks(Section):
    """The dead tasks: what the app parked; replayed, one or all that a filter finds."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/dead", self.dead),
            ("POST", "/dead/{id}/replay", self.replay),
            ("GET", "/dead/replay/confirm", self.confirm),
            ("POST", "/dead/replay/confirm", self.replay_all),
        ]

    async def dead(self, request: web.Request) -> web.Response:
        """Show what the app parked."""
        problem, rows, text = "", [], _text(request.query.get("q", ""))
        try:
            rows = await self._newest(text=text)
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        return self.page(
            request,
            "dead.html",
            rows=rows,
            problem=problem,
            is_cut=len(rows) == PAGE_DEAD,
            text=text,
            confirm_url=_with_text("/dead/replay/confirm", text),
        )

    async def replay(self, request: web.Request) -> web.Response:
        """Enqueue the replay of a dead task."""
        dead_id = request.match_info["id"]
        if len(dead_id.encode(errors="replace")) > MAX_NAME_BYTES:
            raise web.HTTPNotFound(text="There is no such dead task.")
        enqueue_replay(self.engine, dead_id, self.platform.app_url, self._account)
        raise await back(request, "/dead", "replayed")

    async def confirm(self, request: web.Request) -> web.Response:
        """Say how many dead tasks it would be, and ask."""
        text = _text(request.query.get("q", ""))
        rows = await self._unresolved(text)
        return self.page(
            request,
            "dead_replay.html",
            count=len(rows),
            rows=rows[:_SHOWN],
            is_cut=len(rows) == MAX_REPLAYED,
            text=text,
            list_url=_with_text("/dead", text),
            # What fails while the person reads is left alone.
            until=max((dead.at for dead in rows), default=0.0),
        )

    async def replay_all(self, request: web.Request) -> web.Response:
        """Enqueue the replays of the dead tasks that were there when the count was shown."""
        fields = await request.post()
        try:
            until = float(str(fields.get("until", "")))
        except ValueError:
            raise web.HTTPBadRequest(text="The form names no tasks. Go back to the list.") from None
        rows = await self._unresolved(_text(str(fields.get("q", ""))))
        ids = [dead.id for dead in rows if dead.at <= until]
        count = enqueue_replays(self.engine, ids, self.platform.app_url, self._account)
        raise await back(request, "/dead", "all-replay", count=count)

    async def _unresolved(self, text: str) -> list[DeadTask]:
        try:
            return await self._newest(text=text, unresolved_only=True, limit=MAX_REPLAYED)
        except GoogleAPIError as error:
            raise web.HTTPBadRequest(text=f"Datastore does not answer: {error}") from error

    async def _newest(
        self, *, text: str, unresolved_only: bool = False, limit: int = PAGE_DEAD
    ) -> list[DeadTask]:
        return await self.screen.dead_tasks.newest(
            self.platform.datastore_address, text=text, unresolved_only=unresolved_only, limit=limit
        )

    @property
    def _account(self) -> str:
        return self.platform.settings.service_account


def _text(text: str) -> str:
    return text.strip()[:_MAX_TEXT]


def _with_text(path: str, text: str) -> str:
    return f"{path}?{urlencode({'q': text})}" if text else path
