"""The console's web server: its routes, and the samples behind the graphs."""

import asyncio
import contextlib

from aiohttp import web

from rollforward.local.cloudtasks.server import control
from rollforward.local.console import pages
from rollforward.local.console.api import Api
from rollforward.local.console.guards import Guards, Handler
from rollforward.local.console.platform import Platform
from rollforward.local.console.screen import PlatformScreen, Screen
from rollforward.local.console.trace_api import TraceApi
from rollforward.local.errors import PortTakenError
from rollforward.local.system import ports
from rollforward.local.system.http_bodies import ServerLog
from rollforward.look.pages import STATIC

_SAMPLE_S = 1.0
_FORM_LIMIT_BYTES = 256 * 1024
# Programs ask there, and browsers for files: they get a status and a line.
_MACHINE_PREFIXES = ("/api/", "/static/", "/oauth2/", "/.well-known/")


class Console:
    """The console of one dev server, on the loopback interface."""

    def __init__(self, platform: Platform, port: int) -> None:
        """Describe the console; port 0 takes a free one."""
        self.platform = platform
        self.port = port
        self.guards = Guards()
        self.screen = self.new_screen()
        self._runner: web.AppRunner | None = None
        self._sampler: asyncio.Task[None] | None = None

    def new_screen(self) -> Screen:
        """Return the screen of all pages."""
        return PlatformScreen(self.platform, self.guards)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes of all pages and programs, but for files."""
        return [
            *pages.routes(self.screen),
            *Api(self.platform).routes(),
            *TraceApi(self.platform.traces).routes(),
        ]

    @property
    def address(self) -> str:
        """host:port."""
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """The console's URL for a browser."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTakenError: another program listens there.
        """
        self._runner = web.AppRunner(
            self.application(), access_log=None, shutdown_timeout=1.0, logger=ServerLog()
        )
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
        self.screen.close()

    def begin_sampling(self) -> None:
        """Begin to watch depth and flow; Cloud Tasks must run for as long."""
        self._sampler = asyncio.create_task(self._sample(), name="console-samples")

    async def end_sampling(self) -> None:
        """Watch no longer; the pages stay."""
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
        app.add_routes(self.routes())
        tasks = self.platform.tasks
        app.add_routes(control.routes(tasks.engine, tasks.kill_worker, tasks.callers))
        app.add_routes([web.static("/static", STATIC)])
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
            page = self.screen.error_page(request, error.status, text or "")
            if "Allow" in error.headers:
                page.headers["Allow"] = error.headers["Allow"]
            return page

    async def _sample(self) -> None:
        while True:
            self.screen.samples.take()
            await asyncio.sleep(_SAMPLE_S)
