"""The HTTP server of an emulator, by aiohttp: the REST API and the control API."""

from typing import Any

from aiohttp import web

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server import control
from rollforward.local.cloudtasks.server.callers import Callers
from rollforward.local.cloudtasks.server.dispatcher import KillWorker
from rollforward.local.cloudtasks.server.front import MAX_MESSAGE_BYTES
from rollforward.local.cloudtasks.server.rest.api import Rest
from rollforward.local.cloudtasks.server.versions import Versions
from rollforward.local.system.http_bodies import ServerLog


class HttpServer:
    """The server, from start() to stop(). It has no socket: it is given connections."""

    def __init__(
        self,
        versions: Versions,
        engine: Engine,
        callers: Callers,
        kill_worker: KillWorker | None,
        functions_url: str,
    ) -> None:
        app = web.Application(client_max_size=MAX_MESSAGE_BYTES)
        app.add_routes(control.routes(engine, kill_worker, callers))
        app.add_routes(Rest(versions, callers, functions_url).routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, logger=ServerLog())

    async def start(self) -> None:
        """Be ready for connections."""
        await self._runner.setup()

    def protocol(self) -> Any:
        """Return the protocol of a connection."""
        assert self._runner.server is not None
        return self._runner.server()

    async def stop(self) -> None:
        """End all connections."""
        await self._runner.cleanup()
