"""Workers of sinks: they take records out of an inbox by the transaction that writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.runtime.texts import storable
from pipelines.streams.calls import Commit, Delivery, SinkFailedError, Steps, TooLargeError
from pipelines.streams.giving_up import MAX_DEATHS, WORKERS_DIED
from pipelines.streams.inbox import Batch, gather, has_ids
from pipelines.streams.keys import Counts, Effects, Failure, Input
from pipelines.streams.mail import Mail
from pipelines.streams.passing import sink_id
from pipelines.streams.sink import Sink, SinkRecord
from pipelines.streams.worker import Worker

# Of one round: the rest of a chunk that is taken in part is written again.
MAX_CHUNKS = 10
MAX_ERROR_CHARS = 500


class SinkWorker(Worker):
    """One run of one interval of a sink."""

    def step(self) -> Steps[bool]:
        """Write one batch; return False if there was nothing to do."""
        yield from self._refresh()
        max_chunks = min(MAX_CHUNKS, self.pace.max_chunks)
        chunks = yield self._scan(max_chunks)
        if not chunks:
            return False
        if has_ids(chunks):
            yield from self.ids.load(self.interval, self.environment.now_ms())
            self.ids.expire(self.interval, self.environment.now_ms())
        limit = min(self.limit, self.sink.max_records)
        batch = gather(chunks, self.ids.seen, limit)
        if batch.inputs and self.interval.deaths >= MAX_DEATHS:
            yield from self._bury(batch, WORKERS_DIED)
            return True
        made, effects = self._made(batch)
        self.is_behind = batch.is_full(effects.taken, max_chunks)
        try:
            yield from self._write(batch, made, effects)
        except (SinkFailedError, TooLargeError) as error:
            if len(made) == 1:
                yield from self._bury(batch, str(error) or "too large for a transaction")
            else:
                self.limit = max(1, len(made) // 4)
        else:
            self.limit = min(2 * limit, self.pace.max_records)
        return True

    @property
    def sink(self) -> Sink:
        assert isinstance(self.computation, Sink)
        return self.computation

    def _made(self, batch: Batch) -> tuple[list[Any], Effects]:
        """Return what records became; those that become nothing have failed."""
        made, effects = list[Any](), Effects(taken=len(batch.inputs))
        for record, each in zip(_records(batch, self.sink.weak), batch.inputs, strict=True):
            try:
                made.append(self.sink.make(record))
            except Exception as error:
                effects.failures.append(_failure(each, f"{type(error).__name__}: {error}"))
        effects.counts = Counts(records=len(made), dead=len(effects.failures))
        return made, effects

    def _bury(self, batch: Batch, error: str) -> Steps[None]:
        """Send the first record of a batch to the dead letters."""
        failure = _failure(batch.inputs[0], error)
        effects = Effects(failures=[failure], counts=Counts(dead=1), taken=1)
        yield from self._write(batch, (), effects)

    def _write(self, batch: Batch, made: Sequence[Any], effects: Effects) -> Steps[None]:
        commit, mail = Commit(), Mail(self.environment, self.head)
        if made:
            commit.delivery = Delivery((self.name, self.sink.version), made)
        interval = self._outcome(batch, effects, commit, mail)
        commit.inserts += mail.inserts()
        yield from self.commit(commit, interval)


def _records(batch: Batch, is_weak: bool) -> list[SinkRecord]:
    """Return the records of a batch; their ids stay when a chunk loses its first letters."""
    records = []
    for (chunk, letter), each in zip(batch.places, batch.inputs, strict=True):
        name, found = batch.chunks[chunk]
        if is_weak and each.id:  # It may have been handed on before, by this name.
            id_ = sink_id(each.stream, each.id)
        else:
            id_ = f"{name.rpartition(':')[2]}.{len(found.body) - letter}"
        records.append(SinkRecord(id_, each.key, each.value, each.at, each.stream, each.is_late))
    return records


def _failure(each: Input, error: str) -> Failure:
    return Failure(each.key, each, storable(error, MAX_ERROR_CHARS))
