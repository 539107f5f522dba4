"""Inlining (operator chaining): weak computations run in the commit of their sender.

A weak computation is stateless, so no worker needs to own its keys. Senders run it inline: a
source before it commits new records, a worker on the output of its bundle. The results go into the
inboxes of their readers, in the commit that makes the input durable or consumes it. Until then the
input holds the watermark, and a commit that fails leaves nothing behind.

Some records go into the computation's inbox as for any other computation: records beyond the time
limit, records whose hook failed, and late ones. A late record may have been sent on time before.
It must stay behind that copy, which may be pending in an inbox.

A weak sink has effects outside, so it acts before the commit. Records that it has not acted on
within the time limit go into its inbox with the commit (`effect_pool.py`). It may see a record
again whose commit failed, or a record that was never accepted because its push failed.

Source: T. Akidau and others, "MillWheel", 2013, 5.1.3. There a weak production waits for its
receivers' acknowledgement, and stragglers are checkpointed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.execution.bundle_runner import MAX_PRODUCED_BYTES, run_bundle
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.bundle import EmittedRecord, Target, derived_id
from rollforward.streams.model.codecs import Codecs, Undecodable
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.storage.inbox import inputs_of
from rollforward.streams.storage.remote_calls import CallEffects, Steps
from rollforward.streams.storage.schema import Head, InboxRecord
from rollforward.tracing import start_span


class PendingEffect(NamedTuple):
    """A record for a weak sink, before the sink acts on it or it goes into the sink's inbox.

    `version`: of the sink. `id`: the record's id at this sink, on either way.
    """

    target: Target
    record: InboxRecord
    version: int
    id: str

    def sink_record(self, codecs: Codecs) -> SinkRecord:
        record = self.record
        value = codecs.read(record.text)
        return SinkRecord(self.id, record.key, value, record.timestamp_ms, record.stream)


def sink_id(sink: Sink, stream: str, id_: str) -> str:
    """Return the id of a record at a weak sink; the id differs from sink to sink.

    A payment service may get records from several sinks and pipelines, and drops known ids.
    """
    return derived_id(stream, id_, sink.pipeline, sink.name)


class InlineRun:
    """Records of one commit on their way through weak computations."""

    def __init__(
        self, environment: Environment, head: Head, outgoing: Outbound, *, is_open: bool = True
    ) -> None:
        """Begin a commit.

        Args:
            is_open: Whether computations may run inline; if not, all records go into inboxes.
        """
        self._environment, self._head, self._outgoing = environment, head, outgoing
        self._graph = environment.at(head).graph
        self._weak: Collection[str] = self._graph.weak if is_open else ()
        self._pending: dict[str, list[InboxRecord]] = {}
        self._began_ms = environment.elapsed_ms()
        self._budget = environment.config.max_inlined
        self._bytes = 0
        self.effects: list[PendingEffect] = []
        self.inlined: Counter[str] = Counter()

    def produce(self, productions: Sequence[EmittedRecord]) -> None:
        """Send the records that hooks have emitted."""
        if not self._weak:
            self._outgoing.produce(productions)
            return
        for stream, text, time_ms, late_at, targets, id_ in productions:
            for target in targets:
                record = InboxRecord(target.key, time_ms, stream, id_, text)
                self.send(target, record, late_at=late_at)

    def send(self, target: Target, record: InboxRecord, *, late_at: int) -> None:
        """Queue a record for a weak computation, or send it to the inbox of another one."""
        name = target.computation
        if name not in self._weak or late_at or target.error:
            self._outgoing.send(target, record, late_at=late_at)
        elif isinstance(sink := self._graph.computations[name], Sink):
            self._add_effect(sink, target, record)
        else:
            self._pending.setdefault(name, []).append(record)

    def end(self) -> None:
        """Run the weak computations on queued records, upstream ones first."""
        if not self._pending:
            return
        for name in self._graph.order:
            records = self._pending.pop(name, None)
            if records:
                self._run(name, records)

    def spill(self, done: Collection[PendingEffect]) -> None:
        """Send pending effects to the inboxes of their sinks, except completed ones."""
        for effect in self.effects:
            if effect in done:
                self.inlined[effect.target.computation] += 1
            else:
                self._outgoing.send(effect.target, effect.record, late_at=0)

    def _add_effect(self, sink: Sink, target: Target, record: InboxRecord) -> None:
        if record.id:
            id_ = sink_id(sink, record.stream, record.id)
            self.effects.append(PendingEffect(target, record, sink.version, id_))
        else:  # Without an id the other side could not recognize a repetition.
            self._outgoing.send(target, record, late_at=0)

    def _run(self, name: str, records: list[InboxRecord]) -> None:
        affordable = records[: self._budget]
        inputs = inputs_of(affordable, codecs := self._environment.pipeline.codecs, late_at=0)
        span_name = f"inline {self._environment.pipeline.name}/{name}"
        with start_span(span_name, attributes={"rollforward.records": len(inputs)}):
            effects = run_bundle(
                self._graph.computations[name],
                {},
                inputs,
                watermark=self._head.inputs.get(name, 0),
                now_ms=self._environment.now_ms(),
                route=self._graph.route,
                codecs=codecs,
                is_over=self._is_over,
            )
        self._budget -= effects.consumed
        self.inlined[name] += effects.counts.records
        failed = {id(failure.input) for failure in effects.failures}
        spilled = [
            record
            for record, input_ in zip(affordable, inputs, strict=True)
            if id(input_) in failed
        ]
        for record in [*spilled, *records[effects.consumed :]]:
            self._outgoing.send(Target(name, record.key), record, late_at=0)
        self._bytes += sum(len(output.text) * len(output.targets) for output in effects.productions)
        self.produce(effects.productions)

    def _is_over(self) -> bool:
        took_ms = self._environment.elapsed_ms() - self._began_ms
        return took_ms > self._environment.config.inline_ms or self._bytes >= MAX_PRODUCED_BYTES


def call_effects(environment: Environment, inline: InlineRun) -> Steps[frozenset[PendingEffect]]:
    """Run weak sinks on the pending effects of a commit; return the completed ones.

    A record that cannot be decoded goes into the inbox, whose worker makes it a dead letter.
    """
    codecs, wait_s = environment.pipeline.codecs, environment.config.effect_ms / 1000
    pairs = [(effect, effect.sink_record(codecs)) for effect in inline.effects]
    pairs = [pair for pair in pairs if not isinstance(pair[1].value, Undecodable)]
    if not pairs:
        return frozenset()
    calls = [((effect.target.computation, effect.version), record) for effect, record in pairs]
    done = yield CallEffects(calls, wait_s)
    return frozenset(pairs[index][0] for index in done)


def sum_counts(counts: Mapping[str, int], added: Mapping[str, int]) -> Mapping[str, int]:
    """Return counts by name, with further counts added."""
    return (
        {**counts, **{name: counts.get(name, 0) + added[name] for name in added}}
        if added
        else counts
    )
