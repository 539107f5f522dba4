"""The console's web server: routes, templates, and the samples behind the graphs."""

import asyncio
import contextlib
import hashlib
import re
import time
from http import HTTPStatus
from pathlib import Path

import jinja2
from aiohttp import web

from rollforward.local.console import pages, words
from rollforward.local.console.api import Api
from rollforward.local.console.fault_words import FAULTS
from rollforward.local.console.guards import Guards, Handler
from rollforward.local.console.platform import Context, Platform
from rollforward.local.console.reading.datastore_reader import DatastoreReader
from rollforward.local.console.reading.dead_tasks import DeadTasks
from rollforward.local.console.reading.entities import Entities
from rollforward.local.console.reading.outbox import Outbox
from rollforward.local.console.reading.work import Samples
from rollforward.local.errors import PortTakenError
from rollforward.local.system import ports

_HERE = Path(__file__).parent
_THEME_SCRIPT = _HERE.parents[2] / "static" / "theme.js"
_SAMPLE_S = 1.0
_FORM_LIMIT_BYTES = 256 * 1024
_TIME = re.compile(rb"(<time [^>]*>)[^<]*</time>")
# Programs ask there, and browsers for files: they get a status and a line.
_MACHINE_PREFIXES = ("/api/", "/static/", "/oauth2/", "/.well-known/")
_MESSAGES = {
    404: "There is no such page in the console.",
    405: "This address takes forms only: go back to the page with the button.",
    413: "This form is too large.",
}


class Console:
    """The console of one dev server, on the loopback interface."""

    def __init__(self, platform: Platform, port: int) -> None:
        """Describe the console; port 0 takes a free one."""
        self.platform = platform
        self.port = port
        self.guards = Guards()
        self.samples = Samples(platform.tasks.engine)
        chosen = platform.settings
        self._reader = DatastoreReader(chosen.project, chosen.datastore_database)
        self.entities = Entities(self._reader)
        self.dead_tasks = DeadTasks(self._reader)
        self.outbox = Outbox(self._reader)
        self._templates = _templates()
        self._runner: web.AppRunner | None = None
        self._sampler: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Where a browser finds the console."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTakenError: somebody else listens there.
        """
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, ports.LOOPBACK, self.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise PortTakenError(
                f"The console cannot listen: {error}. Set CONSOLE_PORT."
            ) from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        await self.end_sampling()
        if self._runner is not None:
            await self._runner.cleanup()
        self._reader.close()

    def begin_sampling(self) -> None:
        """Begin to watch depth and flow; Cloud Tasks must run for as long."""
        self._sampler = asyncio.create_task(self._sample(), name="console-samples")

    async def end_sampling(self) -> None:
        """Watch no longer; the pages go on."""
        if self._sampler is None:
            return
        self._sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sampler
        self._sampler = None

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        outermost, *checks = self.guards.middlewares
        app = web.Application(
            middlewares=[outermost, self._show_errors, *checks], client_max_size=_FORM_LIMIT_BYTES
        )
        app.add_routes(pages.routes(self))
        app.add_routes(Api(self.platform).routes())
        app.add_routes(self.platform.tasks.routes())
        app.add_routes([web.get("/static/theme.js", _theme_script)])
        app.add_routes([web.static("/static", _HERE / "static")])
        return app

    @web.middleware
    async def _show_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Show a person what went wrong as a page of the console."""
        try:
            return await handler(request)
        except web.HTTPClientError as error:
            if request.path.startswith(_MACHINE_PREFIXES):
                raise
            text = error.text if error.text != f"{error.status}: {error.reason}" else ""
            page = self.error_page(request, error.status, text or "")
            if "Allow" in error.headers:
                page.headers["Allow"] = error.headers["Allow"]
            return page

    def error_page(self, request: web.Request, status: int, message: str) -> web.Response:
        """Return a page that says why not."""
        title = HTTPStatus(status).phrase
        message = message or _MESSAGES.get(status, "This did not work.")
        shown = {"notice": "", "code": status, "title": title, "message": message}
        page = self.render(request, "error.html", **shown)
        page.set_status(status)
        return page

    def render(self, request: web.Request, template: str, **context: object) -> web.Response:
        """Return a page."""
        known: Context = {
            "now": time.time(),
            "path": request.path,
            "here": request.path_qs,
            "csrf": self.guards.token(request),
            "project": self.platform.settings.project,
            "app_url": self.platform.app_url,
        }
        html = self._templates.get_template(template).render(known | context)
        # A mail or a body may hold half a character, which is none in UTF-8.
        content = html.encode(errors="replace")
        tag = etag_of(content)
        if request.method == "GET" and request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        return web.Response(
            body=content, content_type="text/html", charset="utf-8", headers={"ETag": tag}
        )

    async def _sample(self) -> None:
        while True:
            self.samples.take()
            await asyncio.sleep(_SAMPLE_S)


def etag_of(page: bytes) -> str:
    """Return the ETag of a page: the same as long as only its relative times have changed.

    The script writes those anew by itself; so a page at rest costs a 304.

    >>> etag_of(b'<time x="1">1 s ago</time>') == etag_of(b'<time x="1">2 s ago</time>')
    True
    """
    digest = hashlib.sha256(_TIME.sub(rb"\1", page)).hexdigest()
    return f'W/"{digest[:32]}"'


async def _theme_script(request: web.Request) -> web.FileResponse:
    """Serve the app's own script: one switch, in both."""
    return web.FileResponse(_THEME_SCRIPT)


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        when=words.when,
        stamp=words.stamp,
        duration=words.duration,
        size=words.size,
        span=words.span,
        clock=words.clock,
        late=words.late,
        counted=words.counted,
    )
    environment.globals.update(
        STATES=words.STATES,
        SERVICE_STATES=words.SERVICE_STATES,
        RUN_STATES=words.RUN_STATES,
        OUTCOMES=words.OUTCOMES,
        FAULTS=FAULTS,
        MENU=pages.MENU,
        sparkline=words.sparkline,
        header_value=words.header_value,
    )
    return environment
