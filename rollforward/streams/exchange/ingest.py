"""Ingest: records come in with the position and the watermark of their source, in one commit.

Only this commit decides whether a record is late: by the watermark that it moves itself. It marks
late records, and every record that follows from them inherits the mark. So no worker has to judge
by a watermark that it read earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rollforward.streams.exchange.delays import with_delays
from rollforward.streams.exchange.inline import InlineRun, PendingEffect, call_effects, sum_counts
from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.exchange.sent import with_sent
from rollforward.streams.exchange.wakeups import wake_for_push
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import is_complete, read_head
from rollforward.streams.graph.plan import with_process
from rollforward.streams.model.bundle import Target
from rollforward.streams.model.codecs import Encoded, Undecodable, text_of
from rollforward.streams.model.errors import (
    BackpressureError,
    BadRecordError,
    PartlyAcceptedError,
    UnknownStreamError,
)
from rollforward.streams.model.json_text import quoted
from rollforward.streams.model.records import (
    FOREVER,
    check_time,
    checked_size,
    inbound_value,
    value_text,
)
from rollforward.streams.storage.remote_calls import (
    Attempt,
    ChangedError,
    Commit,
    Join,
    Key,
    OutcomeUnknownError,
    Read,
    RepeatedError,
    Steps,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.storage.retry import MAX_ATTEMPTS
from rollforward.streams.storage.schema import Head, InboxRecord, SourceRow, fingerprint
from rollforward.tracing import start_span

# The clock of a source may be this far ahead of ours.
MAX_AHEAD_MS = 60_000
REMEMBERED_COMMITS = 20
# A record may kill its process, so records run inline only this often before they are durable.
MAX_INLINE_ATTEMPTS = 2
CONTENDED_MS = 1_000
MAX_DESCRIBED_CHARS = 20_000  # Of an invalid record.


class InboundRecord(NamedTuple):
    """A record on its way in: its id (empty: none is needed), its value, and that as text.

    `error`: why it is invalid; it becomes a dead letter of each reader. `watermark`: another
    pipeline published it before this record.
    """

    id: str
    text: str
    timestamp_ms: int
    value: Any
    error: str = ""
    watermark: int = 0


@dataclass(frozen=True)
class IngestRequest:
    """Records and progress of a source, for one commit.

    Attributes:
        watermark: As the source states it; None: it follows the latest record.
        position: The source's next read position; only of a `PullSource`.
        receipt: A row that exists until the request is ingested; the commit deletes it.
    """

    stream: str
    process: str
    records: Sequence[InboundRecord]
    watermark: int | None = None
    position: Any = None
    receipt: Key | None = None


class IngestResult(NamedTuple):
    """Outcome of a request: its counts, the source's row after it, and the intervals to wake."""

    records: int
    late: int
    row: StoredRow
    destinations: Sequence[tuple[str, int]]


def inbound_record(
    environment: Environment, stream: str, value: Any, timestamp_ms: int, id_: str = ""
) -> InboundRecord:
    """Return a record after checking it.

    Args:
        value: An `Encoded` has the bytes of a codec of the stream.

    Raises:
        BadRecordError: the value or the time is invalid.
    """
    pipeline = environment.pipeline
    pipeline.source(stream)
    text, value = inbound_value(pipeline.codecs, stream, value)
    return InboundRecord(id_, text, check_time(timestamp_ms), value)


def encoded_record(
    environment: Environment, stream: str, text: str, timestamp_ms: int, id_: str
) -> InboundRecord:
    """Return a record that was checked before, with the bytes of a codec as text.

    Raises:
        MissingCodeError: this code does not have the codec.
    """
    environment.pipeline.source(stream)
    value = environment.pipeline.codecs.read(text)
    error = value.error if isinstance(value, Undecodable) else ""
    return InboundRecord(id_, text, timestamp_ms, value, error)


def invalid_record(id_: str, value: Any, error: str) -> InboundRecord:
    """Return an invalid record, with its bytes or a description of it as text."""
    try:
        is_coded = isinstance(value, Encoded) and value.codec
        text = checked_size(text_of(value)) if is_coded else value_text(value)
    except BadRecordError:
        text = quoted(_described(value)[:MAX_DESCRIBED_CHARS])
    return InboundRecord(id_, text, 0, value, error)


def oversized_record(record: InboundRecord, error: str) -> InboundRecord:
    """Return an invalid record for one that no commit can hold with all its readers."""
    text = quoted(record.text[:MAX_DESCRIBED_CHARS])
    return record._replace(text=text, error=f"cannot be ingested: {error}")


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # The value is nested too deeply, or its type has a broken `repr`.
        return type(value).__name__


def ingest(environment: Environment, request: IngestRequest) -> Steps[IngestResult]:
    """Commit records and wake their readers; return when the records are durable.

    A request that one commit cannot hold becomes several. Only the last one moves the watermark.

    Raises:
        ChangedError, BackpressureError: a part may have been committed.
        BadRecordError: a record cannot be written, and nothing was committed.
        PartlyAcceptedError: a record cannot be written, and others were committed.
    """
    parts = list[IngestResult]()
    try:
        result = yield from _ingest_split(environment, request, parts)
    except Exception as error:
        if not parts:
            raise
        woken = {place for part in parts for place in part.destinations}
        yield from wake_for_push(environment, woken)
        if isinstance(error, BadRecordError):
            raise PartlyAcceptedError(str(error)) from error
        raise
    yield from wake_for_push(environment, result.destinations)
    return result


def _ingest_split(
    environment: Environment, request: IngestRequest, parts: list[IngestResult]
) -> Steps[IngestResult]:
    """Commit records, and add the result of each commit to the parts."""
    records = request.records
    try:
        parts.append((yield from ingest_without_wakeup(environment, request)))
        return parts[-1]
    except UnworkableError as error:
        if len(records) < 2:
            raise BadRecordError(f"a record cannot be written: {error}") from error
    middle = len(records) // 2
    lower_request = replace(request, records=records[:middle], watermark=0)
    upper_request = replace(request, records=records[middle:])
    lower = yield from _ingest_split(environment, lower_request, parts)
    upper = yield from _ingest_split(environment, upper_request, parts)
    destinations = sorted({*lower.destinations, *upper.destinations})
    return IngestResult(len(records), lower.late + upper.late, upper.row, destinations)


def ingest_without_wakeup(
    environment: Environment, request: IngestRequest, expected: StoredRow | None = None
) -> Steps[IngestResult]:
    """Commit records and wake no reader.

    The row of a source is cached from its last read or write. If another process has written
    since, the commit fails, and the next attempt reads the row.

    Args:
        expected: The row that the request follows from; None: any.

    Raises:
        ChangedError: the row is not the expected one, or every attempt lost its race.
        BackpressureError: the source is paused; nothing was written.
        RepeatedError: the request's receipt is gone.
    """
    span_name = f"ingest {environment.pipeline.name}/{request.stream}"
    attributes = {"rollforward.records": len(request.records)}
    with start_span(span_name, "PRODUCER", attributes=attributes):
        return (yield from _ingest_in_span(environment, request, expected))


def _ingest_in_span(
    environment: Environment, request: IngestRequest, expected: StoredRow | None
) -> Steps[IngestResult]:
    id_, key = environment.new_id(), environment.names.source(request.stream, request.process)
    attempt: _IngestAttempt | None = None
    may_join = environment.can_join and bool(request.records) and expected is None
    may_join = may_join and not _is_contended(environment, key)
    done: frozenset[PendingEffect] | None = None
    may_inline: bool | None = None
    for _ in range(MAX_ATTEMPTS):
        head, row, read_ms = yield from _read_rows(environment, key, expected)
        if not is_complete(environment, head):
            yield from read_head(environment)
            continue
        if row is not None and row.body.layout_version > head.body.layout_version:
            continue  # The row was read before the head has changed.
        if attempt is not None and row is not None and id_ in row.body.last:
            return attempt.result(row)  # The reply to the earlier attempt was lost.
        if expected is not None and (row is None or row.version != expected.version):
            raise ChangedError
        receipt = yield from _receipt(request)
        if request.receipt is not None and not receipt:
            if attempt is not None and row is not None:
                return attempt.result(row)  # Perhaps an earlier attempt was applied.
            raise RepeatedError
        # The first read of a pull source is exempt: resuming needs its row.
        is_first = expected is not None and not expected.body.seq
        if attempt is None and request.records and not is_first:
            _check_not_paused(head.body, request)
        if may_inline is None:
            may_inline = yield from _can_inline(environment, head.body, request, expected)
        attempt = _IngestAttempt(environment, request, head, row, id_, may_inline=may_inline)
        attempt.commit.deletes += receipt
        if done is None:  # Effects happen once, however often the commit is retried.
            done = yield from call_effects(environment, attempt.inline)
        commit, may_join = attempt.commit_with(done), may_join and not attempt.source.is_idle
        try:
            versions = (yield Join(commit)) if may_join and not receipt else None
            if versions is None:
                versions = yield commit
        except (ChangedError, OutcomeUnknownError):
            may_join = False
            environment.caches["contended", key] = environment.elapsed_ms()
            continue
        except UnworkableError:
            if not may_inline:
                raise
            may_inline = False
            continue
        written = StoredRow(attempt.row, versions[attempt.source.is_idle])
        if not attempt.source.is_idle:
            environment.caches[key] = head, written, read_ms
        return attempt.result(written)
    raise ChangedError


def _read_rows(
    environment: Environment, key: Key, expected: StoredRow | None
) -> Steps[tuple[Any, StoredRow | None, float]]:
    """Return the head, the row of a source, and when they were read: from the cache if fresh.

    Intervals and backpressure of a cached head may be as old as a worker's watermark.
    """
    head, row, read_ms = environment.caches.pop(key, (None, None, -FOREVER))
    age_ms = environment.elapsed_ms() - read_ms
    is_other = expected is not None and row is not None and row.version != expected.version
    if is_other or not 0 <= age_ms <= environment.config.watermark_ms:
        read_ms = environment.elapsed_ms()
        head, row = yield Read([environment.names.head, key])
    return head, row, read_ms


def _is_contended(environment: Environment, key: Key) -> bool:
    """Return whether the row of a source was written by another process a moment ago.

    A push that has joined a worker's commit would lose such a race for both of them.
    """
    lost_ms: float = environment.caches.get(("contended", key), -FOREVER)
    return 0 <= environment.elapsed_ms() - lost_ms <= CONTENDED_MS


def _can_inline(
    environment: Environment, head: Head, request: IngestRequest, expected: StoredRow | None
) -> Steps[bool]:
    """Return whether weak computations run inline: not after attempts without an outcome.

    A record may have killed the process. The weak computation's own inbox counts its crashes.
    """
    graph = environment.at(head).graph
    readers = {name for name, _ in graph.readers.get(request.stream, ())}
    if not request.records or readers.isdisjoint(graph.weak):
        return True
    subject = fingerprint("\0".join(record.id for record in request.records))
    if expected is not None:  # Pulled records may have no ids; their position does not move.
        subject = str(expected.body.seq)
    name = environment.pipeline.name, request.stream, request.process, subject
    attempts = yield Attempt(name)
    return attempts <= MAX_INLINE_ATTEMPTS  # type: ignore[no-any-return]


def _receipt(request: IngestRequest) -> Steps[list[tuple[Key, int]]]:
    """Return the receipt that the commit deletes, with its version, if it exists."""
    if request.receipt is None:
        return []
    [row] = yield Read([request.receipt])
    return [(request.receipt, row.version)] if row is not None else []


def _check_not_paused(head: Head, request: IngestRequest) -> None:
    reason = head.paused.get(f"{request.stream}:{request.process}")
    if reason is not None:
        raise BackpressureError(f"{request.stream} is paused: {reason}")


class _IngestAttempt:
    """One attempt to commit a request."""

    def __init__(
        self,
        environment: Environment,
        request: IngestRequest,
        head: StoredRow,
        row: StoredRow | None,
        id_: str,
        *,
        may_inline: bool,
    ) -> None:
        self.environment, self.request = environment, request
        self.pipeline = environment.at(head.body)
        self.outgoing = Outbound(environment, head.body)
        self.inline = InlineRun(environment, head.body, self.outgoing, is_open=may_inline)
        self.commit = Commit()
        self.source: SourceRow = row.body if row is not None else SourceRow(is_idle=True)
        floor = self.source.watermark
        if self.source.is_idle:
            # The watermark advanced without this process. It must not while the process returns.
            floor = max(floor, head.body.sources.get(request.stream, 0))
            new_head = with_process(head.body, request.stream, request.process)
            self.commit.puts.append((environment.names.head, new_head, head.version))
        late = self._send(floor)
        self.inline.end()
        self.row = self._row(floor, late, id_)._replace(layout_version=head.body.layout_version)
        self._stored, self._head = row, head.body

    def commit_with(self, done: Collection[PendingEffect]) -> Commit:
        """Return the commit; called once.

        Args:
            done: The effects that weak sinks have had.
        """
        self.inline.spill(done)
        self.row = self.row._replace(inlined=sum_counts(self.source.inlined, self.inline.inlined))
        key = self.environment.names.source(self.request.stream, self.request.process)
        chunks = self.outgoing.inserts()
        if self.environment.follows(self._head) or self.source.sent is not None:
            self.row = with_sent(self.environment, self._head, self.source, self.row, chunks)
        if self._stored is None:
            self.commit.inserts.append((key, self.row))
        else:
            self.commit.puts.append((key, self.row, self._stored.version))
        self.commit.inserts += chunks
        return self.commit

    def result(self, row: StoredRow) -> IngestResult:
        """Return the result, given the source's row as it is now."""
        late = self.row.late - self.source.late
        return IngestResult(len(self.request.records), late, row, self.outgoing.destinations)

    def _send(self, floor: int) -> int:
        """Send the records to the readers of the stream; return how many are late."""
        late, stream, graph = 0, self.request.stream, self.pipeline.graph
        is_source = stream in self.pipeline.sources
        if self.request.records and not (is_source and graph.readers.get(stream)):
            raise UnknownStreamError(
                f"no computation reads {stream} as a source: attach one that does"
            )
        for id_, text, time_ms, value, error, watermark in self.request.records:
            if error:
                record = InboxRecord("", time_ms, stream, id_, text)
                for reader, _ in graph.readers[stream]:
                    self.outgoing.send(Target(reader, "", error), record, late_at=0)
                continue
            floor = max(floor, watermark)
            late_at = floor if time_ms < floor else 0
            late += late_at > 0
            for target in graph.route(stream, value):
                record = InboxRecord(target.key, time_ms, stream, id_, text)
                self.inline.send(target, record, late_at=late_at)
        return late

    def _row(self, floor: int, late: int, id_: str) -> SourceRow:
        source, request, now_ms = self.source, self.request, self.environment.now_ms()
        latest = max([source.latest, *[record.timestamp_ms for record in request.records]])
        latest = max(source.latest, min(latest, now_ms + MAX_AHEAD_MS))
        reached = latest - self.pipeline.disorder_ms(request.stream)
        if request.watermark is not None:
            reached = min(request.watermark, FOREVER)
        return source._replace(
            watermark=max(floor, reached),
            latest=latest,
            seen_ms=now_ms,
            is_idle=False,
            last=(*source.last[1 - REMEMBERED_COMMITS :], id_),
            seq=source.seq + 1,
            records=source.records + len(request.records),
            late=source.late + late,
            dead=source.dead + self.outgoing.dead,
            position=request.position,
            delays=self._delays(),
        )

    def _delays(self) -> tuple[int, ...]:
        if not self.pipeline.percentiles:
            return ()
        times = [record.timestamp_ms for record in self.request.records if not record.error]
        return with_delays(self.source.delays, self.source.latest, times)
