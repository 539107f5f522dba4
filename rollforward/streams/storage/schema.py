"""The rows of a pipeline: their names, and what stands in them.

rollforward/streams/entities.py says which kinds there are and how they grow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.remote_calls import Key

HEAD, INTERVAL, SLAB, LARGE, CHUNK, IDS, SOURCE, DEAD = (
    "StreamHead",
    "StreamInterval",
    "StreamSlab",
    "StreamState",
    "StreamChunk",
    "StreamIds",
    "StreamSource",
    "StreamDead",
)
OUTBOX = "OutboxTask"  # A row of the outbox, of which nothing matters here but that it is there.
Part = TypeVar("Part", bound=tuple[Any, ...])
ON_TIME, LATE = 0, 1
MAX_LEASE_MS = 60_000


class Slab(NamedTuple):
    """What an interval knows of one of its slabs: where it begins, and when it has work to do."""

    lo: int
    hold: int = NEVER
    due: int = NEVER
    processing_due: int = NEVER
    timers: int = 0


class IdsPart(NamedTuple):
    """A row of ids: its number, when the last one came (seconds), and how many it has."""

    number: int
    last_s: int
    size: int
    lo: int | None = None  # In its name; None: that of its interval.


class Load(NamedTuple):
    """What an interval had to do lately, as its owner has measured it.

    `busy`: the share of the time in which it worked. `hot_key`: the most frequent key, if it has a
    large share. `split_ms`: when it was cut off, or something off it.
    """

    at_ms: int = 0
    records_s: float = 0
    busy: float = 0
    commit_ms: float = 0
    hot_key: str = ""
    hot_share: float = 0
    split_ms: int = 0


class Interval(NamedTuple):
    """One range of a computation's keys, and who works on it."""

    hi: int
    seq: int = 0  # One more whenever a worker takes it.
    gen: int = 0  # Names the task that wakes it; one more whenever a worker takes it.
    owner: str = ""  # Of one run of a worker; empty: nobody.
    lease_ms: int = 0
    crash_count: int = (
        0  # How many workers in a row took it, committed nothing, and were not heard of.
    )
    slabs: tuple[Slab, ...] = ()
    ids: tuple[IdsPart, ...] = ()
    records: int = 0
    late: int = 0
    dead: int = 0
    repeated: int = 0
    fired: int = 0
    produced: int = 0
    unkeyed: int = 0
    created_in: int = 0  # The layout that it came with: names its inbox.
    layout_version: int = 0  # The latest one that an owner of it has written under.
    load: Load = Load()
    inlined: Mapping[str, int] = {}  # By weak computation, how many records its owner has passed.
    late_between_parts: int = (
        0  # Dropped by a part of a fused computation, and written by another one.
    )
    crash_suspect: str = ""  # The timer or record over which the last of those deaths were.
    rest: Mapping[str, Any] = {}  # Fields of later code, by name.

    @property
    def hold(self) -> int:
        return min((slab.hold for slab in self.slabs), default=NEVER)

    @property
    def due(self) -> int:
        return min((slab.due for slab in self.slabs), default=NEVER)

    @property
    def processing_due(self) -> int:
        return min((slab.processing_due for slab in self.slabs), default=NEVER)

    @property
    def timers(self) -> int:
        return sum(slab.timers for slab in self.slabs)

    def is_leased(self, now_ms: int) -> bool:
        """Return whether a worker has a lease; one that seems too long is that of a wrong clock."""
        return bool(self.owner) and now_ms < self.lease_ms < now_ms + MAX_LEASE_MS


class Head(NamedTuple):
    """The watermarks of a pipeline, and the intervals that its computations are cut into."""

    gen: int = 0
    intervals: Mapping[str, Sequence[int]] = {}
    inputs: Mapping[str, int] = {}  # Of computations: below it nothing in time is missing.
    sources: Mapping[str, int] = {}
    # Of computations that ask for a percentile, or did: that watermark. It stays, for none falls.
    percentile_watermarks: Mapping[str, int] = {}
    idle_ticks: int = 0  # How many ticks in a row have moved nothing.
    waiting: Mapping[str, Sequence[int]] = {}  # By computation: rows, records, bytes in its inbox.
    layout_version: int = (
        0  # How often intervals were split or merged; layout.py has what follows of it.
    )
    created_in_by_place: Mapping[
        str, int
    ] = {}  # "<computation>:<first slot>": the layout that it came with.
    retired: Mapping[str, Sequence[Sequence[int]]] = {}  # Inboxes that were left behind.
    paused: Mapping[str, str] = {}  # "<stream>:<process>" that has to wait, and why.
    paused_at_ms: Mapping[str, int] = {}  # When it had to last.
    last_heard: Mapping[str, Sequence[int]] = {}  # By stream, when: idleness.py.
    idle: Mapping[str, int] = {}  # By stream, in ms: for code that does not know the source.
    processes: Mapping[str, Sequence[str]] = {}  # By stream: all that have ever had a row.
    topology: Mapping[str, Sequence[Any]] = {}  # Which computations run: plan.py.
    history: Sequence[Sequence[Any]] = ()  # The last changes of that.
    recovered: Mapping[str, int] = {}  # By computation: records found where nobody looks.
    # "<computation>:<first slot>" that has work and no worker: yielding.py.
    unserved: Mapping[str, Sequence[int]] = {}
    rest: Mapping[str, Any] = {}

    def timer_watermark(self, computation: str) -> int:
        """Return the watermark that the hooks and the timers of a computation follow."""
        return max(self.inputs.get(computation, 0), self.percentile_watermarks.get(computation, 0))


class SourceRow(NamedTuple):
    """How far one process of a source has come."""

    watermark: int = 0
    latest: int = 0
    seen_ms: int = 0
    is_idle: bool = False  # It was silent for too long, and the watermark no more waits for it.
    last: tuple[str, ...] = ()  # The last commits, to know one again when its reply was lost.
    seq: int = 0
    records: int = 0
    late: int = 0
    dead: int = 0
    position: Any = None
    layout_version: int = 0  # The latest one that it has written under.
    delays: tuple[int, ...] = ()  # How many records came how late; percentiles.py has the buckets.
    inlined: Mapping[str, int] = {}  # By weak computation or sink, how many records it has passed.
    rest: Mapping[str, Any] = {}


class InboxRecord(NamedTuple):
    """A record in an inbox: its value as text."""

    key: str
    timestamp_ms: int
    stream: str
    id: str
    text: str


class DeadRow(NamedTuple):
    """A record or a timer that failed for good."""

    computation: str
    key: str
    error: str
    since_ms: int
    record: InboxRecord | None = None
    tag: str = ""  # Of a timer, which stands at `at`.
    timestamp_ms: int = 0
    is_processing_time: bool = False
    hold: int = 0
    rest: Mapping[str, Any] = {}


class SlabBody(NamedTuple):
    """Keys with their states; those of `large` have theirs in rows of their own."""

    keys: Mapping[str, KeyState]
    large: frozenset[str] = frozenset()


def part_of_row(kind: type[Part], items: Sequence[Any]) -> Part:
    """Return a part of a row, whose fields stand in it by their places.

    Raises:
        MissingCodeError: later code has written it, with more of them.
    """
    if len(items) > len(kind._fields):  # type: ignore[attr-defined]
        raise later_code(f"a {kind.__name__}")
    return kind(*items)


def later_code(what: str) -> MissingCodeError:
    """Return what says that this code must not write a row, because it would drop something."""
    return MissingCodeError(f"later code has written {what}: it is left to instances that have it")


def fingerprint(id_: str) -> str:
    """Return 96 bits of an id, as text; also of one that has half a character in it."""
    return hashlib.blake2b(id_.encode(errors="surrogatepass"), digest_size=12).hexdigest()


class Names:
    """The keys of the rows of one pipeline."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.head = Key(HEAD, pipeline)

    def interval(self, computation: str, lo: int) -> Key:
        return Key(INTERVAL, f"{self.pipeline}:{computation}:{lo:04x}")

    def slab(self, computation: str, lo: int) -> Key:
        return Key(SLAB, f"{self.pipeline}:{computation}:{lo:04x}")

    def large(self, computation: str, key: str) -> Key:
        return Key(LARGE, f"{self.pipeline}:{computation}:{slot_of(key):04x}:{key}")

    def source(self, stream: str, process: str) -> Key:
        return Key(SOURCE, f"{self.pipeline}:{stream}:{process}")

    def ids(self, computation: str, lo: int, number: int) -> Key:
        return Key(IDS, f"{self.pipeline}:{computation}:{lo:04x}:{number:010d}")

    def dead(self, computation: str, id_: str) -> Key:
        return Key(DEAD, f"{self.pipeline}:{computation}:{id_}")

    def chunk(
        self, computation: str, lo: int, lane: int, at: int, id_: str, created_in: int = 0
    ) -> Key:
        """Name a chunk: in an inbox those in time come first, the oldest of them before all.

        Args:
            id_: Ends in how many letters and bytes it has: ".<letters>.<bytes>".
        """
        return Key(CHUNK, f"{self.inbox(computation, lo, created_in)}{lane}:{at:015d}:{id_}")

    def inbox(self, computation: str, lo: int, created_in: int = 0) -> str:
        """Return what the names of an interval's chunks begin with."""
        birth = f".{created_in}" if created_in else ""
        return f"{self.pipeline}:{computation}:{lo:04x}{birth}:"

    def inboxes(self, computation: str) -> tuple[str, str]:
        """Return between what the chunks of all inboxes of a computation stand."""
        return f"{self.pipeline}:{computation}:", f"{self.pipeline}:{computation};"

    def inbox_range(
        self, computation: str, lo: int, watermark: int, created_in: int = 0
    ) -> tuple[str, str]:
        """Return where the names of an inbox begin and end: below the watermark is nothing."""
        inbox = self.inbox(computation, lo, created_in)
        return first_name(inbox, watermark), past_names(inbox)


def first_name(inbox: str, watermark: int) -> str:
    """Return where the names of an inbox begin that somebody looks at."""
    return f"{inbox}{ON_TIME}:{min(watermark, FOREVER - 1):015d}"


def past_names(inbox: str) -> str:
    """Return where the names of an inbox end."""
    return f"{inbox}{LATE + 1}"


def time_of(name: str) -> int:
    """Return the time at which a chunk holds the watermark back."""
    return int(name.rsplit(":", 2)[1])


def inbox_of(name: str) -> str:
    """Return the inbox of a chunk.

    >>> inbox_of("p:c:0000.3:0:000000000001000:a7.0.12.840")
    'p:c:0000.3:'
    """
    return name.rsplit(":", 3)[0] + ":"


def is_late(name: str) -> bool:
    """Return whether the chunk of a name is of the lane for late ones."""
    return name.rsplit(":", 3)[1] == str(LATE)


def late_at(name: str) -> int:
    """Return the watermark by which the records of a chunk came late; 0: they are in time."""
    return time_of(name) if is_late(name) else 0


def chunk_size(name: str) -> tuple[int, int]:
    """Return how many letters and bytes a chunk had when it was sent.

    >>> chunk_size("p:c:0000:0:000000000001000:a7.0.12.840")
    (12, 840)
    """
    _, letters, size = name.rsplit(".", 2)
    return int(letters), int(size)
