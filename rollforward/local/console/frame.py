"""The frame of every page: its errors, its notices, and its way back."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError

from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.console.screen import Screen
from rollforward.local.errors import PlatformError
from rollforward.look.words import pluralize

PATIENCE_S = 2.0

# What a page says after an action: the address holds the key, never the text.
NOTICES = {
    "paused": "Paused. Nothing is dispatched until it is resumed.",
    "resumed": "Resumed.",
    "purged": "Purged: all tasks of the queue were deleted.",
    "ran": "Dispatched now, past the queue's rate and limits.",
    "retried": "Due again at once.",
    "deleted": "Deleted.",
    "property": "The property has the new value. A cache of the app may still hold the old one.",
    "cleared": "All mail was deleted.",
    "fault-on": "The fault is on.",
    "fault-off": "The fault is off.",
    "mail-faults": "The mail server's faults are set.",
    "killed": "One worker was killed. gunicorn starts another.",
    "no-worker": "The app has no worker now: nothing was killed.",
    "cron-ok": "The job ran well.",
    "cron-failed": "The job ran and failed: see its last result.",
}
# The same of an action on many tasks; the address holds the number, too.
NOTICES_OF_MANY = {
    "all-run": "{} dispatched now, past the rates and limits of their queues.",
    "all-retry": "{} due again at once.",
    "all-delete": "{} deleted.",
}

# No control characters: a browser leaves out a tab, and the next slash is another site's.
_OWN_PATH = re.compile(r"/(?![/\\])[!-~]*")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Handler]


class Section(ABC):
    """One part of the console: a page, the pages below it, and their forms."""

    def __init__(self, screen: Screen) -> None:
        """Show pages on this screen."""
        self.screen = screen
        self.platform = screen.platform
        self.engine = screen.platform.tasks.engine

    @abstractmethod
    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.route(method, path, self._with_errors(handler))
            for method, path, handler in self.table()
        ]

    def page(self, request: web.Request, template: str, **context: object) -> web.Response:
        """Return a page, with the notice that its address asks for."""
        key = request.query.get("said", "")
        notice = NOTICES.get(key, "")
        if key in NOTICES_OF_MANY:
            many = pluralize(whole(request.query.get("count", "")), "task")
            notice = NOTICES_OF_MANY[key].format(many)
        return self.screen.render(request, template, notice=notice, **context)

    def _with_errors(self, handler: Handler) -> Handler:
        """Wrap a handler: what it refuses becomes a page that says so."""

        async def with_errors(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except Refused as refused:
                status = 404 if refused.code == "NOT_FOUND" else 409
                return self.error(request, status, refused.message)
            except PlatformError as error:
                return self.error(request, 404, str(error))
            except (web.HTTPNotFound, web.HTTPBadRequest) as error:
                return self.error(request, error.status, error.text or "")

        return with_errors

    def error(self, request: web.Request, status: int, message: str) -> web.Response:
        """Return a page that says why not."""
        return self.screen.error_page(request, status, message)

    def queue_name(self, request: web.Request) -> str:
        """Return the full name of the queue in the address."""
        return self.engine.place.queue_name(request.match_info["queue"])


async def in_time(reading: Awaitable[T]) -> T | None:
    """Return a result of Datastore, None if it does not answer in time."""
    try:
        return await asyncio.wait_for(reading, PATIENCE_S)
    except (GoogleAPIError, TimeoutError):
        return None


async def back(
    request: web.Request, usual: str, notice: str, *, count: int | None = None
) -> web.HTTPSeeOther:
    """Return the way back to the page whose form was sent, which then says the notice."""
    place = str((await request.post()).get("back", "")) or usual
    if not _OWN_PATH.fullmatch(place):
        place = usual
    path, _, query = place.partition("?")
    notice_fields = ("said=", "count=")
    fields = [part for part in query.split("&") if part and not part.startswith(notice_fields)]
    fields.append("said=" + quote(notice))
    if count is not None:
        fields.append(f"count={count}")
    return web.HTTPSeeOther(f"{path}?{'&'.join(fields)}")


def whole(text: str) -> int:
    """Return a whole number of an address, 0 if it is none."""
    return int(text) if text.isdecimal() and len(text) < 19 else 0
