"""A pipeline in a test: time and watermark are the test's, and no service runs.

    test = StreamTest(PIPELINE)
    test.push("requests", {"path": "/"}, timestamp_ms=1_000)
    test.advance_watermark(60_000)
    assert test.read("hits") == [Output({"path": "/", "hits": 1}, timestamp_ms=61_000)]

Each call does all work that it leads to before it returns. A weak computation works on its records
twice, and has to write the same: so one that is not idempotent is noticed. `push_all` lets records
in that make one batch. With `repeats` each batch is worked on twice, as in a pipeline when a hook
beside them raises: a hook that keeps something outside of `ctx` is noticed by what it keeps twice.
What the workers promise under faults is not tested so: a test of a pipeline is about what its hooks
do.

Source: TopologyTestDriver of Kafka Streams.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from rollforward.streams.execution.bundle_runner import MAX_FIRED, run_bundle
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.bundle import Effects, Failure, KeyedRecord, Target
from rollforward.streams.model.errors import NotIdempotentError, UnknownStreamError
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.records import FOREVER, NEVER, Timer, check_time, value_text
from rollforward.streams.model.sink import Sink, SinkRecord


@dataclass(frozen=True)
class Output:
    """A record that was written to a stream."""

    value: Any
    timestamp_ms: int
    late: bool = False


@dataclass
class _Times:
    """When each key of a computation is due: a time that is not the key's any more is skipped."""

    of: dict[str, int] = field(default_factory=dict)
    heap: list[tuple[int, str]] = field(default_factory=list)

    def put(self, key: str, at: int) -> None:
        if at == NEVER:
            self.of.pop(key, None)
        elif self.of.get(key) != at:
            self.of[key] = at
            heappush(self.heap, (at, key))

    def first(self) -> int:
        while self.heap and self.of.get(self.heap[0][1]) != self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else NEVER

    def take(self, until: int, limit: int) -> set[str]:
        """Take out keys whose time is reached; the caller puts each one back."""
        taken = set[str]()
        while len(taken) < limit and self.first() <= until:
            key = heappop(self.heap)[1]
            del self.of[key]
            taken.add(key)
        return taken


class _Keys:
    """The keys of a computation, found by what they wait for: none is looked at in vain."""

    def __init__(self) -> None:
        self.states: dict[str, KeyState] = {}
        self.holds, self.dues, self.processing_dues = _Times(), _Times(), _Times()

    def put(self, states: Mapping[str, KeyState]) -> None:
        for key, state in states.items():
            if state.is_empty:
                self.states.pop(key, None)
            else:
                self.states[key] = state
            self.holds.put(key, state.times.hold)
            self.dues.put(key, NEVER if state.is_empty else state.times.due)
            self.processing_dues.put(key, state.times.processing_due)

    def take_due(self, watermark: int, now: int) -> list[str]:
        """Take out some keys that have something to do; `put` puts them back."""
        due = self.dues.take(watermark, MAX_FIRED)
        return sorted(due | self.processing_dues.take(now, MAX_FIRED - len(due)))

    def has_due(self, watermark: int, now: int) -> bool:
        return self.dues.first() <= watermark or self.processing_dues.first() <= now


class StreamTest:
    """A pipeline that runs in a test."""

    def __init__(self, pipeline: Declaration, *, now: int = 0, repeats: bool = False) -> None:
        """Begin with nothing: all watermarks at 0.

        Args:
            now: The time of day.
            repeats: Each batch is worked on twice. Only the second time counts.
        """
        self.pipeline = pipeline
        self._repeats = repeats
        self.now = now
        self.dead: list[tuple[str, Failure]] = []
        self.late: Counter[str] = Counter()
        self._graph = pipeline.graph
        self._keys: dict[str, _Keys] = defaultdict(_Keys)
        self._sunk: dict[str, list[KeyedRecord]] = defaultdict(list)
        self._inboxes: dict[str, deque[KeyedRecord]] = defaultdict(deque)
        self._written: dict[str, list[Output]] = defaultdict(list)
        self._read: Counter[str] = Counter()
        self._sources = dict.fromkeys(pipeline.sources, 0)
        self._watermarks = dict.fromkeys(pipeline.computations, 0)

    # What comes in

    def push(self, stream: str, value: Any, timestamp_ms: int) -> None:
        """Let a record in, late if it is behind the watermark of its source.

        Raises:
            UnknownStreamError: the pipeline does not have this source.
            BadRecordError: this is no record.
        """
        self.push_all(stream, [(value, timestamp_ms)])

    def push_all(self, stream: str, records: Iterable[tuple[Any, int]]) -> None:
        """Let records in, each with its time, that its readers get as one batch.

        Raises:
            UnknownStreamError: the pipeline does not have this source.
            BadRecordError: one of them is no record; none was let in.
        """
        self.pipeline.source(stream)
        texts = [(value, value_text(value), check_time(at)) for value, at in records]
        for value, text, at in texts:
            floor, targets = self._sources[stream], self._graph.route(stream, value)
            self._deliver(stream, text, at, floor if at < floor else 0, targets)
        self._run()

    def advance_watermark(self, timestamp_ms: int, stream: str | None = None) -> None:
        """Say that no record before a time is still to come, from one source or from all.

        Raises:
            ValueError: the watermark is ahead of that already.
        """
        streams = list(self._sources) if stream is None else [self.pipeline.source(stream).stream]
        for name in streams:
            if timestamp_ms < self._sources[name]:
                raise ValueError(f"{name} is at {self._sources[name]}: a watermark never falls")
        self._sources.update(dict.fromkeys(streams, min(timestamp_ms, FOREVER)))
        self._run()

    def close(self, stream: str | None = None) -> None:
        """End a source, or all of them: every timer fires."""
        self.advance_watermark(FOREVER, stream)

    def advance_clock(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now += milliseconds
        self._run()

    def replace(self, computation: str, version: int) -> None:
        """Have another version of a computation go on, with the states and timers that there are.

        Raises:
            UnknownStreamError: the pipeline has no such version.
        """
        if (computation, version) not in self.pipeline.versions:
            raise UnknownStreamError(f"there is no version {version} of {computation}")
        new = self.pipeline.versions[computation, version]
        before = self._graph.computations
        self._graph = Graph([*(before | {computation: new}).values()])

    # What comes of it

    def read(self, stream: str) -> list[Output]:
        """Return what was written to a stream since it was last read.

        Raises:
            UnknownStreamError: there is no such stream.
        """
        if stream not in self._graph.streams:
            raise UnknownStreamError(f"{self.pipeline.name} has no stream {stream!r}")
        written = self._written[stream]
        first, self._read[stream] = self._read[stream], len(written)
        return written[first:]

    def sink_output(self, sink: str) -> list[Any]:
        """Return what a sink makes of the records that it got since it was last asked.

        Raises:
            UnknownStreamError: there is no such sink.
            Exception: what the sink raises; in a pipeline that would be a dead letter.
        """
        computation = self.pipeline.computation(sink)
        if not isinstance(computation, Sink):
            raise UnknownStreamError(f"{sink} is no sink")
        inputs, self._sunk[sink] = self._sunk[sink], []
        return [
            computation.make(SinkRecord(f"{sink}.{n}", *each[:4], each.late_at > 0))
            for n, each in enumerate(inputs)
        ]

    def state(self, computation: str, key: str) -> dict[str, Any]:
        """Return a copy of the state of a key; empty: it has none."""
        state, code = self._state(computation, key), self._graph.computations[computation]
        return code.load(state.text, state.version) if state.text else {}

    def keys(self, computation: str) -> list[str]:
        """Return the keys of which something is kept."""
        return sorted(self._keys[self.pipeline.computation(computation).name].states)

    def timers(self, computation: str, key: str) -> list[Timer]:
        """Return the timers of a key that have not fired, in order of their times."""
        state = self._state(computation, key)
        timers = [
            Timer(key, tag, stored.at_ms, stored.is_processing_time)
            for tag, stored in state.timers.items()
        ]
        return sorted(timers, key=lambda timer: (timer.at_ms, timer.tag))

    def watermark(self, computation: str) -> int:
        """Return the watermark that a computation sees."""
        return self._watermarks[self.pipeline.computation(computation).name]

    # The work

    def _state(self, computation: str, key: str) -> KeyState:
        return self._keys[self.pipeline.computation(computation).name].states.get(key, NOTHING)

    def _run(self) -> None:
        """Work until nothing is left to do."""
        while self._advance() or sum(self._work(name) for name in self._graph.order):
            pass

    def _advance(self) -> bool:
        """Move the watermarks of all computations; return whether one has moved."""
        before, out = dict(self._watermarks), dict[str, int]()
        for name in self._graph.order:
            streams = self._graph.computations[name].inputs
            sources = [self._sources[each] for each in streams if each in self._sources]
            pending = [each.timestamp_ms for each in self._inboxes[name] if not each.late_at]
            first = min([*sources, *(out[each] for each in self._graph.upstream[name]), *pending])
            self._watermarks[name] = max(before[name], first)
            out[name] = min(self._watermarks[name], self._keys[name].holds.first())
        return self._watermarks != before

    def _work(self, name: str) -> bool:
        """Run one batch of a computation; return whether there was anything to do."""
        keys, inbox, watermark = self._keys[name], self._inboxes[name], self._watermarks[name]
        due = keys.take_due(watermark, self.now)
        if not inbox and not due:
            return False
        waiting = [] if keys.has_due(watermark, self.now) else list(inbox)

        def run(*, is_careful: bool = False) -> Effects:
            return run_bundle(
                self._graph.computations[name], keys.states, [_anew(each) for each in waiting],
                watermark=watermark, now_ms=self.now, due=due, route=self._graph.route,
                is_careful=is_careful,
            )  # fmt: skip

        effects = run()
        if self._repeats:
            effects = run(is_careful=True)
        if name in self._graph.weak and run().productions != effects.productions:
            raise NotIdempotentError(
                f"{name} is weak, and writes something else when it gets its records again"
            )
        for _ in range(effects.consumed):
            inbox.popleft()
        keys.put({key: keys.states.get(key, NOTHING) for key in due} | effects.keys)
        self._apply(name, effects)
        return True

    def _apply(self, name: str, effects: Effects) -> None:
        self.late[name] += effects.counts.late + effects.counts.late_between_parts
        self.dead += [(name, failure) for failure in effects.failures]
        for emitted in effects.productions:
            self._deliver(
                emitted.stream, emitted.text, emitted.timestamp_ms, emitted.late_at, emitted.targets
            )

    def _deliver(
        self, stream: str, text: str, at: int, late_at: int, targets: tuple[Target, ...]
    ) -> None:
        """Write a record to a stream, and into the inboxes of its readers."""
        self._written[stream].append(Output(json.loads(text), at, late_at > 0))
        for target in targets:
            record = KeyedRecord(target.key, json.loads(text), at, stream, late_at, text=text)
            if target.error:
                self.dead.append((target.computation, Failure("", record, target.error)))
            elif isinstance(self._graph.computations[target.computation], Sink):
                self._sunk[target.computation].append(record)
            else:
                self._inboxes[target.computation].append(record)


def _anew(each: KeyedRecord) -> KeyedRecord:
    """Return a record with a value that no hook has had."""
    return each._replace(value=json.loads(each.text))
