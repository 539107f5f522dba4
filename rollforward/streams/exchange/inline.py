"""Weak productions: records pass through weak computations in the commit of their sender.

A weak computation keeps nothing, so nobody has to own a key of it, and whoever has records for it
runs it: a source before it lets them in, a worker with what its batch has written. The results go
into the inboxes of their readers in the place of the records, by the one commit that takes out, or
makes durable, what they follow from. So the record holds the watermark where it was until its
results are pending where they go, and a commit that fails leaves nothing behind.

What is left over goes into the computation's inbox, as for any other: what there was no time for,
what its hook raised at, and what is late. A late record may be one that was sent before in time,
and then it has to stay behind that, which may wait in such an inbox.

A weak sink acts outside, so it acts before that commit, and what it has not done within some time
is in its inbox with the commit (`effect_pool.py`). It may act again on a record of which that
commit failed, or on one that nobody has let in: whoever pushed it never heard of it.

Source: T. Akidau and others, "MillWheel", 2013, 5.1.3: there a weak production waits for
its receivers' confirmation, and stragglers are checkpointed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rollforward.streams.exchange.outgoing import Outgoing
from rollforward.streams.execution.bundle_runner import MAX_PRODUCED_BYTES, run_bundle
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.bundle import EmittedRecord, Target, derived_id
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.storage.inbox import inputs_of
from rollforward.streams.storage.remote_calls import CallEffects, Steps
from rollforward.streams.storage.schema import Head, InboxRecord


class PendingEffect(NamedTuple):
    """A record for a weak sink: it is handed on, or goes into the sink's inbox.

    `id`: of the record at this sink, however it gets there.
    """

    target: Target
    letter: InboxRecord
    version: int  # Of the sink.
    id: str

    def record(self) -> SinkRecord:
        each = self.letter
        return SinkRecord(self.id, each.key, json.loads(each.text), each.timestamp_ms, each.stream)


def sink_id(sink: Sink, stream: str, id_: str) -> str:
    """Return the id at a weak sink of a record that has one: another id than at other sinks.

    A payment service may get records of several sinks and pipelines, and drops what it knows.
    """
    return derived_id(stream, id_, sink.pipeline, sink.name)


class InlineRun:
    """What one commit passes through weak computations."""

    def __init__(
        self, environment: Environment, head: Head, outgoing: Outgoing, *, is_open: bool = True
    ) -> None:
        """Begin a commit.

        Args:
            is_open: Whether anything is passed through; else all goes into the inboxes.
        """
        self._environment, self._head, self._mail = environment, head, outgoing
        self._graph = environment.at(head).graph
        self._weak: Collection[str] = self._graph.weak if is_open else ()
        self._waiting: dict[str, list[InboxRecord]] = {}
        self._began_ms = environment.elapsed_ms()
        self._left = environment.config.max_inlined
        self._bytes = 0
        self.effects: list[PendingEffect] = []
        self.inlined: Counter[str] = Counter()

    def produce(self, productions: Sequence[EmittedRecord]) -> None:
        """Take what hooks have written."""
        if not self._weak:
            self._mail.produce(productions)
            return
        for stream, text, at, late_at, targets, id_ in productions:
            for target in targets:
                self.send(target, InboxRecord(target.key, at, stream, id_, text), late_at=late_at)

    def send(self, target: Target, letter: InboxRecord, *, late_at: int) -> None:
        """Take a letter: it waits for its computation if that is weak, else it is sent."""
        name = target.computation
        if name not in self._weak or late_at or target.error:
            self._mail.send(target, letter, late_at=late_at)
        elif isinstance(sink := self._graph.computations[name], Sink):
            self._hand(sink, target, letter)
        else:
            self._waiting.setdefault(name, []).append(letter)

    def end(self) -> None:
        """Run what waits, each computation behind those that write for it."""
        if not self._waiting:
            return
        for name in self._graph.order:
            letters = self._waiting.pop(name, None)
            if letters:
                self._pass(name, letters)

    def spill(self, handed: Collection[PendingEffect]) -> None:
        """Send what was to be handed on, and was not done: as it is now, by the sink it is for."""
        for each in self.effects:
            if each in handed:
                self.inlined[each.target.computation] += 1
            else:
                self._mail.send(each.target, each.letter, late_at=0)

    def _hand(self, sink: Sink, target: Target, letter: InboxRecord) -> None:
        if letter.id:
            id_ = sink_id(sink, letter.stream, letter.id)
            self.effects.append(PendingEffect(target, letter, sink.version, id_))
        else:  # The other side could not tell a repetition.
            self._mail.send(target, letter, late_at=0)

    def _pass(self, name: str, letters: list[InboxRecord]) -> None:
        part = letters[: self._left]
        inputs = inputs_of(part, late_at=0)
        effects = run_bundle(
            self._graph.computations[name],
            {},
            inputs,
            watermark=self._head.inputs.get(name, 0),
            now_ms=self._environment.now_ms(),
            route=self._graph.route,
            is_over=self._is_over,
        )
        self._left -= effects.consumed
        self.inlined[name] += effects.counts.records
        failed = {id(failure.input) for failure in effects.failures}
        for letter, each in zip(part, inputs, strict=True):
            if id(each) in failed:
                self._mail.send(Target(name, letter.key), letter, late_at=0)
        for letter in letters[effects.consumed :]:
            self._mail.send(Target(name, letter.key), letter, late_at=0)
        self._bytes += sum(len(each.text) * len(each.targets) for each in effects.productions)
        self.produce(effects.productions)

    def _is_over(self) -> bool:
        took_ms = self._environment.elapsed_ms() - self._began_ms
        return took_ms > self._environment.config.inline_ms or self._bytes >= MAX_PRODUCED_BYTES


def call_effects(environment: Environment, inline: InlineRun) -> Steps[frozenset[PendingEffect]]:
    """Have weak sinks act on what came through; return what they acted on."""
    effects = inline.effects
    if not effects:
        return frozenset()
    wait_s = environment.config.effect_ms / 1000
    call = CallEffects(
        [((each.target.computation, each.version), each.record()) for each in effects], wait_s
    )
    done = yield call
    return frozenset(effects[place] for place in done)


def sum_counts(counts: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    """Return counts by name, and more of them."""
    return (
        {**counts, **{name: counts.get(name, 0) + more[name] for name in more}} if more else counts
    )
