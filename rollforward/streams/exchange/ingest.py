"""How records come in: with the position and the watermark of their source, in one commit.

Whether a record is late is decided here and nowhere else: by the watermark that the same commit
moves. What is late is marked, and so is all that it leads to: no worker has to judge by a watermark
that it read a moment ago.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rollforward.streams.exchange.delays import with_delays
from rollforward.streams.exchange.inline import InlineRun, PendingEffect, call_effects, sum_counts
from rollforward.streams.exchange.outgoing import Outgoing
from rollforward.streams.exchange.wakeups import wake_for_push
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import MAX_ATTEMPTS, is_complete, read_head
from rollforward.streams.graph.plan import with_process
from rollforward.streams.model.bundle import Target
from rollforward.streams.model.errors import BackpressureError, BadRecordError, UnknownStreamError
from rollforward.streams.model.json_text import quoted
from rollforward.streams.model.records import FOREVER, check_time, value_text
from rollforward.streams.storage.remote_calls import (
    Attempt,
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    Read,
    RepeatedError,
    Steps,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.storage.schema import Head, InboxRecord, SourceRow, fingerprint

# A clock of a source may be so far ahead of ours.
MAX_AHEAD_MS = 60_000
REMEMBERED = 20
# So often records are passed through weak stages before they are durable; each time may kill.
MAX_PASSES = 2
MAX_DESCRIBED = 20_000  # Characters of what is no record.


class IncomingRecord(NamedTuple):
    """A record that comes in: its id (empty: none is needed), its value, also as text.

    `error`: why it is none; then it becomes a dead letter of each of its readers.
    """

    id: str
    text: str
    timestamp_ms: int
    value: Any
    error: str = ""


@dataclass(frozen=True)
class IngestRequest:
    """What one commit of a source brings.

    Attributes:
        watermark: As the source states it; None: it follows the latest record.
        position: Where the source goes on; only of a `PullSource`.
        receipt: A row that is there until this was let in: the commit deletes it.
    """

    stream: str
    process: str
    records: Sequence[IncomingRecord]
    watermark: int | None = None
    position: Any = None
    receipt: Key | None = None


class IngestResult(NamedTuple):
    """What came of an offer: the source's row as it is then, and who has to be woken."""

    records: int
    late: int
    found: StoredRow
    destinations: Sequence[tuple[str, int]]


def incoming_record(
    environment: Environment, stream: str, value: Any, at: int, id_: str = ""
) -> IncomingRecord:
    """Return a record that comes in, checked.

    Raises:
        BadRecordError: it cannot come in.
    """
    environment.pipeline.source(stream)
    return IncomingRecord(id_, value_text(value), check_time(at), value)


def invalid_record(id_: str, value: Any, error: str) -> IncomingRecord:
    """Return what comes in, and is no record, with what can be said of it."""
    try:
        text = value_text(value)
    except BadRecordError:
        text = quoted(_described(value)[:MAX_DESCRIBED])
    return IncomingRecord(id_, text, 0, value, error)


def oversized_record(each: IncomingRecord, error: str) -> IncomingRecord:
    """Return a record that no commit can hold with all its readers, as it can be kept."""
    return each._replace(text=quoted(each.text[:MAX_DESCRIBED]), error=f"cannot be let in: {error}")


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # It is nested too deeply, or it is of a kind that cannot say what it is.
        return type(value).__name__


def ingest(environment: Environment, request: IngestRequest) -> Steps[IngestResult]:
    """Let records in, and wake their readers; return when the records are durable.

    What one commit cannot hold is let in by several. Only the last of them moves the watermark.

    Raises:
        ChangedError: too many others were faster; some of it may have been let in.
        BadRecordError: a record cannot be written; some others may have been let in.
    """
    result = yield from _ingest_by_parts(environment, request)
    yield from wake_for_push(environment, result.destinations)
    return result


def _ingest_by_parts(environment: Environment, request: IngestRequest) -> Steps[IngestResult]:
    records = request.records
    try:
        return (yield from ingest_without_wakeup(environment, request))
    except UnworkableError as error:
        if len(records) < 2:
            raise BadRecordError(f"a record cannot be written: {error}") from error
    middle = len(records) // 2
    parts = []
    for part, watermark in ((records[:middle], 0), (records[middle:], request.watermark)):
        parts.append((yield from _ingest_by_parts(
            environment, replace(request, records=part, watermark=watermark)
        )))  # fmt: skip
    first, last = parts
    destinations = sorted({*first.destinations, *last.destinations})
    return IngestResult(len(records), first.late + last.late, last.found, destinations)


def ingest_without_wakeup(
    environment: Environment, request: IngestRequest, expected: StoredRow | None = None
) -> Steps[IngestResult]:
    """Let records in, and wake nobody.

    What this process has read or written last is not read again: if somebody else has written
    since, the commit fails, and the next attempt reads.

    Args:
        expected: The row that the offer follows from; None: whatever it is.

    Raises:
        ChangedError: the row is not the expected one, or too many others were faster.
        BackpressureError: the source has to wait; nothing was let in.
        RepeatedError: the offer's receipt is gone.
    """
    id_, key = environment.new_id(), environment.names.source(request.stream, request.process)
    plan: _IngestAttempt | None = None
    handed: frozenset[PendingEffect] | None = None
    passes: bool | None = None
    for _ in range(MAX_ATTEMPTS):
        head, found, read_ms = environment.caches.pop(key, (None, None, -FOREVER))
        # What the head says of intervals, and of who has to wait, may be as old as for workers.
        age_ms = environment.elapsed_ms() - read_ms
        is_other = expected is not None and found is not None and found.version != expected.version
        if is_other or not 0 <= age_ms <= environment.config.watermark_ms:
            read_ms = environment.elapsed_ms()
            head, found = yield Read([environment.names.head, key])
        if not is_complete(environment, head):
            yield from read_head(environment)
            continue
        if found is not None and found.body.layout_version > head.body.layout_version:
            continue  # It was read before the head has changed.
        if plan is not None and found is not None and id_ in found.body.last:
            return plan.result(found)  # The reply to the earlier attempt was lost.
        if expected is not None and (found is None or found.version != expected.version):
            raise ChangedError
        receipt = yield from _receipt(request)
        if request.receipt is not None and not receipt:
            if plan is not None and found is not None:
                return plan.result(found)  # By an earlier attempt, it may be.
            raise RepeatedError
        # A source that is pulled for the first time is let in: whoever lets it go knows of it then.
        is_first = expected is not None and not expected.body.seq
        if plan is None and request.records and not is_first:
            _check_not_paused(head.body, request)
        if passes is None:
            passes = yield from _may_inline(environment, head.body, request, expected)
        plan = _IngestAttempt(environment, request, head, found, id_, passes=passes)
        plan.commit.deletes += receipt
        if handed is None:  # Once, however often the commit is tried.
            handed = yield from call_effects(environment, plan.inline)
        try:
            versions = yield plan.commit_with(handed)
        except (ChangedError, OutcomeUnknownError):
            continue
        except UnworkableError:
            if not passes:
                raise
            passes = False
            continue
        found = StoredRow(plan.row, versions[plan.was.is_idle])
        if not plan.was.is_idle:
            environment.caches[key] = head, found, read_ms
        return plan.result(found)
    raise ChangedError


def _may_inline(
    environment: Environment, head: Head, request: IngestRequest, expected: StoredRow | None
) -> Steps[bool]:
    """Return whether hooks of weak stages are run: not if earlier attempts did not come to an end.

    One of the records may kill its process. In the inbox of the weak stage deaths are counted.
    """
    graph = environment.at(head).graph
    readers = {name for name, _ in graph.readers.get(request.stream, ())}
    if not request.records or readers.isdisjoint(graph.weak):
        return True
    what = fingerprint("\0".join(each.id for each in request.records))
    if expected is not None:  # Pulled: it may have no ids, and the position does not move.
        what = str(expected.body.seq)
    name = environment.pipeline.name, request.stream, request.process, what
    attempts = yield Attempt(name)
    return attempts <= MAX_PASSES  # type: ignore[no-any-return]


def _receipt(request: IngestRequest) -> Steps[list[tuple[Key, int]]]:
    """Return the row that the commit of an offer deletes, with its version, if it is there."""
    if request.receipt is None:
        return []
    [row] = yield Read([request.receipt])
    return [(request.receipt, row.version)] if row is not None else []


def _check_not_paused(head: Head, request: IngestRequest) -> None:
    why = head.paused.get(f"{request.stream}:{request.process}")
    if why is not None:
        raise BackpressureError(f"{request.stream} has to wait: {why}")


class _IngestAttempt:
    """One attempt to let an offer in."""

    def __init__(
        self,
        environment: Environment,
        request: IngestRequest,
        head: StoredRow,
        found: StoredRow | None,
        id_: str,
        *,
        passes: bool,
    ) -> None:
        self.environment, self.request = environment, request
        self.pipeline = environment.at(head.body)
        self.outgoing = Outgoing(environment, head.body)
        self.inline = InlineRun(environment, head.body, self.outgoing, is_open=passes)
        self.commit = Commit()
        self.was: SourceRow = found.body if found is not None else SourceRow(is_idle=True)
        floor = self.was.watermark
        if self.was.is_idle:
            # The watermark has gone on without it. It may not while this one comes back.
            floor = max(floor, head.body.sources.get(request.stream, 0))
            known = with_process(head.body, request.stream, request.process)
            self.commit.puts.append((environment.names.head, known, head.version))
        late = self._send(floor)
        self.inline.end()
        self.row = self._row(floor, late, id_)._replace(layout_version=head.body.layout_version)
        self._found = found

    def commit_with(self, handed: Collection[PendingEffect]) -> Commit:
        """Return the commit, to be made once.

        Args:
            handed: What weak sinks have acted on.
        """
        self.inline.spill(handed)
        self.row = self.row._replace(inlined=sum_counts(self.was.inlined, self.inline.inlined))
        key = self.environment.names.source(self.request.stream, self.request.process)
        if self._found is None:
            self.commit.inserts.append((key, self.row))
        else:
            self.commit.puts.append((key, self.row, self._found.version))
        self.commit.inserts += self.outgoing.inserts()
        return self.commit

    def result(self, found: StoredRow) -> IngestResult:
        """Return what has come of it, with the source's row as it is now."""
        late = self.row.late - self.was.late
        return IngestResult(len(self.request.records), late, found, self.outgoing.destinations)

    def _send(self, floor: int) -> int:
        late, stream, graph = 0, self.request.stream, self.pipeline.graph
        is_source = stream in self.pipeline.sources
        if self.request.records and not (is_source and graph.readers.get(stream)):
            raise UnknownStreamError(
                f"nobody reads {stream} as it comes from outside: attach a computation that does"
            )
        for id_, text, at, value, error in self.request.records:
            if error:
                letter = InboxRecord("", at, stream, id_, text)
                for reader, _ in graph.readers[stream]:
                    self.outgoing.send(Target(reader, "", error), letter, late_at=0)
                continue
            late_at = floor if at < floor else 0
            late += late_at > 0
            for target in graph.route(stream, value):
                letter = InboxRecord(target.key, at, stream, id_, text)
                self.inline.send(target, letter, late_at=late_at)
        return late

    def _row(self, floor: int, late: int, id_: str) -> SourceRow:
        was, request, now_ms = self.was, self.request, self.environment.now_ms()
        latest = max([was.latest, *[each.timestamp_ms for each in request.records]])
        latest = max(was.latest, min(latest, now_ms + MAX_AHEAD_MS))
        reached = latest - self.pipeline.disorder_ms(request.stream)
        if request.watermark is not None:
            reached = min(request.watermark, FOREVER)
        return was._replace(
            watermark=max(floor, reached),
            latest=latest,
            seen_ms=now_ms,
            is_idle=False,
            last=(*was.last[1 - REMEMBERED :], id_),
            seq=was.seq + 1,
            records=was.records + len(request.records),
            late=was.late + late,
            dead=was.dead + self.outgoing.dead,
            position=request.position,
            delays=self._delays(),
        )

    def _delays(self) -> tuple[int, ...]:
        if not self.pipeline.percentiles:
            return ()
        times = [each.timestamp_ms for each in self.request.records if not each.error]
        return with_delays(self.was.delays, self.was.latest, times)
