"""An office whose letters wait by person, for the tests: each letter that was written is a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from google.cloud import ndb

from rollforward.lanes import Lane, Rate
from rollforward.runtime import Clients
from rollforward.tasks import Reject, task

SWEEP = "/cron/lanes/sweep"


class LaneLetter(ndb.Model):
    """A letter that was written."""

    person = ndb.TextProperty()


@dataclass
class Desk:
    """What happens when a letter is written, and in which order that was."""

    written: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda text: None

    def of(self, person: str) -> list[str]:
        """Return the texts of a person, in the order in which they were written."""
        prefix = f"{person}:"
        return [text.removeprefix(prefix) for text in self.written if text.startswith(prefix)]


DESK = Desk()


@task("/tasks/tests/lane-letter", queue="default", max_attempts=4)
def write(clients: Clients, person: str, text: str) -> None:
    """Write a letter."""
    name = f"{person}:{text}"
    DESK.begun.append(name)
    DESK.before(name)
    LaneLetter(id=name[:400], person=person).put()
    DESK.written.append(name)


@task("/tasks/tests/lane-parcel", queue="default", max_attempts=2)
def bring(clients: Clients, person: str) -> None:
    """Refuse a parcel."""
    DESK.begun.append(f"{person}:parcel")
    raise Reject("nobody is in")


def take_back(clients: Clients, args: object, reason: str) -> None:
    """Note that a parcel goes back."""
    DESK.before("return")
    DESK.written.append("return")


PARCEL = replace(bring, on_give_up=take_back)


IN_ORDER = Lane("test-in-order", order=True)
BLOCKING = Lane("test-blocking", order=True, on_dead="block")
SHARED = Lane("test-shared")
TWO = Lane("test-two", limit=2)
PACED = Lane("test-paced", rate=Rate(2, burst=1))
LANES = [IN_ORDER, BLOCKING, SHARED, TWO, PACED]


def send(clients: Clients, lane: Lane, person: str, *texts: object) -> None:
    """Let letters to a person wait, each by a call of its own."""
    for text in texts:
        write.enqueue(clients, write.bind(person, str(text)), lane=lane(person))
