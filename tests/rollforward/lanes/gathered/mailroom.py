"""A mail room that gathers notes by person, for the tests: each run is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollforward.lanes import Call, debounced, throttled, unique
from rollforward.runtime import Clients

SWEEP = "/cron/lanes/sweep"
WAIT_S, MAX_S, EVERY_S = 30, 100, 60


@dataclass(frozen=True)
class Note:
    """The arguments of a call."""

    text: str


@dataclass(frozen=True)
class MailRun:
    """A run that began, and when; it is done if it came to its end."""

    person: str
    texts: tuple[str, ...]
    ids: tuple[str, ...]
    at_s: float


@dataclass
class Desk:
    """The runs that began and those that were done, and what happens in one."""

    clock: Any = None
    begun: list[MailRun] = field(default_factory=list)
    done: list[MailRun] = field(default_factory=list)
    before: Callable[[MailRun], None] = lambda run: None

    def work(self, person: str, calls: Sequence[Call[Note]]) -> None:
        texts, ids = tuple(call.args.text for call in calls), tuple(call.id for call in calls)
        run = MailRun(person, texts, ids, self.clock.time_s)
        self.begun.append(run)
        self.before(run)
        self.done.append(run)

    def texts(self, person: str = "ada") -> list[tuple[str, ...]]:
        """Return the texts of each run that was done for a person."""
        return [run.texts for run in self.done if run.person == person]


DESK = Desk()


@debounced("test-digest", wait_s=WAIT_S, max_s=MAX_S, max_attempts=4)
def digest(person: str, calls: Sequence[Call[Note]]) -> None:
    """Mail a person all that has happened."""
    DESK.work(person, calls)


@throttled("test-reindex", every_s=EVERY_S)
def reindex(clients: Clients, person: str, calls: Sequence[Call[Note]]) -> None:
    """Build an index, once a minute at most."""
    DESK.work(person, calls)


@unique("test-sync", while_running=False)
def sync(person: str, calls: Sequence[Call[Note]]) -> None:
    """Fetch what has changed."""
    DESK.work(person, calls)


@unique("test-once", while_running=True)
def once(person: str, calls: Sequence[Call[Note]]) -> None:
    """Fetch what has changed, unless that is at work."""
    DESK.work(person, calls)


LANES = [digest, reindex, sync, once]
