"""The console's web server: routes, templates, and the samples behind the graphs."""

import asyncio
import contextlib
import time
from pathlib import Path

import jinja2
from aiohttp import web

from devserver import ports
from devserver.console import pages, words
from devserver.console.api import Api
from devserver.console.datastore_reader import DatastoreReader
from devserver.console.dead_tasks import DeadTasks
from devserver.console.guards import Guards
from devserver.console.outbox import Outbox
from devserver.console.platform import Context, Platform
from devserver.console.work import Samples
from devserver.errors import PortTakenError

_HERE = Path(__file__).parent
_SAMPLE_S = 1.0
_FORM_LIMIT_BYTES = 256 * 1024


class Console:
    """The console of one dev server, on the loopback interface."""

    def __init__(self, platform: Platform, port: int) -> None:
        """Describe the console; port 0 takes a free one."""
        self.platform = platform
        self.port = port
        self.guards = Guards()
        self.samples = Samples(platform.tasks.engine)
        self._reader = DatastoreReader(platform.settings.project)
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
        app = web.Application(
            middlewares=self.guards.middlewares, client_max_size=_FORM_LIMIT_BYTES
        )
        app.add_routes(pages.routes(self))
        app.add_routes(Api(self.platform).routes())
        app.add_routes(self.platform.tasks.routes())
        app.add_routes([web.static("/static", _HERE / "static")])
        return app

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
        return web.Response(body=content, content_type="text/html", charset="utf-8")

    async def _sample(self) -> None:
        while True:
            self.samples.take()
            await asyncio.sleep(_SAMPLE_S)


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        when=words.when, stamp=words.stamp, duration=words.duration, size=words.size
    )
    environment.globals.update(
        STATES=words.STATES,
        SERVICE_STATES=words.SERVICE_STATES,
        sparkline=words.sparkline,
        header_value=words.header_value,
    )
    return environment
