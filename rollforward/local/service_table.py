"""The table of services, as the terminal and the console show it."""

from dataclasses import dataclass

from rollforward.cloud_profile import Profile
from rollforward.local.app.server import AppServer
from rollforward.local.backing import Backing
from rollforward.local.cloudtasks.emulator import Emulator
from rollforward.local.console.server import Console
from rollforward.local.cron.cron import Cron
from rollforward.local.saves.autosave import clock_time
from rollforward.local.target import Target
from rollforward.local.watch import Watch

RUNNING, STOPPED, EXTERNAL, OFF = "running", "stopped", "external", "off"
SILENT = "silent"  # It runs and does not answer.


@dataclass(frozen=True)
class ServiceState:
    """One row of the table."""

    name: str
    state: str
    address: str
    url: str  # "" where a browser has nothing to see
    note: str


@dataclass(frozen=True)
class ServiceTable:
    """The services of one run; rows() says how they are now."""

    app: AppServer
    backing: Backing
    tasks: Emulator
    console: Console
    cron: Cron
    watch: Watch
    target: Target
    is_kept: bool
    profile: Profile | None = None

    def rows(self) -> list[ServiceState]:
        """Return the state of every service, as of now."""
        mail, tasks = self.backing.mail.address, self.tasks
        tasks_note = tasks.queue_yaml_problem or f"gRPC and REST, {self._storage()}"
        cron_note = self.cron.note or self.target.cron_source
        return [
            self._app_row(),
            ServiceState("Console", RUNNING, self.console.address, self.console.url, ""),
            self._datastore_row(),
            self._checked_row(
                "Cloud Tasks", _up(tasks.is_listening), tasks.grpc_address, tasks_note
            ),
            self._cache_row(),
            self._checked_row("Mail", RUNNING, mail, "kept here, delivered to nobody"),
            ServiceState("Cron", _up(not self.cron.note), "", "", cron_note),
        ]

    def _app_row(self) -> ServiceState:
        app = self.app
        note = f"{len(app.workers())} workers"
        if self.profile is not None:
            note += f", {self.profile.describe()}"
        if app.restarts:
            note += f", restarted {app.restarts} times"
        if app.reports.latest:
            note += ", cannot be loaded: each of its pages says why"
        return self._checked_row("App", _up(app.running), app.address, note, url=app.url)

    def _datastore_row(self) -> ServiceState:
        datastore, address = self.backing.datastore, self.backing.datastore_address
        if datastore is None:
            return ServiceState("Datastore", EXTERNAL, address, "", "not ours")
        storage = self._storage() if datastore.is_kept else "in memory"
        if datastore.is_kept and datastore.saved is not None:
            storage += f", saved at {clock_time(datastore.saved.real_time)}"
        state = _up(datastore.process is not None and datastore.process.running)
        return self._checked_row("Datastore", state, address, f"{datastore.product}, {storage}")

    def _cache_row(self) -> ServiceState:
        memcached, address = self.backing.memcached, self.backing.memcache_address
        if memcached is None and address:
            return ServiceState("memcached", EXTERNAL, address, "", "not ours")
        if memcached is None:
            return ServiceState("memcached", OFF, "", "", self.backing.cache_note)
        state = _up(memcached.process is not None and memcached.process.running)
        return self._checked_row("memcached", state, address, "in memory")

    def _storage(self) -> str:
        return "kept in .dev/" if self.is_kept else "in memory"

    def _checked_row(
        self, name: str, state: str, address: str, note: str, *, url: str = ""
    ) -> ServiceState:
        """Return a service's row: one that runs and does not answer is silent."""
        if state == RUNNING and (silent_s := self.watch.silent_s(name)):
            state = SILENT
            note = f"has not answered for {silent_s:.0f} s. {self.watch.hint(name)}"
        return ServiceState(name, state, address, url, note)


def _up(running: bool) -> str:
    return RUNNING if running else STOPPED
