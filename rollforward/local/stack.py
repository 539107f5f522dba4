"""Everything that `make run` starts, in order, and stopped in the reverse one.

1. Datastore with the save, memcached and mail, at the same time.
2. The console: the app checks its callers with the keys that it publishes.
3. Cloud Tasks takes calls: the app may enqueue as soon as it lives, and until it ends.
4. The app.
5. Cloud Tasks delivers, so that tasks of the last run find an app that listens; and cron.
6. Saves of Datastore, now and then; and a watch over who answers.

A stop loses nothing that was accepted. First, no new deliveries begin. Then the app accepts no new
requests and finishes those in progress, whose tasks Cloud Tasks still stores. Last, Datastore is
saved. hurry() does not wait for the app, abandon() does not save.

After a kill, Datastore returns to its last save, and Cloud Tasks with it. Tasks that ended since
then are delivered again. Tasks that were created since then are dropped.
"""

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from rollforward.local import environment, settings
from rollforward.local.app import server
from rollforward.local.app.draining import drain
from rollforward.local.app.keeper import AppKeeper
from rollforward.local.app.server import AppServer
from rollforward.local.backing import Backing
from rollforward.local.cloudtasks.dispatch_yaml import DispatchYamlError
from rollforward.local.cloudtasks.emulator import Emulator, EmulatorSettings
from rollforward.local.cloudtasks.queue_yaml import QueueYamlError
from rollforward.local.cloudtasks.store.database import StoreInUseError
from rollforward.local.cloudtasks.store.records import Attempt
from rollforward.local.console.server import Console
from rollforward.local.cron.cron import Cron
from rollforward.local.environment import Addresses
from rollforward.local.errors import BrokenAppError, PlatformError, PortTakenError
from rollforward.local.logs.tail import LogTail
from rollforward.local.logs.terminal import Terminal
from rollforward.local.probes import probes_of
from rollforward.local.saves.autosave import Autosave, clock_time
from rollforward.local.service_table import ServiceState, ServiceTable
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.mail import MailServer
from rollforward.local.settings import Settings
from rollforward.local.system import dev_lock, ports
from rollforward.local.system.shutdown import Shutdown
from rollforward.local.target import Target
from rollforward.local.traces.store import TraceStore
from rollforward.local.watch import Watch

_GRACE_IN_MEMORY_S = 3


class Stack:
    """All services of one run."""

    def __init__(self, chosen: Settings, target: Target, terminal: Terminal) -> None:
        """Open the stored data; nothing starts yet.

        Raises:
            PlatformError: another dev server runs here, or queue.yaml is wrong.
        """
        self.settings = chosen
        self.target = target
        self.terminal = terminal
        self._lock = dev_lock.take(chosen.dev_dir) if chosen.dev_dir else None
        self._secret_key = settings.secret_key(chosen.dev_dir)
        self.logs = chosen.dev_dir / "logs" if chosen.dev_dir else None
        self.tasks = self._emulator()  # Before what else would have to be closed if it fails.
        self.backing = Backing(chosen, terminal, self.logs)
        self.app = AppServer(
            chosen.root,
            port=chosen.app_port,
            env={},
            log_dir=self.logs,
            on_line=terminal.sink("app"),
            target=target.text,
            grace_s=server.GRACE_S if chosen.dev_dir else _GRACE_IN_MEMORY_S,
            **_instances(chosen),
        )
        self.keeper = AppKeeper(
            self.app, terminal.about("app"), reload=chosen.reload, folder=target.folder
        )
        self.cron = Cron(self.app.url, mint=self._mint)
        self.traces = TraceStore()
        self.console = Console(self, chosen.console_port)
        self.watch = Watch([], _reporter(terminal))
        self.table = ServiceTable(
            self.app,
            self.backing,
            self.tasks,
            self.console,
            self.cron,
            self.watch,
            target,
            is_kept=chosen.dev_dir is not None,
            profile=chosen.profile,
        )
        self._autosave: Autosave | None = None
        self._shutdown = Shutdown(terminal.say)
        self.reports_folder = Path(tempfile.mkdtemp(prefix="reports-"))

    async def start(self) -> None:
        """Start everything; on an error, stop what had started.

        Raises:
            PlatformError: a service cannot run; its text says how to fix that.
        """
        try:
            await self._start_backing()
            await self.console.start()
            settings.note_console(self.settings.dev_dir, self.console.url)
            self._shutdown.add("console", self.console.stop)
            await self._start_tasks()
            await self._start_app()
            await self.tasks.dispatch()
            self._shutdown.add("tasks", lambda: asyncio.to_thread(self.tasks.hold))
            self._load_cron()
            await self.cron.start()
            self._shutdown.add("cron", self.cron.stop)
            if self._autosave is not None and self._autosave.datastore.is_kept:
                self._shutdown.run_until_then("saves", self._autosave.run())
            self.watch.probes = probes_of(self.app, self.tasks, self.backing)
            self._shutdown.run_until_then("watch", self.watch.run())
        except BaseException:
            await self.stop()
            raise

    def stop_waiting(self) -> None:
        """Wait no longer for requests in progress; only while stopping."""
        self._shutdown.hurried.set()

    def abandon(self) -> None:
        """Do not even save Datastore; only while stopping."""
        self._shutdown.is_abandoned = True
        self._shutdown.hurried.set()
        if self.backing.datastore is not None:
            self.backing.datastore.kill()

    async def stop(self) -> None:
        """Stop everything that runs, the last started first."""
        await self._shutdown.run()
        shutil.rmtree(self.reports_folder, ignore_errors=True)
        if self._lock is not None:
            settings.note_console(self.settings.dev_dir, "")
            self._lock.close()
            self._lock = None

    def shell_environment(self) -> dict[str, str]:
        """Return the environment of a shell that uses the same services."""
        return environment.of_shell(self.addresses(), self.settings, self._secret_key)

    @property
    def mail(self) -> MailServer:
        """The mail server."""
        return self.backing.mail

    @property
    def log_tail(self) -> LogTail:
        """The newest log records of all services."""
        return self.terminal.tail

    @property
    def app_url(self) -> str:
        """The URL of the app."""
        return self.app.url

    @property
    def datastore_address(self) -> str:
        """host:port of Datastore."""
        return self.backing.datastore_address

    def services(self) -> list[ServiceState]:
        """Return the state of every service, as of now."""
        return self.table.rows()

    def addresses(self) -> Addresses:
        """Return where everything is."""
        return Addresses(
            app=self.app.url,
            console=self.console.url,
            datastore=self.backing.datastore_address,
            tasks=self.tasks.grpc_address,
            memcached=self.backing.memcache_address,
            mail=self.backing.mail.address,
            project=self.settings.project,
        )

    def _emulator(self) -> Emulator:
        chosen = self.settings
        emulator_settings = EmulatorSettings(
            port=chosen.tasks_port,
            store_path=chosen.dev_dir / "tasks.sqlite" if chosen.dev_dir else None,
            queue_yaml=self.target.queues_file,
            watching=not chosen.reload,  # Else the keeper watches it.
            app_url=f"http://{ports.LOOPBACK}:{chosen.app_port}",
            service_urls=chosen.services,
            dispatch_yaml=self.target.dispatch_yaml,
            project=chosen.project,
            location=settings.LOCATION,
            issuer=f"http://{ports.LOOPBACK}:{chosen.console_port}",
            kill_worker=self._kill_worker,
            profile=chosen.profile,
        )
        try:
            return Emulator(emulator_settings)
        except (QueueYamlError, DispatchYamlError, StoreInUseError) as error:
            raise PlatformError(str(error)) from error
        except sqlite3.Error as error:
            raise PlatformError(
                f"{emulator_settings.store_path} cannot be used: {error}. If the disk has room, "
                "move that file away to start without its tasks."
            ) from error

    async def _start_backing(self) -> None:
        """Start the services of the app; take Cloud Tasks back to Datastore's last save."""
        datastore = self.backing.datastore
        if datastore is not None:
            self._autosave = Autosave(
                datastore,
                self.app.paused,
                self.tasks.engine.clock.now,
                self.terminal.about("datastore"),
            )
        await self.backing.start(self._shutdown, self._stop_datastore)
        if datastore is not None:
            self._go_back(datastore)

    def _go_back(self, datastore: DatastoreEmulator) -> None:
        """Take Cloud Tasks back to Datastore's last save, or to nothing if that has nothing."""
        go_back, saved = self.tasks.engine.tasks.go_back, datastore.saved
        if saved is not None and (undone := go_back(saved.as_of)):
            at = clock_time(saved.real_time)
            text = f"as of {at}, as Datastore: {undone} tasks were done or created since then"
            self.terminal.say("tasks", text)
        elif datastore.began_empty and (undone := go_back(0.0)):
            text = f"empty, as Datastore: {undone} tasks were created before its first save"
            self.terminal.say("tasks", text)

    async def _stop_datastore(self) -> None:
        if self._autosave is None:
            return
        await self._autosave.save_last(is_abandoned=self._shutdown.is_abandoned)
        await asyncio.to_thread(self._autosave.datastore.stop)

    async def _start_tasks(self) -> None:
        try:
            await self.tasks.listen()
        except RuntimeError as error:
            port = self.settings.tasks_port
            raise PortTakenError(f"Port {port} was taken meanwhile: {error}") from error
        self._shutdown.add("tasks", self.tasks.stop)
        self.console.begin_sampling()
        self._shutdown.add("console", self.console.end_sampling)

    async def _start_app(self) -> None:
        """Start the app; one that cannot be loaded shows why, and waits to be fixed."""
        self.app.env = environment.of_app(
            self.addresses(), self.settings, self._secret_key, self.reports_folder
        )
        hurried, say = self._shutdown.hurried, self.terminal.about("app")
        self._shutdown.add("app", lambda: drain(self.app, self.tasks, hurried, say))
        with contextlib.suppress(BrokenAppError):
            await self.app.start()
        self.keeper.on_file[self.target.cron_yaml] = self._load_cron
        self.keeper.on_file[self.target.queue_yaml] = self._load_queues
        if self.target.dispatch_yaml is not None:
            self.keeper.on_file[self.target.dispatch_yaml] = self._load_rules
        self.keeper.start()
        self._shutdown.add("reload", self.keeper.stop)

    def _load_cron(self) -> bool:
        """Apply cron.yaml; the app need not be loaded again."""
        if problem := self.cron.try_load(self.target.cron_file):
            self.terminal.say("cron", f"cron.yaml not loaded: {problem}")
        return False

    def _load_rules(self) -> bool:
        """Apply dispatch.yaml; the app need not be loaded again."""
        if self.target.dispatch_yaml is not None:
            self.tasks.reload_rules(self.target.dispatch_yaml)
        return False

    def _load_queues(self) -> bool:
        """Apply queue.yaml; the app is loaded again, as it checks its queues when it starts."""
        return self.tasks.reload_queues(self.target.queues_file)

    def _mint(self, audience: str) -> str:
        token: str = self.tasks.engine.tokens.oidc_token(self.settings.service_account, audience)
        return token

    def kill_worker(self) -> int | None:
        """Kill one of the app's workers; return its process id, None if there is none."""
        victim = self.app.kill_worker()
        if victim is not None:
            self.terminal.say_killed(victim)
            self.tasks.engine.incidents.mark("kill", str(victim))
        return victim

    def workers(self) -> int:
        """Return how many workers the app has."""
        return len(self.app.workers())

    async def resize(self, count: int) -> None:
        """Let the app have this number of workers.

        Raises:
            ValueError: too few, or too many.
        """
        await self.app.resize(count)
        self.terminal.say("app", f"{count} workers on request")
        self.tasks.engine.incidents.mark("resize", str(count))

    async def _kill_worker(self, attempt: Attempt) -> None:
        """Kill a worker for a fault rule; it may be another than the one with the attempt."""
        self.kill_worker()


def _instances(chosen: Settings) -> dict[str, int]:
    """Return how many workers a profile gives the app, and threads."""
    if chosen.profile is None:
        return {}
    workers, at_once = (
        chosen.profile[f"instances.{name}"] for name in ("most", "requests_at_once")
    )
    return {"workers": int(workers), "threads": int(at_once)}


def _reporter(terminal: Terminal) -> Callable[[str, str], None]:
    """Return what says a line about a service under its name in the table."""

    def say(name: str, text: str) -> None:
        terminal.say({"Cloud Tasks": "tasks"}.get(name, name.lower()), f"{name} {text}")

    return say
