"""How a pull source is read: several reads become one commit while there is much to read.

A commit costs the same with ten records and with hundreds. A source that has more after a commit
has twice as many reads in its next one, as long as they are quick and small; one read is enough
while records come one by one. What a commit has been made of is forgotten with it: the next reader
goes on at its position, be it with one read or with many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollforward.streams.exchange.ingest import (
    IncomingRecord,
    IngestRequest,
    IngestResult,
    ingest_without_wakeup,
    invalid_record,
    oversized_record,
)
from rollforward.streams.exchange.wakeups import WakeupBatcher
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.errors import BackpressureError, BadRecordError, UnknownStreamError
from rollforward.streams.model.records import FOREVER, check_time, value_text
from rollforward.streams.model.sources import Pulled, PullSource
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    CreateTasks,
    Fetch,
    Read,
    Steps,
    StoredRow,
    UnworkableError,
    Wake,
)

# Of one commit. A single read may have more bytes, up to what a commit holds.
MAX_PULLED = 500
MAX_GATHERED_BYTES = 250_000
# After so long no further read is begun: what the earlier ones have found waits for it.
GATHER_MS = 5


def pull(environment: Environment, stream: str) -> Steps[bool]:
    """Read a pull source for some time, or until it has to wait; return whether it has ended.

    Raises:
        ChangedError: somebody else has read it meanwhile. They may have died since: come again.
    """
    source, began_ms = environment.pipeline.source(stream), environment.elapsed_ms()
    assert isinstance(source, PullSource)
    key = environment.names.source(stream, "")
    head = yield from read_head(environment)
    if not environment.at(head.body).graph.readers.get(stream):
        return False
    [found] = yield Read([key])
    wakeups, reads, limit = WakeupBatcher(environment), 1, _first_limit(environment, stream)
    while found.body.watermark < FOREVER:
        gathered = yield from _gather(environment, stream, found, reads, limit)
        is_idle = not gathered.has_more
        if is_idle and source.poll is None:
            break
        if is_idle:
            gathered.advance(environment.pipeline.advance_ms(stream))
        try:
            result = yield from _let_in(environment, gathered, limit)
        except UnworkableError:
            if limit == 1:
                raise
            reads, limit = 1, max(1, min(limit, len(gathered.records)) // 2)
            environment.caches["pull limit", stream] = limit
            continue
        except ChangedError:
            yield from wakeups.flush()
            raise
        except (BackpressureError, UnknownStreamError):
            break  # The tick that lets it go has it read again, or the attachment of a reader.
        found, reads = result.found, min(2 * reads, MAX_PULLED)
        wakeups.schedule(result.destinations, tick=True)
        yield from wakeups.flush_if_due()
        if is_idle or environment.elapsed_ms() - began_ms > environment.config.run_ms:
            delay_s = source.poll.total_seconds() if is_idle and source.poll else 0.0
            yield CreateTasks([pull_wake(environment, stream, found.body.seq, delay_s=delay_s)])
            break
    yield from wakeups.flush()
    return found.body.watermark >= FOREVER  # type: ignore[no-any-return]


def pull_wake(
    environment: Environment, stream: str, seq: int, *why: str | int, delay_s: float = 0
) -> Wake:
    """Return the task that goes on reading a source.

    Args:
        why: Makes it another task than the one that reading itself asks for: that one may have run
            already, and have found nothing.
    """
    return Wake((stream, -1), (environment.pipeline.name, stream, seq, *why), delay_s)


def _first_limit(environment: Environment, stream: str) -> int:
    """Return how many records the first commit may have: fewer after one that was too large."""
    limit: int = environment.caches.get(("pull limit", stream), MAX_PULLED)
    return min(MAX_PULLED, 2 * limit)


def _let_in(environment: Environment, gathered: _Gathered, limit: int) -> Steps[IngestResult]:
    """Let in what was read; a record that is alone, and that nobody can write, is a dead letter.

    Raises:
        UnworkableError: nothing was written. Fewer records may be.
        ChangedError, BackpressureError: nothing was let in.
    """
    try:
        return (yield from ingest_without_wakeup(environment, gathered.request(), gathered.found))
    except UnworkableError as error:
        if limit > 1 or len(gathered.records) > 1:  # More than it was asked for.
            raise
        gathered.records = [oversized_record(each, str(error)) for each in gathered.records]
    return (yield from ingest_without_wakeup(environment, gathered.request(), gathered.found))


def _gather(
    environment: Environment, stream: str, found: StoredRow, reads: int, limit: int
) -> Steps[_Gathered]:
    """Read up to so many times, one read behind the other; return what was found.

    Args:
        limit: Of all records.
    """
    gathered, began_ms = _Gathered(environment, stream, found, limit), environment.elapsed_ms()
    for _ in range(reads):
        gathered.add((yield Fetch(stream, gathered.position, limit - len(gathered.records))))
        if gathered.is_full or environment.elapsed_ms() - began_ms > GATHER_MS:
            break
    return gathered


@dataclass
class _Gathered:
    """What the reads for one commit have found.

    Attributes:
        is_full: Another read like the last one would be too much, or there is none.
        has_more: Whether the reads have come further, if only over what is no record.
    """

    environment: Environment
    stream: str
    found: StoredRow
    limit: int
    records: list[IncomingRecord] = field(default_factory=list)
    position: Any = None
    watermark: int | None = None
    is_full: bool = False
    has_more: bool = False
    _bytes: int = 0

    def __post_init__(self) -> None:
        self.position = self.found.body.position

    def add(self, pulled: Pulled) -> None:
        """Take what a read has found."""
        records = self._arrivals(pulled)
        size = sum(len(each.text) for each in records)
        has_moved = value_text(pulled.position) != value_text(self.position)
        self.records += records
        self._bytes += size
        self.position = pulled.position
        if pulled.watermark is not None:
            self.watermark = pulled.watermark
        if pulled.is_over:
            self.watermark = FOREVER
        self.has_more = self.has_more or bool(records) or pulled.is_over or has_moved
        self.is_full = (
            pulled.is_over
            or not records
            or len(self.records) + len(records) > self.limit
            or self._bytes + size > MAX_GATHERED_BYTES
        )

    def advance(self, distance_ms: int | None) -> None:
        """Let the watermark follow the clock, if the source says so and its reader states none."""
        if distance_ms is None or self.watermark is not None:
            return
        environment, latest = self.environment, self.found.body.latest
        reached = latest - environment.pipeline.disorder_ms(self.stream)
        self.watermark = max(reached, environment.now_ms() - distance_ms)

    def request(self) -> IngestRequest:
        """Return what one commit lets in."""
        return IngestRequest(self.stream, "", self.records, self.watermark, self.position)

    def _arrivals(self, pulled: Pulled) -> list[IncomingRecord]:
        """Return records with ids, if any of them may be handed on before the commit.

        Their numbers are those in the stream: however many reads become one commit when it is tried
        again, they stay.
        """
        is_handed = self.stream in self.environment.pipeline.weak_sink_streams
        first = self.found.body.records + len(self.records)
        return [
            _arrival(str(n) if is_handed else "", record)
            for n, record in enumerate(pulled.records, first)
        ]


def _arrival(id_: str, record: Any) -> IncomingRecord:
    """Return what was read as it comes in: what is no record does not keep others back."""
    try:
        value, at = record
    except (TypeError, ValueError) as error:
        return invalid_record(id_, record, f"no record: {error}")
    try:
        return IncomingRecord(id_, value_text(value), check_time(at), value)
    except BadRecordError as error:
        return invalid_record(id_, value, f"no record: {error}")
