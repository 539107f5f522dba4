"""Everything that `make run` starts, in order, and stopped in the reverse one.

1. Datastore, memcached and mail, at the same time.
2. The console: the app checks its callers with the keys that it publishes.
3. The app.
4. Cloud Tasks, so that tasks of the last run find an app that listens; and cron.

A service that the environment names (DATASTORE_EMULATOR_HOST, MEMCACHE_HOSTS) is used,
not started. What is started listens on the loopback interface only.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import IO

from devserver import ports, settings
from devserver.app import AppKeeper, AppServer
from devserver.cloudtasks.emulator import Emulator
from devserver.cloudtasks.queue_yaml import QueueYamlError
from devserver.cloudtasks.records import Attempt
from devserver.cloudtasks.store import StoreInUseError
from devserver.console.server import Console
from devserver.cron import Cron
from devserver.datastore import DatastoreEmulator
from devserver.errors import DevserverError, PortTakenError, ServiceMissingError
from devserver.logs import Terminal
from devserver.mail import MailServer, MailStore
from devserver.memcached import Memcached
from devserver.settings import Settings

RUNNING, STOPPED, EXTERNAL, OFF = "running", "stopped", "external", "off"


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
                log_dir=self.logs,
                on_line=self._sink("datastore"),
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
        )
        self.keeper = AppKeeper(self.app, self._about("app"), reload=chosen.reload)
        self.cron = Cron(self.app.url, mint=self._mint)
        self.console = Console(self, chosen.console_port)
        self._stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []

    async def start(self) -> None:
        """Start everything; on an error, stop what had started.

        Raises:
            DevserverError: a service cannot run; its text says how to mend that.
        """
        try:
            await self._start_backing()
            await self.console.start()
            self._stops.append(("console", self.console.stop))
            await self._start_app()
            await self._start_tasks()
            await self._start_cron()
        except BaseException:
            await self.stop()
            raise

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
            ServiceState("App", _up(self.app.running), self.app.address, self.app.url, app_note),
            ServiceState("Console", RUNNING, self.console.address, self.console.url, ""),
            self._datastore_state(kept),
            ServiceState(
                "Cloud Tasks",
                _up(self._tasks_run),
                self.tasks_address,
                "",
                self.tasks.queue_yaml_problem or kept,
            ),
            self._cache_state(),
            ServiceState("Mail", RUNNING, self.mail.address, "", "kept here, delivered to nobody"),
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
                group.create_task(self._run("datastore", self.datastore))
            if self.memcached is not None:
                group.create_task(self._start_cache(self.memcached))
            group.create_task(self._run("mail", self.mail))

    async def _run(self, name: str, service: DatastoreEmulator | Memcached | MailServer) -> None:
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

    async def _start_app(self) -> None:
        self.app.env = {**self.app_environment(), "PORT": str(self.app.port)}
        self._stops.append(("app", self.app.stop))
        await self.app.start()
        self.keeper.on_file[self.settings.root / "cron.yaml"] = self._load_cron
        self.keeper.start()
        self._stops.append(("reload", self.keeper.stop))

    async def _start_tasks(self) -> None:
        try:
            await self.tasks.start()
        except RuntimeError as error:
            port = self.settings.tasks_port
            raise PortTakenError(f"Port {port} was taken meanwhile: {error}") from error
        self._tasks_run = True
        self._stops.append(("tasks", self.tasks.stop))
        self.console.begin_sampling()
        self._stops.append(("console", self.console.end_sampling))

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
        kept = "in memory" if self.datastore.product == "datastore-emulator" else kept
        note = f"{self.datastore.product}, {kept}"
        return ServiceState("Datastore", state, self.datastore_address, "", note)

    def _cache_state(self) -> ServiceState:
        if self.settings.memcache_hosts:
            hosts = self.settings.memcache_hosts
            return ServiceState("memcached", EXTERNAL, hosts, "", "not ours")
        if self.memcached is None:
            return ServiceState("memcached", OFF, "", "", self.cache_note)
        process = self.memcached.process
        state = _up(process is not None and process.running)
        return ServiceState("memcached", state, self.memcached.address, "", "in memory")

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


def _up(running: bool) -> str:
    return RUNNING if running else STOPPED
