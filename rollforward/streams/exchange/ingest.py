"""Ingest: records come in with the position and the watermark of their source, in one commit.

Only this commit decides whether a record is late: by the watermark that it moves itself. It marks
late records, and every record that follows from them inherits the mark. So no worker has to judge
by a watermark that it read earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollforward.streams.exchange.ingest_attempt import (
    InboundRecord,
    IngestAttempt,
    IngestRequest,
    IngestResult,
)
from rollforward.streams.exchange.inline import PendingEffect, call_effects
from rollforward.streams.exchange.wakeups import wake_for_push
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
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
from rollforward.streams.storage.schema import Head, fingerprint
from rollforward.tracing import start_span

# A record may kill its process, so records run inline only this often before they are durable.
MAX_INLINE_ATTEMPTS = 2
CONTENDED_MS = 1_000  # After a lost race, the pushes to a source join no commits for so long.
MAX_DESCRIBED_CHARS = 20_000  # Of an invalid record.


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
        text = quoted(_description(value)[:MAX_DESCRIBED_CHARS])
    return InboundRecord(id_, text, 0, value, error)


def oversized_record(record: InboundRecord, error: str) -> InboundRecord:
    """Return an invalid record for one that no commit can hold with all its readers."""
    text = quoted(record.text[:MAX_DESCRIBED_CHARS])
    return record._replace(text=text, error=f"cannot be ingested: {error}")


def _description(value: Any) -> str:
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
    yield from wake_for_push(environment, result.destinations, was_joined=result.was_joined)
    return result


def ingest_group(
    environment: Environment, requests: Sequence[IngestRequest]
) -> Steps[list[IngestResult] | None]:
    """Commit the requests of several callers to one source, in their order, as one.

    Returns:
        The result of each; None: nothing was committed, and each needs a commit of its own.

    Raises:
        ChangedError: every attempt lost its race.
    """
    try:
        results = yield from _ingest_all(environment, requests, None)
    except (UnworkableError, BackpressureError, UnknownStreamError):
        return None
    result = results[0]
    yield from wake_for_push(environment, result.destinations, was_joined=result.was_joined)
    return results


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
    late = lower.late + upper.late
    return IngestResult(
        len(records), late, upper.watermark, upper.row, destinations,
        was_joined=lower.was_joined and upper.was_joined,
    )  # fmt: skip


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
    return (yield from _ingest_all(environment, [request], expected))[0]


def _ingest_all(
    environment: Environment, requests: Sequence[IngestRequest], expected: StoredRow | None
) -> Steps[list[IngestResult]]:
    """Commit requests to one source; only a single one may have a receipt."""
    span_name = f"ingest {environment.pipeline.name}/{requests[0].stream}"
    attributes = {"rollforward.records": _count(requests)}
    with start_span(span_name, "PRODUCER", attributes=attributes):
        return (yield from _ingest_in_span(environment, requests, expected))


def _ingest_in_span(
    environment: Environment, requests: Sequence[IngestRequest], expected: StoredRow | None
) -> Steps[list[IngestResult]]:
    request, id_ = requests[0], environment.new_id()
    key = environment.names.source(request.stream, request.process)
    attempt: IngestAttempt | None = None
    may_join = environment.can_join and _count(requests) > 0 and expected is None
    may_join = may_join and not _is_contended(environment, key)
    done: frozenset[PendingEffect] | None = None
    may_inline: bool | None = None
    for _ in range(MAX_ATTEMPTS):
        head, row = yield from _read_rows(environment, key, expected)
        if head is None or not head.body.is_complete:
            yield from read_head(environment)
            continue
        if row is not None and row.body.layout_version > head.body.layout_version:
            continue  # The row was read before the head has changed.
        if attempt is not None and row is not None and id_ in row.body.last:
            return attempt.results(row)  # The reply to the earlier attempt was lost.
        if expected is not None and (row is None or row.version != expected.version):
            raise ChangedError
        receipt = yield from _receipt(request)
        if request.receipt is not None and not receipt:
            if attempt is not None and row is not None:
                return attempt.results(row)  # Perhaps an earlier attempt was applied.
            raise RepeatedError
        # The first read of a pull source is exempt: resuming needs its row.
        is_first = expected is not None and not expected.body.seq
        if attempt is None and _count(requests) and not is_first:
            _check_not_paused(head.body, request)
        if may_inline is None:
            may_inline = yield from _can_inline(environment, head.body, requests, expected)
        attempt = IngestAttempt(environment, requests, head, row, id_, may_inline=may_inline)
        attempt.commit.deletes += receipt
        if done is None:  # Effects happen once, however often the commit is retried.
            done = yield from call_effects(environment, attempt.inline)
        commit, may_join = attempt.commit_with(done), may_join and not attempt.source.is_idle
        try:
            versions = (yield Join(commit)) if may_join and not receipt else None
            if versions is not None:
                attempt.note_joined(versions)
            else:
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
            environment.caches[key] = written, environment.elapsed_ms()
        return attempt.results(written)
    raise ChangedError


def _read_rows(
    environment: Environment, key: Key, expected: StoredRow | None
) -> Steps[tuple[Any, StoredRow | None]]:
    """Return the head and the row of a source: from the cache if both are fresh.

    Intervals and backpressure of a cached head may be as old as a worker's watermark. The workers
    of the process use the same one.
    """
    caches, names, now_ms = environment.caches, environment.names, environment.elapsed_ms()
    row, written_ms = caches.pop(key, (None, -FOREVER))
    head, read_ms = caches.get(names.head, (None, -FOREVER))
    is_other = expected is not None and row is not None and row.version != expected.version
    max_age_ms = environment.config.watermark_ms
    are_fresh = all(0 <= now_ms - at_ms <= max_age_ms for at_ms in (written_ms, read_ms))
    if is_other or not are_fresh:
        head, row = yield Read([names.head, key])
        if head is not None:
            caches[names.head] = head, now_ms
    return head, row


def _is_contended(environment: Environment, key: Key) -> bool:
    """Return whether the row of a source was written by another process a moment ago.

    A push that has joined a worker's commit would lose the race for both of them.
    """
    lost_ms: float = environment.caches.get(("contended", key), -FOREVER)
    return 0 <= environment.elapsed_ms() - lost_ms <= CONTENDED_MS


def _can_inline(
    environment: Environment,
    head: Head,
    requests: Sequence[IngestRequest],
    expected: StoredRow | None,
) -> Steps[bool]:
    """Return whether weak computations run inline: not after attempts without an outcome.

    A record may have killed the process. The weak computation's own inbox counts its crashes.
    """
    graph, first = environment.at(head).graph, requests[0]
    readers = {name for name, _ in graph.readers.get(first.stream, ())}
    if not _count(requests) or readers.isdisjoint(graph.weak):
        return True
    can_inline = True
    for request in requests:  # Each has a count, since it may be repeated with others.
        if not request.records:
            continue
        subject = fingerprint("\0".join(record.id for record in request.records))
        if expected is not None:  # Pulled records may have no ids; their position does not move.
            subject = str(expected.body.seq)
        attempts = yield Attempt((environment.pipeline.name, first.stream, first.process, subject))
        can_inline = can_inline and attempts <= MAX_INLINE_ATTEMPTS
    return can_inline


def _count(requests: Sequence[IngestRequest]) -> int:
    return sum(len(request.records) for request in requests)


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
