"""Reading of a pull source: while it has a backlog, several reads become one commit.

A commit costs the same with ten records and with hundreds. A source with more records after a
commit gets twice as many reads in the next one, as long as they are quick and small. One read is
enough while records come one by one. The number of reads is not stored: the next reader resumes at
the position, with one read or with many.

A partition of a source is a process of it, with a row and a task of its own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollforward.streams.exchange.ingest import (
    ingest_without_wakeup,
    invalid_record,
    oversized_record,
)
from rollforward.streams.exchange.ingest_attempt import InboundRecord, IngestRequest, IngestResult
from rollforward.streams.exchange.wakeups import WakeupBatcher
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.codecs import Codecs, Encoded, text_of
from rollforward.streams.model.errors import (
    BackpressureError,
    BadRecordError,
    MissingCodeError,
    UnknownStreamError,
)
from rollforward.streams.model.records import (
    FOREVER,
    check_time,
    inbound_value,
    value_text,
)
from rollforward.streams.model.sources import Pulled, PullSource, UnreadableItem
from rollforward.streams.publications.log import read_log
from rollforward.streams.publications.registration import register
from rollforward.streams.publications.subscription import LoggedRecord, Subscription
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    CreateTasks,
    Fetch,
    OutcomeUnknownError,
    Read,
    Steps,
    StoredRow,
    UnworkableError,
    Wake,
)
from rollforward.streams.storage.schema import SourceRow


class Partition(NamedTuple):
    """A partition of a pull source; `name` is empty if the source has none."""

    stream: str
    name: str

    @property
    def target(self) -> str:
        """The name in its tasks; neither part contains a slash."""
        return f"{self.stream}/{self.name}" if self.name else self.stream


# In one commit. A single read may have more bytes, up to the limit of a commit.
MAX_PULLED = 500
MAX_GATHERED_BYTES = 250_000
# No further read begins after this time, since the records of earlier reads wait for it.
GATHER_MS = 5


def pull(environment: Environment, stream: str, name: str = "") -> Steps[bool]:
    """Read a pull source for a while, or until it is idle or paused; return whether it has ended.

    Args:
        name: Of its partition; empty: it has none.

    Raises:
        ChangedError: another reader was faster, and may have died since: retry.
        MissingCodeError: only other code has the partition.
    """
    source, began_ms = environment.pipeline.source(stream), environment.elapsed_ms()
    assert isinstance(source, PullSource)
    if name not in source.processes:
        raise MissingCodeError(f"{stream} has no partition {name!r} in this version")
    head = yield from read_head(environment)
    if not environment.at(head.body).graph.readers.get(stream):
        return False
    partition, is_subscription = Partition(stream, name), isinstance(source, Subscription)
    if isinstance(source, Subscription):
        yield from register(environment, source, head.body.layout_version)
    row = yield from _row(environment, partition, head.body.layout_version)
    wakeups, reads, limit = WakeupBatcher(environment), 1, _first_limit(environment, partition)
    # A late record may follow the end of a published stream.
    while row.body.watermark < FOREVER or is_subscription:
        gathered = yield from _gather(environment, partition, row, reads, limit)
        is_idle = not gathered.has_progress
        is_last = is_idle and source.poll is None
        if (is_idle and row.body.watermark >= FOREVER) or (is_last and not gathered.is_later):
            break
        if is_idle:
            gathered.advance(environment.pipeline.advance_ms(stream))
        try:
            result = yield from _ingest(environment, gathered, limit)
        except UnworkableError:
            if limit == 1:
                raise
            reads, limit = 1, max(1, min(limit, len(gathered.records)) // 2)
            environment.caches["pull limit", partition] = limit
            continue
        except ChangedError:
            yield from wakeups.flush()
            raise
        except (BackpressureError, UnknownStreamError):
            break  # The tick that resumes the source creates a task, or the change that reads it.
        is_news = not is_idle or _moves_watermarks(row.body, result.row.body)
        row, reads = result.row, min(2 * reads, MAX_PULLED)
        wakeups.schedule(result.destinations, tick=is_news)
        yield from wakeups.flush_if_due()
        if is_last:
            break
        if is_idle or environment.elapsed_ms() - began_ms > environment.config.run_ms:
            delay_s = source.poll.total_seconds() if is_idle and source.poll else 0.0
            yield CreateTasks([pull_wake(environment, partition, row.body, delay_s=delay_s)])
            break
    yield from wakeups.flush()
    return row.body.watermark >= FOREVER  # type: ignore[no-any-return]


def pull_wake(
    environment: Environment,
    partition: Partition,
    row: SourceRow,
    *suffix: str | int,
    delay_s: float = 0,
) -> Wake:
    """Return the task that continues to read a source.

    Args:
        row: Its last commit has an id that no other one has had, even if the rows of an earlier
            pipeline of this name were deleted, whose tasks keep their names.
        suffix: Distinguishes the task from the reader's own, which may have run already and found
            nothing.
    """
    target = partition.target
    name = environment.pipeline.name, target, row.seq, *row.last[-1:], *suffix
    return Wake((target, -1), name, delay_s)


def _row(environment: Environment, partition: Partition, layout_version: int) -> Steps[StoredRow]:
    """Return the row of a partition; one that was added to a running pipeline gets it here.

    It begins idle: the first commit of its reader makes the watermark wait for it, as for a process
    that returns.

    Raises:
        ChangedError: it is not known whether it was created.
    """
    key = environment.names.source(*partition)
    [row] = yield Read([key])
    if row is not None:
        return row  # type: ignore[no-any-return]
    created = SourceRow(is_idle=True, layout_version=layout_version)
    try:
        [version] = yield Commit(inserts=[(key, created)])
    except OutcomeUnknownError as error:
        raise ChangedError from error
    return StoredRow(created, version)


def _moves_watermarks(stored: SourceRow, written: SourceRow) -> bool:
    """Return whether a read without records is news for a tick."""
    return any(
        getattr(stored, name) != getattr(written, name)
        for name in ("watermark", "is_idle", "layout_version")
    )


def _first_limit(environment: Environment, partition: Partition) -> int:
    """Return how many records the first commit may have: fewer after an oversized commit."""
    limit: int = environment.caches.get(("pull limit", partition), MAX_PULLED)
    return min(MAX_PULLED, 2 * limit)


def _ingest(environment: Environment, gathered: _Gathered, limit: int) -> Steps[IngestResult]:
    """Commit the records of the reads; a single record that cannot be written is a dead letter.

    Raises:
        UnworkableError: nothing was written; retry with fewer records.
        ChangedError, BackpressureError: nothing was written.
    """
    try:
        return (yield from ingest_without_wakeup(environment, gathered.request(), gathered.row))
    except UnworkableError as error:
        if limit > 1 or len(gathered.records) > 1:  # A reader may return more than its limit.
            raise
        gathered.records = [oversized_record(record, str(error)) for record in gathered.records]
    return (yield from ingest_without_wakeup(environment, gathered.request(), gathered.row))


def _gather(
    environment: Environment, partition: Partition, row: StoredRow, reads: int, limit: int
) -> Steps[_Gathered]:
    """Read a source several times in sequence; return the records of all reads.

    Args:
        limit: The number of records in all.
    """
    gathered, began_ms = _Gathered(environment, partition, row, limit), environment.elapsed_ms()
    for _ in range(reads):
        most = limit - len(gathered.records)
        gathered.add((yield from _read(environment, partition, gathered.position, most)))
        if gathered.is_full or environment.elapsed_ms() - began_ms > GATHER_MS:
            break
    return gathered


def _read(
    environment: Environment, partition: Partition, position: Any, limit: int
) -> Steps[Pulled]:
    source = environment.pipeline.source(partition.stream)
    if isinstance(source, Subscription):
        return (yield from read_log(source, partition.name, position, limit))
    # A reader may change it in place, and it is compared with the next one.
    position = copy.deepcopy(position)
    return (yield Fetch(partition.stream, position, limit, partition.name))  # type: ignore[no-any-return]


@dataclass
class _Gathered:
    """Records of the reads for one commit.

    Attributes:
        is_full: Another read like the last one would exceed a limit, or there is none.
        has_progress: The reads have advanced, perhaps only over invalid records.
    """

    environment: Environment
    partition: Partition
    row: StoredRow
    limit: int
    records: list[InboundRecord] = field(default_factory=list)
    position: Any = None
    watermark: int | None = None
    is_full: bool = False
    has_progress: bool = False
    _bytes: int = 0

    def __post_init__(self) -> None:
        self.position = self.row.body.position

    def add(self, pulled: Pulled) -> None:
        """Add the records of a read."""
        records = self._inbound(pulled)
        size = sum(len(record.text) for record in records)
        has_moved = value_text(pulled.position) != value_text(self.position)
        self.records += records
        self._bytes += size
        self.position = pulled.position
        if pulled.watermark is not None:
            self.watermark = max(self.watermark or 0, pulled.watermark)
        if pulled.is_over:
            self.watermark = FOREVER
        self.has_progress = self.has_progress or bool(records) or pulled.is_over or has_moved
        self.is_full = (
            pulled.is_over
            or not records
            or len(self.records) + len(records) > self.limit
            or self._bytes + size > MAX_GATHERED_BYTES
        )

    @property
    def is_later(self) -> bool:
        """Whether the reads have a later watermark than the row."""
        return self.watermark is not None and self.watermark > self.row.body.watermark

    def advance(self, distance_ms: int | None) -> None:
        """Advance the watermark with the clock, if the source allows it and its reader has none."""
        if distance_ms is None or self.watermark is not None:
            return
        environment, latest = self.environment, self.row.body.latest
        reached = latest - environment.pipeline.disorder_ms(self.partition.stream)
        self.watermark = max(reached, environment.now_ms() - distance_ms)

    def request(self) -> IngestRequest:
        """Return the request for one commit."""
        return IngestRequest(*self.partition, self.records, self.watermark, self.position)

    def _inbound(self, pulled: Pulled) -> list[InboundRecord]:
        """Return the records of a read, with ids if a weak sink may get one before the commit.

        An id is the record's number in the stream or its partition, so it does not depend on how
        many reads a retried commit has.
        """
        stream, name = self.partition
        pipeline = self.environment.pipeline
        source, codecs = pipeline.source(stream), pipeline.codecs
        needs_ids = stream in pipeline.weak_sink_streams
        number, prefix = self.row.body.records + len(self.records), name and f"{name}."
        incoming = list[InboundRecord]()
        for n, record in enumerate(pulled.records, number):
            id_ = f"{prefix}{n}" if needs_ids else ""
            if isinstance(source, Subscription) and isinstance(record, LoggedRecord):
                incoming.append(_logged_record(source, codecs, id_, record))
            else:
                incoming.append(_inbound_record(codecs, stream, id_, record))
        return incoming


def _logged_record(
    source: Subscription, codecs: Codecs, id_: str, record: LoggedRecord
) -> InboundRecord:
    """Return a record of a log, which the publisher's codecs read and this pipeline's write.

    Raises:
        MissingCodeError: this code does not have the codec of its value.
    """
    value, time_ms, watermark = record
    try:
        if isinstance(value, Encoded):
            value = source.publication.codecs.value(text_of(value))
        text = value_text(value, codecs.writers.get(source.stream))
    except BadRecordError as error:
        invalid = invalid_record(id_, record.value, f"no record: {error}")
        return invalid._replace(timestamp_ms=time_ms, watermark=watermark)
    return InboundRecord(id_, text, time_ms, value, watermark=watermark)


def _inbound_record(codecs: Codecs, stream: str, id_: str, record: Any) -> InboundRecord:
    """Return a record of a reader; an invalid one does not block others."""
    if isinstance(record, UnreadableItem):
        return invalid_record(id_, record.item, f"no record: {record.error}")
    try:
        value, time_ms = record
    except (TypeError, ValueError) as error:
        return invalid_record(id_, record, f"no record: {error}")
    try:
        text, decoded = inbound_value(codecs, stream, value)
        return InboundRecord(id_, text, check_time(time_ms), decoded)
    except BadRecordError as error:
        if isinstance(value, Encoded):
            value = codecs.named(stream, value)
        return invalid_record(id_, value, f"no record: {error}")
