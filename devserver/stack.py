"""Everything that `make run` starts, in order, and stopped in the reverse one.

1. Datastore with what was saved, memcached and mail, at the same time.
2. The console: the app checks its callers with the keys that it publishes.
3. Cloud Tasks takes calls: the app may enqueue as soon as it lives, and until it ends.
4. The app.
5. Cloud Tasks delivers, so that tasks of the last run find an app that listens; and cron.
6. Saves of Datastore, now and then; and a watch over who answers.

A stop loses nothing that was accepted: deliveries begin no more; the app takes no request any
more and ends those under way; Cloud Tasks keeps what the last of them enqueued; then Datastore
is saved. hurry() does not wait for the app, abandon() does not save.

After a kill Datastore goes back to its last save, and Cloud Tasks with it: tasks that ended since
then are delivered again, those that were created since then are dropped.

A service that the environment names (DATASTORE_EMULATOR_HOST, MEMCACHE_HOSTS) is used,
not started. What is started listens on the loopback interface only.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import IO, Any

from devserver import app, ports, settings, watch
from devserver.app import AppKeeper, AppServer
from devserver.cloudtasks.database import StoreInUseError
from devserver.cloudtasks.emulator import Emulator
from devserver.cloudtasks.queue_yaml import QueueYamlError
from devserver.cloudtasks.records import Attempt
from devserver.console.server import Console
from devserver.cron import Cron
from devserver.datastore import DatastoreEmulator
from devserver.errors import DevserverError, PortTakenError, ServiceMissingError
from devserver.logs import Terminal
from devserver.mail import MailServer, MailStore
from devserver.memcached import Memcached
from devserver.settings import Settings
from devserver.watch import Probe, Watch

RUNNING, STOPPED, EXTERNAL, OFF = "running", "stopped", "external", "off"
SILENT = "silent"  # It runs and does not answer.

# Under writes without pause; else a save is made as soon as there is none for a moment.
SAVE_EVERY_S = 30.0
# A save takes seconds when there is much to save: not more than a twentieth of the time.
_SAVE_SHARE = 20.0
_LOOK_EVERY_S = 2.0
_SAY_EVERY_S = 5.0
_GRACE_IN_MEMORY_S = 3
_HANGS = "Stop with Ctrl-C and start again"


@dataclass(frozen=True)
class ServiceState:
    """One row of the table of services."""

    name: str
    state: str
    address: str
    url: str  # "" where a browser has nothing to see
    note: str


class Stack:
    """All services of one run."""

    def __init__(self, chosen: Settings, terminal: Terminal) -> None:
        """Open what is kept; nothing starts yet.

        Raises:
            DevserverError: another dev server runs here, or queue.yaml is wrong.
        """
        self.settings = chosen
        self.terminal = terminal
        self._lock = self._take_lock()
        self.started = time.time()
        self.logs = chosen.dev_dir / "logs" if chosen.dev_dir else None
        self.cache_note = ""
        self.cron_note = ""
        self._tasks_run = False
        data = chosen.dev_dir / "datastore" if chosen.dev_dir else None
        self.datastore: DatastoreEmulator | None = None
        if not chosen.datastore_host:
            self.datastore = DatastoreEmulator(
                chosen.datastore_kind,
                port=chosen.datastore_port,
                data_dir=data,
                project=chosen.project,
                databases=sorted({"", chosen.datastore_database}),
                log_dir=self.logs,
                on_line=self._sink("datastore"),
                say=self._about("datastore"),
            )
        self.memcached: Memcached | None = None
        if not chosen.memcache_hosts:
            self.memcached = Memcached(port=chosen.memcache_port, on_line=self._sink("memcached"))
        mail_file = chosen.dev_dir / "mail.sqlite" if chosen.dev_dir else None
        self.mail = MailServer(port=chosen.mail_port, store=MailStore(mail_file))
        self.tasks = self._emulator()
        self.app = AppServer(
            chosen.root,
            port=chosen.app_port,
            env={},
            log_dir=self.logs,
            on_line=self._sink("app"),
            grace_s=app.GRACE_S if chosen.dev_dir else _GRACE_IN_MEMORY_S,
        )
        self.keeper = AppKeeper(self.app, self._about("app"), reload=chosen.reload)
        self.cron = Cron(self.app.url, mint=self._mint)
        self.console = Console(self, chosen.console_port)
        self.watch = Watch([], self._say_of_service)
        self._stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._hurried = asyncio.Event()
        self._is_abandoned = False

    async def start(self) -> None:
        """Start everything; on an error, stop what had started.

        Raises:
            DevserverError: a service cannot run; its text says how to mend that.
        """
        try:
            await self._start_backing()
            await self.console.start()
            self._stops.append(("console", self.console.stop))
            await self._start_tasks()
            await self._start_app()
            await self._begin_deliveries()
            await self._start_cron()
            self._begin_saves()
            self._begin_watch()
        except BaseException:
            await self.stop()
            raise

    def hurry(self) -> None:
        """Wait no longer for requests under way; a stop must be under way."""
        self._hurried.set()

    def abandon(self) -> None:
        """Do not even save Datastore; a stop must be under way."""
        self._is_abandoned = True
        self._hurried.set()
        if self.datastore is not None:
            self.datastore.kill()

    async def stop(self) -> None:
        """Stop everything that runs, the last started first."""
        while self._stops:
            name, stop = self._stops.pop()
            try:
                await stop()
            except Exception as error:  # the others must be stopped all the same
                self.terminal.say(name, f"did not stop cleanly: {error!r}")
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def app_environment(self) -> dict[str, str]:
        """Return the whole environment of the app."""
        chosen, console = self.settings, self.console.url
        return {
            **settings.without_cloud(os.environ),
            "GOOGLE_CLOUD_PROJECT": chosen.project,
            "DATASTORE_EMULATOR_HOST": self.datastore_address,
            "CLOUD_TASKS_EMULATOR_HOST": self.tasks_address,
            "MEMCACHE_HOSTS": self.memcache_address,
            "SMTP_HOST": self.mail.address,
            "TASKS_URL": self.app.url,
            "TASKS_LOCATION": settings.LOCATION,
            "TASKS_SERVICE_ACCOUNT": chosen.service_account,
            "TASKS_CERTS_URL": f"{console}/oauth2/v1/certs",
            "TASKS_ISSUER": console,
            "DEVSERVER_URL": console,
            "SECRET_KEY": settings.secret_key(chosen.dev_dir),
            "PYTHONUNBUFFERED": "1",
        }

    def shell_environment(self) -> dict[str, str]:
        """Return what a shell needs to use the same services."""
        app = self.app_environment()
        names = ("GOOGLE_CLOUD_PROJECT", "DATASTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST")
        return {name: app[name] for name in (*names, "MEMCACHE_HOSTS", "SMTP_HOST")}

    @property
    def app_url(self) -> str:
        """Where the app is."""
        return self.app.url

    @property
    def datastore_address(self) -> str:
        """host:port of Datastore."""
        return self.datastore.address if self.datastore else self.settings.datastore_host

    @property
    def memcache_address(self) -> str:
        """host:port of the cache, "" without one."""
        return self.memcached.address if self.memcached else self.settings.memcache_hosts

    @property
    def tasks_address(self) -> str:
        """host:port of Cloud Tasks."""
        return f"{ports.LOOPBACK}:{self.settings.tasks_port}"

    def services(self) -> list[ServiceState]:
        """Return the state of every service, as of now."""
        chosen = self.settings
        app_note = f"{len(self.app.workers())} workers"
        if self.app.restarts:
            app_note += f", restarted {self.app.restarts} times"
        kept = "kept in .dev/" if chosen.dev_dir else "in memory"
        return [
            self._judged(
                "App", _up(self.app.running), self.app.address, app_note, url=self.app.url
            ),
            ServiceState("Console", RUNNING, self.console.address, self.console.url, ""),
            self._datastore_state(kept),
            self._judged(
                "Cloud Tasks",
                _up(self._tasks_run),
                self.tasks_address,
                self.tasks.queue_yaml_problem or f"gRPC only, {kept}",
            ),
            self._cache_state(),
            self._judged("Mail", RUNNING, self.mail.address, "kept here, delivered to nobody"),
            ServiceState(
                "Cron", _up(not self.cron_note), "", "", self.cron_note or "from cron.yaml"
            ),
        ]

    def addresses(self) -> dict[str, str]:
        """Return what a program that started us wants to know."""
        return {
            "app": self.app.url,
            "console": self.console.url,
            "datastore": self.datastore_address,
            "tasks": self.tasks_address,
            "memcached": self.memcache_address,
            "mail": self.mail.address,
            "project": self.settings.project,
        }

    def _emulator(self) -> Emulator:
        chosen = self.settings
        queues = chosen.root / "queue.yaml"
        try:
            return Emulator(
                port=chosen.tasks_port,
                store_path=chosen.dev_dir / "tasks.sqlite" if chosen.dev_dir else None,
                queue_yaml=queues if queues.exists() else None,
                app_url=f"http://{ports.LOOPBACK}:{chosen.app_port}",
                project=chosen.project,
                location=settings.LOCATION,
                issuer=f"http://{ports.LOOPBACK}:{chosen.console_port}",
                kill_worker=self._kill_worker,
            )
        except (QueueYamlError, StoreInUseError) as error:
            raise DevserverError(str(error)) from error

    async def _start_backing(self) -> None:
        """Start the services that the app stands on, side by side."""
        async with asyncio.TaskGroup() as group:
            if self.datastore is not None:
                group.create_task(self._start_datastore(self.datastore))
            if self.memcached is not None:
                group.create_task(self._start_cache(self.memcached))
            group.create_task(self._run("mail", self.mail))

    async def _start_datastore(self, datastore: DatastoreEmulator) -> None:
        await asyncio.to_thread(datastore.start)
        self._stops.append(("datastore", lambda: self._stop_datastore(datastore)))
        if datastore.saved is not None:
            undone = self.tasks.engine.tasks.go_back(datastore.saved.as_of)
            if undone:
                at = _clock_time(datastore.saved.real_time)
                words = f"as of {at}, as Datastore: {undone} tasks were done or created since then"
                self.terminal.say("tasks", words)

    async def _stop_datastore(self, datastore: DatastoreEmulator) -> None:
        """Save what Datastore holds and end it; say so if it cannot be saved."""
        try:
            if not self._is_abandoned:
                await asyncio.to_thread(datastore.save, self.tasks_time(), is_last=True)
        except DevserverError as error:
            self.terminal.say("datastore", f"{error} {self._what_is_lost()}")
        if self._is_abandoned:
            self.terminal.say("datastore", self._what_is_lost())
        await asyncio.to_thread(datastore.stop)

    def _what_is_lost(self) -> str:
        saved = self.datastore.saved if self.datastore is not None else None
        if saved is None:
            return "Not saved: all that it took in this run is lost."
        return f"Not saved: what it took since {_clock_time(saved.real_time)} is lost."

    def tasks_time(self) -> float:
        """Return the time on Cloud Tasks' clock."""
        return float(self.tasks.engine.clock.now())

    async def _run(self, name: str, service: Memcached | MailServer) -> None:
        await asyncio.to_thread(service.start)
        self._stops.append((name, lambda: asyncio.to_thread(service.stop)))

    async def _start_cache(self, server: Memcached) -> None:
        try:
            await self._run("memcached", server)
        except DevserverError as error:
            self.memcached = None
            self.cache_note = str(error)
            if not isinstance(error, ServiceMissingError):
                self.terminal.say("memcached", str(error))

    async def _start_tasks(self) -> None:
        try:
            await self.tasks.listen()
        except RuntimeError as error:
            port = self.settings.tasks_port
            raise PortTakenError(f"Port {port} was taken meanwhile: {error}") from error
        self._tasks_run = True
        self._stops.append(("tasks", self.tasks.stop))
        self.console.begin_sampling()
        self._stops.append(("console", self.console.end_sampling))

    async def _start_app(self) -> None:
        self.app.env = {**self.app_environment(), "PORT": str(self.app.port)}
        self._stops.append(("app", self._drain_app))
        await self.app.start()
        self.keeper.on_file[self.settings.root / "cron.yaml"] = self._load_cron
        self.keeper.start()
        self._stops.append(("reload", self.keeper.stop))

    async def _begin_deliveries(self) -> None:
        await self.tasks.dispatch()
        self._stops.append(("tasks", self._hold_deliveries))

    async def _hold_deliveries(self) -> None:
        self.tasks.hold()

    async def _drain_app(self) -> None:
        """End the app when its requests are done, or their time is up, or in a hurry."""
        ending = asyncio.create_task(self.app.stop())
        hurried = asyncio.create_task(self._hurried.wait())
        left_s = float(self.app.grace_s)
        while not ending.done() and not self._hurried.is_set():
            await asyncio.wait(
                {ending, hurried}, timeout=_SAY_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            left_s -= _SAY_EVERY_S
            if not ending.done() and not self._hurried.is_set():
                self._say_what_is_left(left_s)
        if not ending.done():
            cut = self.tasks.under_way
            self.app.kill()
            words = f"Deliveries that were cut off ({cut}) come again at the next start"
            self.terminal.say("app", f"ended in a hurry. {words}.")
        await ending
        hurried.cancel()

    def _say_what_is_left(self, left_s: float) -> None:
        deliveries = f" ({self.tasks.under_way} deliveries)" if self.tasks.under_way else ""
        limit = f"{max(0.0, left_s):.0f} s at most"
        words = f"waiting for requests under way{deliveries}, {limit} (Ctrl-C hurries)"
        self.terminal.say("app", words)

    def _begin_saves(self) -> None:
        datastore = self.datastore
        if datastore is not None and datastore.is_kept:
            self._keep_running("saves", self._save_now_and_then(datastore))

    async def _save_now_and_then(self, datastore: DatastoreEmulator) -> None:
        """Save Datastore when it has changed and is calm, or has changed for long enough.

        The app stands still meanwhile, for as long as the export takes.
        """
        seen: int | None = None
        pause_s, saved_at, is_failing = SAVE_EVERY_S, time.monotonic(), False
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            began = time.monotonic()
            try:
                before, seen = seen, await asyncio.to_thread(datastore.changed_to)
                is_calm = seen == before and not is_failing
                if seen is None or not (is_calm or began - saved_at >= pause_s):
                    continue
                await asyncio.to_thread(self._save_standing_still, datastore)
                is_failing = False
            except DevserverError as error:
                if not is_failing:
                    words = f"could not be saved, and is tried again: {error}"
                    self.terminal.say("datastore", words)
                is_failing = True
            saved_at = time.monotonic()
            pause_s = max(SAVE_EVERY_S, _SAVE_SHARE * (saved_at - began))

    def _save_standing_still(self, datastore: DatastoreEmulator) -> None:
        with self.app.standing_still():
            datastore.save(self.tasks_time())

    def _begin_watch(self) -> None:
        self.watch.probes = self._probes()
        self._keep_running("watch", self.watch.run())

    def _keep_running(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background until the stop."""
        task = asyncio.create_task(work, name=name)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._stops.append((name, end))

    def _probes(self) -> list[Probe]:
        """Return how the services are asked that we know how to ask."""
        port, queue = self.app.port, self.tasks.engine.place.queue_name("default")
        log = " .dev/logs/app.log says more." if self.logs else ""
        found = [
            Probe(
                "App",
                lambda: watch.ask_app(port, app.READY_PATH),
                "All its threads wait, perhaps for a service." + log,
            ),
            Probe(
                "Cloud Tasks",
                lambda: watch.ask_cloud_tasks(self.tasks_address, queue),
                f"{_HANGS}: it keeps its tasks.",
            ),
            Probe("Mail", lambda: watch.ask_mail(self.mail.address), f"{_HANGS}."),
        ]
        if self.datastore is not None and self.datastore.product != "datastore-emulator":
            found.append(Probe("Datastore", self.datastore.admin.ping, self._datastore_advice()))
        if self.memcached is not None:
            server = self.memcached
            words = "The app goes on without a cache, in smaller batches."
            found.append(Probe("memcached", lambda: watch.ask_memcached(server.address), words))
        return found

    def _datastore_advice(self) -> str:
        if self.datastore is None or not self.datastore.is_kept:
            return f"{_HANGS}: it keeps nothing."
        return f"{_HANGS}: it goes back to its last save, {SAVE_EVERY_S:.0f} s or a little older."

    def _say_of_service(self, name: str, text: str) -> None:
        self.terminal.say({"Cloud Tasks": "tasks"}.get(name, name.lower()), f"{name} {text}")

    async def _start_cron(self) -> None:
        self._load_cron()
        await self.cron.start()
        self._stops.append(("cron", self.cron.stop))

    def _load_cron(self) -> None:
        path = self.settings.root / "cron.yaml"
        if not path.exists():
            self.cron_note = "there is no cron.yaml"
            return
        try:
            self.cron.load(path)
        except DevserverError as error:
            self.cron_note = str(error)
            self.terminal.say("cron", f"cron.yaml not loaded: {error}")
        else:
            self.cron_note = ""

    def _mint(self, audience: str) -> str:
        token: str = self.tasks.engine.tokens.oidc_token(self.settings.service_account, audience)
        return token

    def kill_worker(self) -> int | None:
        """Kill one of the app's workers; return its process id, None if there is none."""
        victim = self.app.kill_worker()
        if victim is not None:
            self.terminal.say("app", f"worker {victim} killed on request")
        return victim

    async def _kill_worker(self, attempt: Attempt) -> None:
        """Kill a worker for a fault rule; which of them has the attempt, nobody knows."""
        self.kill_worker()

    def _datastore_state(self, kept: str) -> ServiceState:
        if self.datastore is None:
            return ServiceState("Datastore", EXTERNAL, self.datastore_address, "", "not ours")
        process = self.datastore.process
        state = _up(process is not None and process.running)
        kept = kept if self.datastore.is_kept else "in memory"
        if self.datastore.is_kept and self.datastore.saved is not None:
            kept += f", saved at {_clock_time(self.datastore.saved.real_time)}"
        note = f"{self.datastore.product}, {kept}"
        return self._judged("Datastore", state, self.datastore_address, note)

    def _cache_state(self) -> ServiceState:
        if self.settings.memcache_hosts:
            hosts = self.settings.memcache_hosts
            return ServiceState("memcached", EXTERNAL, hosts, "", "not ours")
        if self.memcached is None:
            return ServiceState("memcached", OFF, "", "", self.cache_note)
        process = self.memcached.process
        state = _up(process is not None and process.running)
        return self._judged("memcached", state, self.memcached.address, "in memory")

    def _judged(
        self, name: str, state: str, address: str, note: str, *, url: str = ""
    ) -> ServiceState:
        """Return a service's row: one that runs and does not answer is silent."""
        if state == RUNNING and (silent_s := self.watch.silent_s(name)):
            state = SILENT
            note = f"has not answered for {silent_s:.0f} s. {self.watch.advice(name)}"
        return ServiceState(name, state, address, url, note)

    def _take_lock(self) -> IO[str] | None:
        """Let only one dev server at a time use a .dev folder."""
        folder = self.settings.dev_dir
        if folder is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            owner = lock.read().strip()
            lock.close()
            raise DevserverError(
                f"A dev server already runs here (pid {owner}). "
                "Stop it, or start this one with --memory."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock

    def _about(self, service: str) -> Callable[[str], None]:
        return lambda text: self.terminal.say(service, text)

    def _sink(self, service: str) -> Callable[[str], None]:
        return self.terminal.sink(service)


def _clock_time(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


def _up(running: bool) -> str:
    return RUNNING if running else STOPPED
