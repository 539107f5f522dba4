"""Schema of a pipeline's rows: names and fields.

rollforward/streams/entities.py describes the kinds and their growth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.remote_calls import Key

HEAD, INTERVAL, SLAB, LARGE, CHUNK, IDS, SOURCE, DEAD, LOG, SUBSCRIPTION = (
    "StreamHead",
    "StreamInterval",
    "StreamSlab",
    "StreamState",
    "StreamChunk",
    "StreamIds",
    "StreamSource",
    "StreamDead",
    "StreamLog",
    "StreamSubscription",
)
OUTBOX = "OutboxTask"  # A row of the outbox; here only its existence matters.
Part = TypeVar("Part", bound=tuple[Any, ...])
ON_TIME, LATE = 0, 1
MAX_LEASE_MS = 60_000


class Slab(NamedTuple):
    """Summary of a slab in its interval's row: its first slot, and when it is due."""

    lo: int
    hold: int = NEVER
    due: int = NEVER
    processing_due: int = NEVER
    timers: int = 0


# `lo` and `number` of an `IdsPart`: unique in an interval.
PartId = tuple[int | None, int]


class IdsPart(NamedTuple):
    """Summary of a row of ids: its number, the arrival of the youngest id, its size."""

    number: int
    last_s: int
    size: int
    lo: int | None = None  # The slot in its name; None: the interval's first slot.

    @property
    def id(self) -> PartId:
        return self.lo, self.number


class Load(NamedTuple):
    """Recent load of an interval, as measured by its worker.

    `busy`: the share of time spent working. `hot_key`: the most frequent key, if its share is
    large. `split_ms`: the time of the interval's last split.
    """

    at_ms: int = 0
    records_s: float = 0
    busy: float = 0
    commit_ms: float = 0
    hot_key: str = ""
    hot_share: float = 0
    split_ms: int = 0


class Sent(NamedTuple):
    """Note of the inboxes that the commits of a sender have put records into: exchange/sent.py.

    Attributes:
        number: The number of the last commit that is noted here; it only rises.
        seq: The row's `seq` at that commit. If it differs from the row's, later commits are not
            noted, because other code has written them.
        since: The note is complete for the commits after this one.
        to: By "<computation>:<first slot>", the last commit that has put records there.
    """

    number: int = 0
    seq: int = 0
    since: int = 0
    to: Mapping[str, int] = {}


class Interval(NamedTuple):
    """A range of a computation's keys (a shard), and the lease of its worker."""

    hi: int
    seq: int = 0  # Incremented whenever a worker takes the lease.
    gen: int = 0  # A part of its task's name; incremented whenever a worker takes the lease.
    owner: str = ""  # The id of one run of a worker; empty: no lease.
    lease_ms: int = 0
    crash_count: int = 0  # Consecutive workers that took the lease and vanished without a commit.
    slabs: tuple[Slab, ...] = ()
    ids: tuple[IdsPart, ...] = ()
    records: int = 0
    late: int = 0
    dead: int = 0
    repeated: int = 0
    fired: int = 0
    produced: int = 0
    unkeyed: int = 0
    created_in: int = 0  # The layout version that created it: a part of its inbox's name.
    layout_version: int = 0  # The latest one under which a worker of it has written.
    load: Load = Load()
    inlined: Mapping[str, int] = {}  # By weak computation, the records its worker ran inline.
    # Written by one part of a fused computation, and dropped by another one.
    late_between_parts: int = 0
    crash_suspect: str = ""  # The timer or record that the crashed workers were processing.
    sent: Sent | None = None  # In pipelines with many intervals.
    crashed_ms: int = 0  # When the last worker took the lease of one that had vanished.
    later_fields: Mapping[str, Any] = {}  # Fields of later code, by name.

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
        """Return whether a worker has a lease; a lease that is too long is due to a wrong clock."""
        return bool(self.owner) and now_ms < self.lease_ms < now_ms + MAX_LEASE_MS


class Head(NamedTuple):
    """The control row of a pipeline: watermarks, intervals, topology."""

    gen: int = 0
    intervals: Mapping[str, Sequence[int]] = {}
    inputs: Mapping[str, int] = {}  # Watermarks by computation: all earlier on-time records came.
    sources: Mapping[str, int] = {}
    published: Mapping[str, int] = {}  # By publication: all earlier on-time records are in its log.
    # By computation that asks for a percentile, or did: a watermark must not fall, so it stays.
    percentile_watermarks: Mapping[str, int] = {}
    idle_ticks: int = 0  # Consecutive ticks without any progress.
    waiting: Mapping[str, Sequence[int]] = {}  # By computation: rows, records, bytes in its inbox.
    layout_version: int = 0  # Incremented by each split or merge: layout.py.
    # By "<computation>:<first slot>": the layout version that created the interval.
    created_in_by_place: Mapping[str, int] = {}
    retired: Mapping[str, Sequence[Sequence[int]]] = {}  # Inboxes of split or merged intervals.
    paused: Mapping[str, str] = {}  # By "<stream>:<process>" under backpressure: the reason.
    paused_at_ms: Mapping[str, int] = {}  # The last time it was paused.
    last_heard: Mapping[str, Sequence[int]] = {}  # By stream: idleness.py.
    idle: Mapping[str, int] = {}  # By stream, in ms: for code that lacks the source.
    processes: Mapping[str, Sequence[str]] = {}  # By stream: all that have ever had a row.
    topology: Mapping[str, Sequence[Any]] = {}  # The running computations: plan.py.
    history: Sequence[Sequence[Any]] = ()  # The last changes of the topology.
    recovered: Mapping[str, int] = {}  # By computation: records found below the watermark.
    replays: int = 0  # Of dead letters: a replay has no other row that says where it has sent.
    # By "<computation>:<first slot>" that has work and no worker: yielding.py.
    unserved: Mapping[str, Sequence[int]] = {}
    stopped: Mapping[str, Any] = {}  # Of a pipeline that moves: moving/stopping.py.
    imported: str = ""  # The export that it has begun with.
    later_fields: Mapping[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the pipeline has all of its first rows."""
        return bool(self.topology)

    def timer_watermark(self, computation: str) -> int:
        """Return the watermark for the hooks and the timers of a computation."""
        return max(self.inputs.get(computation, 0), self.percentile_watermarks.get(computation, 0))


class SourceRow(NamedTuple):
    """Progress of one process of a source."""

    watermark: int = 0
    latest: int = 0
    seen_ms: int = 0
    is_idle: bool = False  # The watermark no longer waits for it.
    last: tuple[str, ...] = ()  # Ids of the last commits, to recognize one whose reply was lost.
    seq: int = 0
    records: int = 0
    late: int = 0
    dead: int = 0
    position: Any = None
    layout_version: int = 0  # The latest one under which it has written.
    delays: tuple[int, ...] = ()  # Records by their delay; exchange/delays.py has the buckets.
    inlined: Mapping[str, int] = {}  # By weak computation or sink, the records it ran inline.
    sent: Sent | None = None  # As of an interval.
    later_fields: Mapping[str, Any] = {}


class InboxRecord(NamedTuple):
    """A record in an inbox, with its value as text: JSON, or as `model.codecs` has it."""

    key: str
    timestamp_ms: int
    stream: str
    id: str
    text: str


class DeadRow(NamedTuple):
    """A dead letter: a record or a timer that failed permanently."""

    computation: str
    key: str
    error: str
    since_ms: int
    record: InboxRecord | None = None
    tag: str = ""  # The tag of a timer, whose time is `timestamp_ms`.
    timestamp_ms: int = 0
    is_processing_time: bool = False
    hold: int = 0
    later_fields: Mapping[str, Any] = {}


class LogRow(NamedTuple):
    """Records of a published stream, in the order of its log.

    Attributes:
        start: The number of the first record in the log of its interval.
        watermark: The published watermark before these records.
        size: Of the values, in characters as they are stored.
        records: Pairs of an event time and a value, which is an `Encoded` if it has a codec.
    """

    start: int
    watermark: int
    size: int
    records: Sequence[tuple[int, Any]]
    later_fields: Mapping[str, Any] = {}


class SubscriptionRow(NamedTuple):
    """A pipeline that reads a published stream, as its publisher knows it."""

    subscriber: str
    stream: str  # Its name in the subscriber.
    partitions: Sequence[str]
    later_fields: Mapping[str, Any] = {}


def part_of_row(kind: type[Part], items: Sequence[Any]) -> Part:
    """Return a part of a row that is stored as a list of its fields.

    Raises:
        MissingCodeError: later code has written it, with more fields.
    """
    if len(items) > len(kind._fields):  # type: ignore[attr-defined]
        raise later_code(f"a {kind.__name__}")
    return kind(*items)


def later_code(subject: str) -> MissingCodeError:
    """Return the error for a row that this code must not write, because it would lose fields."""
    return MissingCodeError(
        f"later code has written {subject}: only instances with that code can process it"
    )


def fingerprint(id_: str) -> str:
    """Return 96 bits of an id, as text; the id may contain unpaired surrogates."""
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

    def log(self, publication: str, lo: int, created_in: int, end: int, at_ms: int) -> Key:
        """Return the key of a row of a log: rows sort by the number of their last record.

        Args:
            created_in: The layout version that created the interval, whose numbers begin at 0.
            at_ms: The time of writing.
        """
        name = f"{self.log_prefix(publication, lo, created_in, end)}:{at_ms:015d}"
        return Key(LOG, name)

    def log_prefix(self, publication: str, lo: int, created_in: int, number: int) -> str:
        """Return a prefix of the names of rows; those of earlier records sort before it."""
        return f"{self.pipeline}:{publication}:{lo:04x}:{created_in:09d}:{number:015d}"

    def past_log(self, publication: str, lo: int) -> str:
        """Return the upper end of a scan of a log."""
        return f"{self.pipeline}:{publication}:{lo:04x};"

    def subscription(self, publication: str, subscriber: str, stream: str) -> Key:
        """Return the key of the row of a subscription."""
        return Key(SUBSCRIPTION, f"{self.pipeline}:{publication}:{subscriber}:{stream}")

    def chunk(
        self, computation: str, lo: int, lane: int, at: int, id_: str, created_in: int = 0
    ) -> Key:
        """Return the key of a chunk: on-time chunks sort before late ones, each lane by time.

        Args:
            id_: As `chunk_id` makes it.
        """
        return Key(CHUNK, f"{self.inbox(computation, lo, created_in)}{lane}:{at:015d}:{id_}")

    def inbox(self, computation: str, lo: int, created_in: int = 0) -> str:
        """Return the prefix of the names of an interval's chunks."""
        version = f".{created_in}" if created_in else ""
        return f"{self.pipeline}:{computation}:{lo:04x}{version}:"

    def inboxes(self, computation: str) -> tuple[str, str]:
        """Return the range of names of all chunks of a computation."""
        return f"{self.pipeline}:{computation}:", f"{self.pipeline}:{computation};"

    def inbox_range(
        self, computation: str, lo: int, watermark: int, created_in: int = 0
    ) -> tuple[str, str]:
        """Return the range of names of an inbox; no chunks are below the watermark."""
        inbox = self.inbox(computation, lo, created_in)
        return first_name(inbox, watermark), past_names(inbox)


def first_name(inbox: str, watermark: int) -> str:
    """Return the lower end of a scan of an inbox."""
    return f"{inbox}{ON_TIME}:{min(watermark, FOREVER - 1):015d}"


def past_names(inbox: str) -> str:
    """Return the upper end of a scan of an inbox."""
    return f"{inbox}{LATE + 1}"


def time_of(name: str) -> int:
    """Return the time at which a chunk holds the watermark."""
    return int(name.rsplit(":", 2)[1])


def inbox_of(name: str) -> str:
    """Return the inbox of a chunk.

    >>> inbox_of("p:c:0000.3:0:000000000001000:a7.0.12.840")
    'p:c:0000.3:'
    """
    return name.rsplit(":", 3)[0] + ":"


def inbox_of_range(low: str) -> str:
    """Return the inbox of a range of chunks, given its first name.

    >>> inbox_of_range("p:c:0000.3:0:000000000001000")
    'p:c:0000.3:'
    """
    return low.rsplit(":", 2)[0] + ":"


def is_late(name: str) -> bool:
    """Return whether a chunk is in the lane for late records."""
    return name.rsplit(":", 3)[1] == str(LATE)


def late_at(name: str) -> int:
    """Return the watermark behind which the records of a chunk arrived; 0: they are on time."""
    return time_of(name) if is_late(name) else 0


def chunk_id(id_: str, traceparent: str, records: int, size: int) -> str:
    """Return the last part of a chunk's name.

    Args:
        id_: Unique in the pipeline.
        traceparent: Of the work that sends it; "": it has no trace, and the name no place for one.
        size: In bytes.

    >>> chunk_id("a7.0", "", 12, 840)
    'a7.0.12.840'
    """
    trace = f"~{traceparent}" if traceparent else ""
    return f"{id_}{trace}.{records}.{size}"


def trace_of(name: str) -> str:
    """Return the traceparent of the work that sent a chunk; "": it had no trace.

    >>> trace_of("p:c:0000:0:000000000001000:a7.0~00-0af7-b7ad-01.12.840")
    '00-0af7-b7ad-01'
    """
    return name.rpartition("~")[2].partition(".")[0] if "~" in name else ""


def chunk_size(name: str) -> tuple[int, int]:
    """Return how many records and bytes a chunk had when it was sent.

    >>> chunk_size("p:c:0000:0:000000000001000:a7.0.12.840")
    (12, 840)
    """
    _, records, size = name.rsplit(".", 2)
    return int(records), int(size)
