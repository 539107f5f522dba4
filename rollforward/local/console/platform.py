"""The platform as the console sees it: the few things that it shows and moves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rollforward.local.cloudtasks.emulator import Emulator
from rollforward.local.cron.cron import Cron
from rollforward.local.logs.tail import LogTail
from rollforward.local.services.mail import MailServer
from rollforward.local.settings import Settings
from rollforward.local.traces.store import TraceStore


class ServiceRow(Protocol):
    """One row of the table of services."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def note(self) -> str: ...


class TasksPlatform(Protocol):
    """The emulator, as pages of queues and tasks see it."""

    @property
    def tasks(self) -> Emulator: ...
    @property
    def traces(self) -> TraceStore: ...
    @property
    def app_url(self) -> str:
        """The URL of the app; "" if none is known."""
        ...


class Platform(TasksPlatform, Protocol):
    """The running stack, as the console sees it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def cron(self) -> Cron: ...
    @property
    def mail(self) -> MailServer: ...
    @property
    def log_tail(self) -> LogTail: ...
    @property
    def datastore_address(self) -> str: ...
    @property
    def reports_folder(self) -> Path: ...

    def services(self) -> Sequence[ServiceRow]:
        """Return the state of every service."""
        ...

    def shell_environment(self) -> dict[str, str]:
        """Return the environment of a shell that uses the same services."""
        ...

    def workers(self) -> int:
        """Return how many workers the app has."""
        ...

    async def resize(self, count: int) -> None:
        """Let the app have this number of workers.

        Raises:
            ValueError: too few, or too many.
        """
        ...

    def kill_worker(self) -> int | None:
        """Kill one of the app's workers; return its process id, None if there is none."""
        ...


Context = dict[str, Any]
