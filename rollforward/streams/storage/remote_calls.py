"""Remote calls as values (effects), which the generators of streams yield.

Workers, ticks and sources are generators. They yield a call, and its result is sent to them or its
error is raised in them. The same code runs on Datastore and Cloud Tasks (`driver.py`) and in the
simulator of the tests. The simulator suspends generators at each call, interleaves them, and loses
replies. A crash is a generator that is never resumed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Steps = Generator["Call", Any, T]


class ChangedError(Exception):
    """A row has an unexpected version, or a race was lost; nothing was written."""


class RepeatedError(Exception):
    """An earlier delivery of the task has ingested the records; nothing was written."""


class OutcomeUnknownError(Exception):
    """The commit may have been applied, or may still be applied later."""


class UnworkableError(Exception):
    """A bundle cannot be processed, however often it is retried; nothing was written."""


class TooLargeError(UnworkableError):
    """The commit, or a row of it, is larger than the service takes; nothing was written."""


class FullError(Exception):
    """An interval has no room for more slabs and must be split; nothing was written."""


class SinkFailedError(UnworkableError):
    """A sink refused its records; nothing was written."""


class Key(NamedTuple):
    """The key of a row."""

    kind: str
    name: str


class StoredRow(NamedTuple):
    """A row as read: its body, and the version that the next write must expect.

    A negative version is the token of a chunk that a push offers (`joint_commits.py`).
    """

    body: Any
    version: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read rows by key; the result: a list of `StoredRow` or None.

    `at`: a moment that `Snapshot` has returned.
    """

    keys: Sequence[Key]
    at: Any = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Read rows; the result: a moment (read time), and the rows as `Read` returns them.

    Reads and scans of keys at this moment see the same state. A service without snapshots returns
    None as the moment, and later reads see later states.
    """

    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Scan:
    """Read rows by name, from `low` up to but without `high`; the result: (name, row) pairs.

    `allow_partial`: may be answered from memory with some on-time chunks of an inbox. A stale chunk
    fails the commit that deletes it, by its version. `allow_empty`: may be answered from memory
    with none, too, if the last scan is recent and has found nothing new. `takes_offers`:
    may return chunks that pushes offer.
    """

    kind: str
    low: str
    high: str
    limit: int
    allow_partial: bool = False
    allow_empty: bool = False
    takes_offers: bool = False


@dataclass(frozen=True, slots=True)
class ScanKeys:
    """Return the first `limit` names, in order, from `low` up to but without `high`."""

    kind: str
    low: str
    high: str
    at: Any = None
    limit: int = 1


@dataclass(frozen=True, slots=True)
class ScanKeysMany:
    """Scan several ranges of keys concurrently; the result: the names of each range.

    Scans without a moment may see different states, in any order. The call fails if one scan does.
    """

    scans: Sequence[ScanKeys]


class Delivery(NamedTuple):
    """A sink's writes in the transaction of a commit.

    `sink`: its name and version. `values`: the results of its `make`.
    """

    sink: tuple[str, int]
    values: Sequence[Any]


@dataclass(slots=True)
class Commit:
    """Write rows atomically; the result: the versions of `puts`, then of `inserts`.

    Each put and delete names the version it expects; None in a delete matches any. With a
    `delivery`, a sink writes in the same transaction. Then only the first put, the interval's row,
    is compared, because the lease of the interval protects the other rows.

    Raises, where it is yielded:
        ChangedError: nothing was written.
        OutcomeUnknownError: the commit may have been applied.
        UnworkableError: nothing was written, and a retry cannot help.
    """

    puts: list[tuple[Key, Any, int]] = field(default_factory=list)
    inserts: list[tuple[Key, Any]] = field(default_factory=list)
    deletes: list[tuple[Key, int | None]] = field(default_factory=list)
    delivery: Delivery | None = None

    @property
    def rows(self) -> list[tuple[Key, Any]]:
        """The keys and bodies of the rows that it writes: of `puts`, then of `inserts`."""
        return [*((key, body) for key, body, _ in self.puts), *self.inserts]


@dataclass(frozen=True, slots=True)
class Join:
    """Join the next commit of the worker that reads a chunk of a commit; it never fails.

    The result: as of the commit; None: it was not applied, or its outcome is unknown. Then the
    caller commits separately, which fails if the worker has applied it, or will.
    """

    commit: Commit


class Wake(NamedTuple):
    """A task to create: its target, its name for deduplication, its delay.

    `target`: a computation and the first slot of an interval; ("", 0) for the watermarks; a stream
    and -1 to pull it. If the name exists, the task was created before.
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
    """Sleep.

    `inbox`: an inbox, as `inbox_of` returns it; a chunk that this instance sends there ends the
    pause. Chunks of other instances do not.
    """

    seconds: float
    inbox: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Count an attempt that may kill its process; the result: the number of attempts so far.

    The count is a hint and expires after an hour; 1 if it is unknown.
    """

    subject: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class CallEffects:
    """Call weak sinks with records that are not yet durable.

    `effects`: pairs of a sink, by name and version, and its record. The result: the indices of the
    effects that completed within `wait_s`. Others may be running, or may still run.
    """

    effects: Sequence[tuple[tuple[str, int], Any]]
    wait_s: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read records of a pull source; the result: a `Pulled`."""

    stream: str
    position: Any
    limit: int
    partition: str = ""


Call = (
    Read
    | Snapshot
    | Scan
    | ScanKeys
    | ScanKeysMany
    | Commit
    | Join
    | CreateTasks
    | Pause
    | Attempt
    | CallEffects
    | Fetch
)
