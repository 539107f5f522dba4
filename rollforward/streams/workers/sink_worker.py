"""Sink workers: they consume records in the transaction that writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollforward.app_code import SIGNALS
from rollforward.runtime.texts import describe_error, storable
from rollforward.streams.exchange.inline import sink_id
from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.execution.quarantine import (
    MAX_CRASHES,
    MAX_ERROR_CHARS,
    WORKERS_DIED,
    find_culprit,
)
from rollforward.streams.model.bundle import Counts, Effects, Failure, KeyedRecord
from rollforward.streams.model.codecs import Undecodable
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.publications.log import log_rows
from rollforward.streams.publications.publication import Publication
from rollforward.streams.storage.inbox import Bundle, gather
from rollforward.streams.storage.remote_calls import (
    Commit,
    Delivery,
    Steps,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.workers.inbox_reader import bundle_span
from rollforward.streams.workers.lease import CAREFUL_AFTER
from rollforward.streams.workers.worker import Worker

# In one bundle: the rest of a chunk that is consumed in part is written again.
MAX_CHUNKS = 10


class SinkWorker(Worker):
    """One run of one interval of a sink."""

    def step(self) -> Steps[bool]:
        """Write one bundle; return False if there was nothing to do."""
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
            suspect = gather(chunks, self.ids.accepted, 1, are_decoded=False)
            if not (yield from self._note_suspect(suspect)):
                return True
        if self.interval.crash_count >= MAX_CRASHES:
            yield from self._quarantine_first(chunks, WORKERS_DIED)
            return True
        try:
            with find_culprit():
                codecs = self.environment.pipeline.codecs
                bundle = gather(chunks, self.ids.accepted, limit, codecs)
                values, effects = self._values(bundle)
            self.is_behind = len(chunks) >= max_chunks or bundle.is_truncated(effects.consumed)
            with bundle_span(self.environment.pipeline.name, self.name, bundle):
                yield from self._write(bundle, values, effects)
        except UnworkableError as error:
            if limit == 1:
                yield from self._quarantine_first(chunks, str(error) or type(error).__name__)
            else:
                self.limit = limit // 4 or 1
        else:
            self.limit = min(2 * limit, self.config.max_records)
        return True

    @property
    def sink(self) -> Sink:
        assert isinstance(self.computation, Sink)
        return self.computation

    def _values(self, bundle: Bundle) -> tuple[list[Any], Effects]:
        """Convert records to the values that the sink writes; a failed record has none."""
        values, effects = list[Any](), Effects(consumed=len(bundle.inputs))
        for record, input_ in zip(_records(bundle, self.sink), bundle.inputs, strict=True):
            if isinstance(record.value, Undecodable):
                effects.failures.append(_failure(input_, record.value.error))
                continue
            try:
                values.append(self.sink.make(record))
            except SIGNALS:
                raise
            except BaseException as error:
                effects.failures.append(_failure(input_, describe_error(error)))
        effects.counts = Counts(records=len(values), dead=len(effects.failures))
        return values, effects

    def _quarantine_first(self, chunks: Sequence[tuple[str, StoredRow]], error: str) -> Steps[None]:
        """Send the first new record of some chunks, if there is one, to the dead letters."""
        bundle = gather(chunks, self.ids.accepted, 1, are_decoded=False)
        failures = [_failure(input_, error) for input_ in bundle.inputs]
        dead = len(failures)
        effects = Effects(failures=failures, counts=Counts(dead=dead), consumed=dead)
        yield from self._write(bundle, (), effects)

    def _write(self, bundle: Bundle, values: Sequence[Any], effects: Effects) -> Steps[None]:
        commit, outgoing = Commit(), Outbound(self.environment, self.head)
        if values and isinstance(self.sink, Publication):
            published, now_ms = self.head.published.get(self.name, 0), self.environment.now_ms()
            commit.inserts += log_rows(
                self.names, self.name, self.lo, self.interval, published, now_ms, values
            )
        elif values:
            commit.delivery = Delivery((self.name, self.sink.version), values)
        with find_culprit():
            interval = self._build_commit(bundle, effects, commit, outgoing)
            commit.inserts += outgoing.inserts()
        commit_ms = self.environment.elapsed_ms()
        yield from self.commit(commit, interval)
        self._measure(bundle, effects, commit_ms, is_behind=self.is_behind)


def _records(bundle: Bundle, sink: Sink) -> list[SinkRecord]:
    """Return the records of a bundle, with ids that stay when a chunk is consumed in part."""
    records = []
    for number, input_ in enumerate(bundle.inputs):
        if sink.weak and input_.id:  # The sink may have acted on it before, under this id.
            id_ = sink_id(sink, input_.stream, input_.id)
        else:
            id_ = bundle.name_of(number)
        key, value, time_ms, stream, late_at, *_ = input_
        records.append(SinkRecord(id_, key, value, time_ms, stream, late_at > 0))
    return records


def _failure(input_: KeyedRecord, error: str) -> Failure:
    return Failure(input_.key, input_, storable(error, MAX_ERROR_CHARS))
