"""Workers of sinks: they take records out of an inbox by the transaction that writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollforward.runtime.texts import storable
from rollforward.streams.exchange.inline import sink_id
from rollforward.streams.exchange.outgoing import Outgoing
from rollforward.streams.execution.quarantine import (
    MAX_CRASHES,
    MAX_ERROR_CHARS,
    WORKERS_DIED,
    blame_records,
)
from rollforward.streams.model.bundle import Counts, Effects, Failure, KeyedRecord
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.storage.inbox import Bundle, gather
from rollforward.streams.storage.remote_calls import (
    Commit,
    Delivery,
    Steps,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.workers.lease import CAREFUL_AFTER
from rollforward.streams.workers.worker import Worker

# Of one round: the rest of a chunk that is taken in part is written again.
MAX_CHUNKS = 10


class SinkWorker(Worker):
    """One run of one interval of a sink."""

    def step(self) -> Steps[bool]:
        """Write one batch; return False if there was nothing to do."""
        yield from self._refresh()
        if (yield from self.forward()):
            return True
        max_chunks = min(MAX_CHUNKS, self.config.max_chunks)
        chunks = self.ready((yield self._scan(max_chunks)))
        if not chunks:
            return False
        yield from self._load_ids(chunks)
        limit = min(self.limit, self.sink.max_records)
        if self.interval.crash_count >= CAREFUL_AFTER:
            first = gather(chunks, self.ids.accepted, 1, are_decoded=False)
            if not (yield from self._note_suspect(first)):
                return True
        if self.interval.crash_count >= MAX_CRASHES:
            yield from self._bury(chunks, WORKERS_DIED)
            return True
        try:
            with blame_records():
                batch = gather(chunks, self.ids.accepted, limit)
                made, effects = self._made(batch)
            self.is_behind = len(chunks) >= max_chunks or batch.is_cut(effects.consumed)
            yield from self._write(batch, made, effects)
        except UnworkableError as error:
            if limit == 1:
                yield from self._bury(chunks, str(error) or type(error).__name__)
            else:
                self.limit = limit // 4 or 1
        else:
            self.limit = min(2 * limit, self.config.max_records)
        return True

    @property
    def sink(self) -> Sink:
        assert isinstance(self.computation, Sink)
        return self.computation

    def _made(self, batch: Bundle) -> tuple[list[Any], Effects]:
        """Return what records became; those that become nothing have failed."""
        made, effects = list[Any](), Effects(consumed=len(batch.inputs))
        for record, each in zip(_records(batch, self.sink), batch.inputs, strict=True):
            try:
                made.append(self.sink.make(record))
            except Exception as error:
                effects.failures.append(_failure(each, f"{type(error).__name__}: {error}"))
        effects.counts = Counts(records=len(made), dead=len(effects.failures))
        return made, effects

    def _bury(self, chunks: Sequence[tuple[str, StoredRow]], error: str) -> Steps[None]:
        """Send the first record of some chunks, if one is new, to the dead letters."""
        batch = gather(chunks, self.ids.accepted, 1, are_decoded=False)
        failures = [_failure(each, error) for each in batch.inputs]
        dead = len(failures)
        effects = Effects(failures=failures, counts=Counts(dead=dead), consumed=dead)
        yield from self._write(batch, (), effects)

    def _write(self, batch: Bundle, made: Sequence[Any], effects: Effects) -> Steps[None]:
        commit, outgoing = Commit(), Outgoing(self.environment, self.head)
        if made:
            commit.delivery = Delivery((self.name, self.sink.version), made)
        with blame_records():
            interval = self._build_commit(batch, effects, commit, outgoing)
            commit.inserts += outgoing.inserts()
        yield from self.commit(commit, interval)


def _records(batch: Bundle, sink: Sink) -> list[SinkRecord]:
    """Return the records of a batch; their ids stay when a chunk loses its first letters."""
    records = []
    for number, each in enumerate(batch.inputs):
        if sink.weak and each.id:  # It may have been handed on before, by this name.
            id_ = sink_id(sink, each.stream, each.id)
        else:
            id_ = batch.name_of(number)
        records.append(
            SinkRecord(id_, each.key, each.value, each.timestamp_ms, each.stream, each.late_at > 0)
        )
    return records


def _failure(each: KeyedRecord, error: str) -> Failure:
    return Failure(each.key, each, storable(error, MAX_ERROR_CHARS))
