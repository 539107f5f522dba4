"""The services that the app needs: Datastore, memcached and mail.

A service that the environment names (DATASTORE_EMULATOR_HOST, MEMCACHE_HOSTS) is used,
not started. A started service listens on the loopback interface only.
"""

import asyncio
from pathlib import Path

from rollforward.local.errors import PlatformError, ServiceMissingError
from rollforward.local.logs.terminal import Terminal
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.mail import MailServer, MailStore
from rollforward.local.services.memcached import Memcached
from rollforward.local.settings import NO_CACHE, Settings
from rollforward.local.system.shutdown import Shutdown, Stop


class Backing:
    """The backing services of one run.

    Attributes:
        datastore: None where another program runs it.
        memcached: None where another program runs it, or it cannot be installed.
        has_cache: Whether there is to be one.
        cache_note: Why there is none.
    """

    def __init__(self, chosen: Settings, terminal: Terminal, logs: Path | None) -> None:
        """Describe the services; nothing starts yet."""
        self.settings = chosen
        self.terminal = terminal
        self.has_cache = chosen.memcache_hosts != NO_CACHE
        self.cache_note = "" if self.has_cache else f"MEMCACHE_HOSTS={NO_CACHE}"
        self.datastore = None if chosen.datastore_host else self._datastore(logs)
        self.memcached: Memcached | None = None
        if not chosen.memcache_hosts:
            self.memcached = Memcached(
                port=chosen.memcache_port, on_line=terminal.sink("memcached")
            )
        mail_file = chosen.dev_dir / "mail.sqlite" if chosen.dev_dir else None
        self.mail = MailServer(port=chosen.mail_port, store=MailStore(mail_file))

    def _datastore(self, logs: Path | None) -> DatastoreEmulator:
        chosen = self.settings
        return DatastoreEmulator(
            chosen.datastore_kind,
            port=chosen.datastore_port,
            data_dir=chosen.dev_dir / "datastore" if chosen.dev_dir else None,
            project=chosen.project,
            databases=sorted({"", chosen.datastore_database}),
            log_dir=logs,
            on_line=self.terminal.sink("datastore"),
            say=self.terminal.about("datastore"),
        )

    async def start(self, shutdown: Shutdown, stop_datastore: Stop) -> None:
        """Start the services side by side; return when they answer.

        Args:
            stop_datastore: Saves and ends Datastore.

        Raises:
            ExceptionGroup: of a PlatformError for each service that cannot run.
        """
        async with asyncio.TaskGroup() as group:
            if self.datastore is not None:
                group.create_task(self._run(shutdown, self.datastore, stop_datastore))
            if self.memcached is not None:
                group.create_task(self._start_cache(shutdown, self.memcached))
            group.create_task(self._run(shutdown, self.mail))

    async def _run(
        self,
        shutdown: Shutdown,
        service: DatastoreEmulator | Memcached | MailServer,
        stop: Stop | None = None,
    ) -> None:
        await asyncio.to_thread(service.start)
        name = {DatastoreEmulator: "datastore", Memcached: "memcached"}.get(type(service), "mail")
        shutdown.add(name, stop or (lambda: asyncio.to_thread(service.stop)))

    async def _start_cache(self, shutdown: Shutdown, server: Memcached) -> None:
        try:
            await self._run(shutdown, server)
        except PlatformError as error:
            self.memcached = None
            self.cache_note = str(error)
            if not isinstance(error, ServiceMissingError):
                self.terminal.say("memcached", str(error))

    @property
    def datastore_address(self) -> str:
        """host:port of Datastore."""
        return self.datastore.address if self.datastore else self.settings.datastore_host

    @property
    def memcache_address(self) -> str:
        """host:port of the cache, "" without one."""
        if self.memcached is not None:
            return self.memcached.address
        return self.settings.memcache_hosts if self.has_cache else ""
