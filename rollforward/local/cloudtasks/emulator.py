"""The emulator as a whole: engine, gRPC, dispatcher, queue.yaml.

    settings = EmulatorSettings(app_url="http://127.0.0.1:8080", queue_yaml="queue.yaml")
    emulator = Emulator(settings)
    await emulator.start()
    ...
    await emulator.stop()

A test uses running(), which does that on a thread of its own:

    with running(app_url=handler_url) as emulator:
        client = tasks_client(emulator.grpc_address)

One port takes gRPC, REST and the control API. It does not authenticate callers, and listens on
the loopback interface unless `host` says otherwise.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollforward.local.cloudtasks import dispatch_yaml, queue_yaml
from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.delivery.behaviour import Behaviour
from rollforward.local.cloudtasks.dispatch_yaml import DispatchYamlError
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.engine.engine_state import Retention
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.names import Place, parent_of
from rollforward.local.cloudtasks.queue_yaml import QueueYamlError
from rollforward.local.cloudtasks.server.callers import Callers
from rollforward.local.cloudtasks.server.dispatcher import Dispatcher, KillWorker
from rollforward.local.cloudtasks.server.front import Front
from rollforward.local.cloudtasks.server.rest import functions
from rollforward.local.cloudtasks.server.versions import Versions
from rollforward.local.cloudtasks.store.store import Store
from rollforward.loopback import is_loopback

if TYPE_CHECKING:
    from rollforward.cloud_profile import Profile
    from rollforward.local.cloudtasks.server.rest.server import HttpServer

_WATCH_S = 1.0
_START_TIMEOUT_S = 30.0
_HTTP_SERVER = "rollforward.local.cloudtasks.server.rest.server"
_GRPC_SERVER = "rollforward.local.cloudtasks.server.grpc.server"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EmulatorSettings:
    """The options of one emulator.

    Attributes:
        port: The port of all APIs; 0 picks a free one, then in .port.
        store_path: The SQLite file; None keeps everything in memory.
        queue_yaml: The file that declares the queues, read again when it changes.
        app_url: The URL of App Engine targets of the default service.
        service_urls: The URLs of other services, by `[[instance.]version.]service`.
        functions_url: The address of Firebase's functions, at URL/PROJECT/LOCATION/NAME.
        dispatch_yaml: The file whose rules say which service a task of App Engine goes to, read
            again when it changes.
        host: The address to listen on.
        beyond_loopback: True lets it listen where other machines may call it.
        every_place: True serves every project and location. Queues of queue.yaml, and others
            without a place, belong to `project` and `location`.
        queues: Queues to create if they are missing, by short id or full name.
        issuer: The `iss` claim of OIDC tokens.
        watching: False leaves it to the caller to call reload_queues() when queue.yaml changes.
        dispatching: False leaves the delivery of tasks to the caller.
        kill_worker: Kills the worker that handles an attempt (fault kill_worker).
        profile: How the service is to behave; None: at once, and at the full rate.
    """

    app_url: str = "http://127.0.0.1:8080"
    service_urls: Mapping[str, str] = field(default_factory=dict)
    functions_url: str = functions.DEFAULT_URL
    host: str = "127.0.0.1"
    beyond_loopback: bool = False
    every_place: bool = False
    queues: Sequence[str] = ()
    port: int = 0
    store_path: str | Path | None = None
    queue_yaml: str | Path | None = None
    dispatch_yaml: str | Path | None = None
    project: str = "demo-local"
    location: str = "us-central1"
    issuer: str = "https://accounts.google.com"
    watching: bool = True
    dispatching: bool = True
    clock: Callable[[], float] = time.time
    rng: random.Random | None = None
    retention: Retention | None = None
    kill_worker: KillWorker | None = None
    profile: "Profile | None" = None


class Emulator:
    """One Cloud Tasks, from start() to stop(), on the running event loop.

    Raises:
        ValueError: the host is not of the loopback interface.
        QueueYamlError: queue.yaml cannot be used.
        DispatchYamlError: dispatch.yaml cannot be used.
        Refused: a queue of the settings cannot be created.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        host = settings.host
        if not settings.beyond_loopback and not is_loopback(host):
            raise ValueError(f"the emulator listens on the loopback interface only, not on {host}")
        self.host = host
        self.port = settings.port
        self.kill_worker = settings.kill_worker
        self.queue_yaml_problem = ""
        self.engine = Engine(
            Store(settings.store_path),
            Place(settings.project, settings.location, settings.every_place),
            AppEngineApp(settings.app_url, settings.service_urls),
            clock=Clock(settings.clock),
            rng=settings.rng,
            issuer=settings.issuer,
            retention=settings.retention,
            behaviour=Behaviour.like(settings.profile),
            in_memory=settings.store_path is None,
        )
        self._is_watching = settings.watching
        self._files: dict[Path, Callable[[Path], bool]] = {}
        try:
            if settings.queue_yaml is not None:
                self._apply_yaml(Path(settings.queue_yaml))
                self._files[Path(settings.queue_yaml)] = self.reload_queues
            if settings.dispatch_yaml is not None:
                self._apply_rules(Path(settings.dispatch_yaml))
                self._files[Path(settings.dispatch_yaml)] = self.reload_rules
            self._create_queues(settings.queues)
        except BaseException:
            self.engine.close()
            raise
        self._dispatcher: Dispatcher | None = None
        if settings.dispatching:
            self._dispatcher = Dispatcher(self.engine, settings.kill_worker)
        self._is_dispatching = False
        self.callers = Callers(are_local=is_loopback(host))
        self._servers = Servers(self.engine, self.callers, settings)
        self._front: Front | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def is_listening(self) -> bool:
        """True once listen() has been called."""
        return self._front is not None

    @property
    def grpc_address(self) -> str:
        """The address of all APIs, as host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen, and begin to dispatch.

        Raises:
            RuntimeError: the port is taken.
        """
        await self.listen()
        await self.dispatch()

    async def listen(self) -> None:
        """Take calls; tasks wait.

        Raises:
            RuntimeError: the port is taken.
        """
        self._front = Front(self._servers.http_protocol, self._servers.grpc_port)
        try:
            self.port = await self._front.start(self.host, self.port)
        except OSError as error:
            raise RuntimeError(f"cannot listen on {self.grpc_address}: {error}") from error
        if self._files and self._is_watching:
            seen = {path: _modified_at(path) for path in self._files}
            self._watcher = asyncio.create_task(self._watch_files(seen))

    async def dispatch(self) -> None:
        """Begin to deliver."""
        if self._dispatcher is not None:
            await self._dispatcher.start()
            self._is_dispatching = True

    def hold(self) -> None:
        """Begin no delivery from now on; calls are taken, and deliveries in progress end."""
        if self._dispatcher is not None:
            self._dispatcher.hold()

    @property
    def in_progress(self) -> int:
        """The number of deliveries that have begun and not ended."""
        return self._dispatcher.in_progress if self._dispatcher is not None else 0

    async def stop(self) -> None:
        """Stop; attempts in progress are cut off and start again next time."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._servers.stop_grpc()
        if self._front is not None:
            await self._front.stop()
        await self._servers.stop_http()
        if self._dispatcher is not None and self._is_dispatching:
            await self._dispatcher.stop()
        self.engine.close()

    async def _watch_files(self, seen: dict[Path, int]) -> None:
        """Apply queue.yaml and dispatch.yaml whenever they change; a wrong one changes nothing."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for path, reload in self._files.items():
                modified_at = _modified_at(path)
                if modified_at != seen[path]:
                    seen[path] = modified_at
                    reload(path)

    def reload_queues(self, path: Path) -> bool:
        """Apply queue.yaml as it is now. Return False if it is invalid; then nothing changes."""
        try:
            self._apply_yaml(path)
        except QueueYamlError as error:
            self.queue_yaml_problem = str(error)
            log.warning("Kept the queues as they were: %s", error)
            return False
        log.info("Applied %s", path)
        return True

    def reload_rules(self, path: Path) -> bool:
        """Apply dispatch.yaml as it is now. Return False if it is invalid; then nothing changes."""
        try:
            self._apply_rules(path)
        except DispatchYamlError as error:
            log.warning("Kept the rules as they were: %s", error)
            return False
        log.info("Applied %s", path)
        return True

    def _create_queues(self, wanted: Sequence[str]) -> None:
        """Create the queues that are missing.

        Raises:
            Refused: a name is malformed, or belongs to a place that is not served.
        """
        present = {queue.name for queue in self.engine.queues.all()}
        for queue in wanted:
            name = queue if "/" in queue else self.engine.place.queue_name(queue)
            self.engine.place.check_queue_name(name)
            if name not in present:
                self.engine.queues.create(parent_of(name), messages.Queue(name=name))
                present.add(name)

    def _apply_yaml(self, path: Path) -> None:
        queue_yaml.apply(self.engine, queue_yaml.read(path, self.engine.place))
        self.queue_yaml_problem = ""

    def _apply_rules(self, path: Path) -> None:
        self.engine.app.rules[:] = dispatch_yaml.read(path)


class Servers:
    """The gRPC and the HTTP server of an emulator; the first call for each starts it.

    Each is loaded on a thread: other calls, and deliveries, continue meanwhile.
    """

    def __init__(self, engine: Engine, callers: Callers, settings: EmulatorSettings) -> None:
        self._versions = Versions(engine)
        self._engine = engine
        self._callers = callers
        self._settings = settings
        self._http: HttpServer | None = None
        self._starting_http = asyncio.Lock()
        self._stop_grpc: Callable[[], None] | None = None
        self._grpc_port = 0
        self._starting_grpc = asyncio.Lock()

    async def http_protocol(self) -> Any:
        """Return the protocol of an HTTP connection, when the server is ready for it."""
        async with self._starting_http:
            if self._http is None:
                module = await asyncio.to_thread(importlib.import_module, _HTTP_SERVER)
                server = module.HttpServer(
                    self._versions,
                    self._engine,
                    self._callers,
                    self._settings.kill_worker,
                    self._settings.functions_url,
                )
                await server.start()
                self._http = server
        return self._http.protocol()

    async def stop_http(self) -> None:
        """End its calls, if it was started."""
        async with self._starting_http:
            if self._http is not None:
                await self._http.stop()

    async def grpc_port(self) -> int:
        """Return the port of the gRPC server, when it listens there."""
        async with self._starting_grpc:
            if self._stop_grpc is None:
                module = await asyncio.to_thread(importlib.import_module, _GRPC_SERVER)
                self._grpc_port, self._stop_grpc = module.start(self._versions, self._engine)
        return self._grpc_port

    async def stop_grpc(self) -> None:
        """End its calls, if it was started."""
        async with self._starting_grpc:
            if self._stop_grpc is not None:
                await asyncio.to_thread(self._stop_grpc)


def _modified_at(path: Path) -> int:
    """Return a file's modification time in nanoseconds, 0 when it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class RunningEmulator:
    """An emulator on its own thread, as running() yields it."""

    def __init__(self, emulator: Emulator, loop: asyncio.AbstractEventLoop) -> None:
        self.emulator = emulator
        self.engine = emulator.engine
        self.grpc_address = emulator.grpc_address
        self.control_url = f"http://{emulator.grpc_address}"
        self._loop = loop

    def wait_idle(
        self,
        timeout_s: float = 30.0,
        queue: str = "",
        *,
        with_scheduled: bool = False,
        with_retrying: bool = True,
    ) -> None:
        """Wait until nothing is left to do.

        Args:
            queue: The short id of the only queue that matters.

        Raises:
            TimeoutError: there was something left, which the text counts.
        """
        engine = self.engine
        waiting = engine.until_idle(
            timeout_s,
            engine.place.queue_name(queue) if queue else "",
            with_scheduled=with_scheduled,
            with_retrying=with_retrying,
        )
        if not asyncio.run_coroutine_threadsafe(waiting, self._loop).result():
            unfinished = {name: dict(counts) for name, counts in engine.history.counts().items()}
            raise TimeoutError(f"not idle after {timeout_s} s: {unfinished}")


@contextlib.contextmanager
def running(**settings: Any) -> Iterator[RunningEmulator]:
    """Run an Emulator on a thread of its own.

    Args:
        settings: The fields of EmulatorSettings.
    """
    chosen = EmulatorSettings(**settings)
    started: concurrent.futures.Future[RunningEmulator] = concurrent.futures.Future()
    stop: concurrent.futures.Future[None] = concurrent.futures.Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(chosen, started, stop)),
        name="cloud-tasks-emulator",
        daemon=True,
    )
    thread.start()
    try:
        yield started.result(_START_TIMEOUT_S)
    finally:
        stop.set_result(None)
        thread.join()


async def _serve(
    settings: EmulatorSettings,
    started: "concurrent.futures.Future[RunningEmulator]",
    stop: "concurrent.futures.Future[None]",
) -> None:
    try:
        emulator = Emulator(settings)
    except BaseException as error:
        started.set_exception(error)
        return
    try:
        await emulator.start()
    except BaseException as error:
        await emulator.stop()
        started.set_exception(error)
        return
    started.set_result(RunningEmulator(emulator, asyncio.get_running_loop()))
    await asyncio.wrap_future(stop)
    await emulator.stop()
