"""What the workers of streams ask of the services: remote calls, as values.

A worker, a tick and a source are generators: they yield a call and are sent its result, or its
error is raised in them. So one code runs on Datastore and Cloud Tasks (`driver.py`), and in the
simulator of the tests, which stops it at each call, for ever or for a while, lets others go on,
and loses replies. A crash is a generator that is not resumed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Steps = Generator["Call", Any, T]


class ChangedError(Exception):
    """A row is not as the commit expected, or a race was lost; nothing was written."""


class RepeatedError(Exception):
    """An earlier delivery of the task has let the records in; nothing was written."""


class OutcomeUnknownError(Exception):
    """The commit may have been applied, or may still be."""


class UnworkableError(Exception):
    """What was gathered cannot be worked on, however often it is tried; nothing was written."""


class TooLargeError(UnworkableError):
    """The commit, or a row of it, is larger than the service takes; nothing was written."""


class FullError(Exception):
    """An interval has no room for more slabs, and has to be split; nothing was written."""


class SinkFailedError(UnworkableError):
    """A sink refused what it was to write; nothing was written."""


class Key(NamedTuple):
    """The key of a row."""

    kind: str
    name: str


class StoredRow(NamedTuple):
    """A row as it was read: its body, and the version that the next write has to name."""

    body: Any
    version: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read rows by key; the result is a list of `StoredRow` or None.

    `at`: what `Snapshot` returned.
    """

    keys: Sequence[Key]
    at: Any = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Read rows; the result is a moment, and the rows as `Read` returns them.

    Reads and peeks that name the moment see the same state. A service that has no snapshots
    returns None for the moment, and later reads see later states.
    """

    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Scan:
    """Read rows by name, from `low` up to but without `high`; the result: (name, row) pairs.

    `allow_partial`: may be answered from memory with some on-time chunks of an inbox. A stale chunk
    fails the commit that deletes it, by its version.
    """

    kind: str
    low: str
    high: str
    limit: int
    allow_partial: bool = False


@dataclass(frozen=True, slots=True)
class ScanKeys:
    """Return the first names, in order, from `low` on and before `high`: some, or all there are."""

    kind: str
    low: str
    high: str
    at: Any = None
    limit: int = 1


@dataclass(frozen=True, slots=True)
class ScanKeysMany:
    """Make several peeks side by side; the result is the names of each.

    Those that name no moment may see different ones, in any order. All answer, or the call fails.
    """

    scans: Sequence[ScanKeys]


class Delivery(NamedTuple):
    """What a sink writes in the transaction of a commit.

    `sink`: its name and version. `values`: what it has made of records.
    """

    sink: tuple[str, int]
    values: Sequence[Any]


@dataclass(slots=True)
class Commit:
    """Write rows: all of it or nothing. The result: the versions of `puts`, then of `inserts`.

    Each put and delete names the version that its row has. A delete with None asks for none. With
    a `delivery` a sink writes in the same transaction; then only the first put, which is that of
    the interval, is compared: nobody else writes the others.

    Raises, where it is yielded:
        ChangedError: nothing was written.
        OutcomeUnknownError: perhaps it was.
        UnworkableError: nothing was written, and nothing will be.
    """

    puts: list[tuple[Key, Any, int]] = field(default_factory=list)
    inserts: list[tuple[Key, Any]] = field(default_factory=list)
    deletes: list[tuple[Key, int | None]] = field(default_factory=list)
    delivery: Delivery | None = None


class Wake(NamedTuple):
    """A task to create: what it runs, under which name, when.

    `target`: a computation and the first slot of an interval; ("", 0) for the watermarks; a stream
    and -1 to pull it. A name that exists already means that the task was created before.
    """

    target: tuple[str, int]
    name: tuple[str | int, ...]
    delay_s: float = 0


@dataclass(frozen=True, slots=True)
class CreateTasks:
    """Create tasks."""

    wakes: Sequence[Wake]


@dataclass(frozen=True, slots=True)
class Pause:
    """Let some time pass.

    `inbox`: less, if this instance puts something there: what its names begin with, as `inbox_of`
    returns it. What others put there does not end a pause.
    """

    seconds: float
    inbox: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Count an attempt at what may kill its process; the result: how many there were with this one.

    It is a hint, and counted for an hour: 1 if nobody knows.
    """

    subject: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class CallEffects:
    """Have weak sinks act on records before these are durable.

    `effects`: a sink, by name and version, and its record, of each. The result: the places of those
    that were done within `wait_s`; others may still be done, or be under way.
    """

    effects: Sequence[tuple[tuple[str, int], Any]]
    wait_s: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read records of a pull source; the result is a `Pulled`."""

    stream: str
    position: Any
    limit: int


Call = (
    Read
    | Snapshot
    | Scan
    | ScanKeys
    | ScanKeysMany
    | Commit
    | CreateTasks
    | Pause
    | Attempt
    | CallEffects
    | Fetch
)
