"""One attempt to ingest: from the row of a source and the head to a commit.

Several requests to one source can share a commit. They are applied in their order, as if each had a
commit of its own: the watermark that one of them moves decides which records of the next are late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollforward.streams.exchange.delays import with_delays
from rollforward.streams.exchange.inline import InlineRun, PendingEffect, sum_counts
from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.exchange.sent import with_sent
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import with_process
from rollforward.streams.model.bundle import Target
from rollforward.streams.model.errors import UnknownStreamError
from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.layout import creation_layout
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import CHUNK, InboxRecord, SourceRow, inbox_of

# The clock of a source may be this far ahead of ours.
MAX_AHEAD_MS = 60_000
REMEMBERED_COMMITS = 20


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
    """Outcome of a request.

    Attributes:
        watermark: The source's watermark after this request.
        row: The row of the source, as it is now.
        destinations: The intervals to wake.
        was_joined: A worker has joined the commit; the destinations are those that are left.
    """

    records: int
    late: int
    watermark: int
    row: StoredRow
    destinations: Sequence[tuple[str, int]]
    was_joined: bool


class IngestAttempt:
    """One attempt to commit the requests of a source, one after another."""

    def __init__(
        self,
        environment: Environment,
        requests: Sequence[IngestRequest],
        head: StoredRow,
        row: StoredRow | None,
        id_: str,
        *,
        may_inline: bool,
    ) -> None:
        self.environment, self.requests = environment, requests
        self._stream, self._process = requests[0].stream, requests[0].process
        self.pipeline = environment.at(head.body)
        self.outgoing = Outbound(environment, head.body)
        self.inline = InlineRun(environment, head.body, self.outgoing, is_open=may_inline)
        self.commit = Commit()
        self.source: SourceRow = row.body if row is not None else SourceRow(is_idle=True)
        floor = self.source.watermark
        if self.source.is_idle:
            # The watermark advanced without this process. It must not while the process returns.
            floor = max(floor, head.body.sources.get(self._stream, 0))
            new_head = with_process(head.body, self._stream, self._process)
            self.commit.puts.append((environment.names.head, new_head, head.version))
        self._rows = list[SourceRow]()  # After each request.
        after = self.source
        for request in requests:
            late = self._send(request, floor)
            after = self._after(after, request, floor, late)
            floor = after.watermark
            self._rows.append(after)
        self.inline.end()
        self.row = after._replace(
            is_idle=False,
            last=(*self.source.last[1 - REMEMBERED_COMMITS :], id_),
            seq=self.source.seq + 1,
            dead=self.source.dead + self.outgoing.dead,
            layout_version=head.body.layout_version,
        )
        self._stored, self._head = row, head.body
        # The inboxes that got chunks by a commit that a worker has joined; None: it was not joined.
        self._written_inboxes: set[str] | None = None

    def commit_with(self, done: Collection[PendingEffect]) -> Commit:
        """Return the commit; called once.

        Args:
            done: The effects that weak sinks have had.
        """
        self.inline.spill(done)
        self.row = self.row._replace(inlined=sum_counts(self.source.inlined, self.inline.inlined))
        key = self.environment.names.source(self._stream, self._process)
        chunks = self.outgoing.inserts()
        if self.environment.follows(self._head) or self.source.sent is not None:
            self.row = with_sent(self.environment, self._head, self.source, self.row, chunks)
        if self._stored is None:
            self.commit.inserts.append((key, self.row))
        else:
            self.commit.puts.append((key, self.row, self._stored.version))
        self.commit.inserts += chunks
        return self.commit

    def note_joined(self, versions: Sequence[int]) -> None:
        """Note that a worker has joined the commit: nobody need wake it for what it has consumed.

        Args:
            versions: The versions of the commit's rows; 0: a chunk that was consumed.
        """
        rows = zip(self.commit.rows, versions, strict=True)
        self._written_inboxes = {
            inbox_of(key.name) for (key, _), at in rows if key.kind == CHUNK and at
        }

    def results(self, row: StoredRow) -> list[IngestResult]:
        """Return the result of each request, given the source's row as it is now."""
        destinations, earlier = self._destinations(), [self.source, *self._rows]
        return [
            IngestResult(
                len(request.records),
                after.late - before.late,
                after.watermark,
                row,
                destinations,
                self._written_inboxes is not None,
            )
            for request, before, after in zip(self.requests, earlier, self._rows, strict=False)
        ]

    def _destinations(self) -> list[tuple[str, int]]:
        """Return the intervals to wake."""
        written, names, head = self._written_inboxes, self.environment.names, self._head
        return [
            (name, lo)
            for name, lo in self.outgoing.destinations
            if written is None or names.inbox(name, lo, creation_layout(head, name, lo)) in written
        ]

    def _send(self, request: IngestRequest, floor: int) -> int:
        """Send the records of a request to the readers of the stream; return how many are late."""
        late, stream, graph = 0, request.stream, self.pipeline.graph
        is_source = stream in self.pipeline.sources
        if request.records and not (is_source and graph.readers.get(stream)):
            raise UnknownStreamError(
                f"no computation reads {stream} as a source: attach one that does"
            )
        for id_, text, time_ms, value, error, watermark in request.records:
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

    def _after(self, before: SourceRow, request: IngestRequest, floor: int, late: int) -> SourceRow:
        """Return the row of the source after a request."""
        now_ms = self.environment.now_ms()
        latest = max([before.latest, *[record.timestamp_ms for record in request.records]])
        latest = max(before.latest, min(latest, now_ms + MAX_AHEAD_MS))
        reached = latest - self.pipeline.disorder_ms(request.stream)
        if request.watermark is not None:
            reached = min(request.watermark, FOREVER)
        return before._replace(
            watermark=max(floor, reached),
            latest=latest,
            seen_ms=now_ms,
            records=before.records + len(request.records),
            late=before.late + late,
            position=request.position,
            delays=self._delays(before, request),
        )

    def _delays(self, before: SourceRow, request: IngestRequest) -> tuple[int, ...]:
        if not self.pipeline.percentiles:
            return ()
        times = [record.timestamp_ms for record in request.records if not record.error]
        return with_delays(before.delays, before.latest, times)
