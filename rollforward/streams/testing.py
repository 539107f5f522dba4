"""A pipeline in a test, without services: the test controls the clock and the watermark.

    test = StreamTest(PIPELINE)
    test.push("requests", {"path": "/"}, timestamp_ms=1_000)
    test.advance_watermark(60_000)
    assert test.read("hits") == [Output({"path": "/", "hits": 1}, timestamp_ms=61_000)]

Each call returns after all resulting work is done. `push_all` pushes records that form one bundle.

A weak computation processes its records twice and must write the same each time, which detects code
that is not idempotent. With `repeats` each bundle runs twice, as in a pipeline when another hook of
it raises. A hook that stores something outside of `ctx` then stores it twice.

The workers' guarantees under faults are not covered: a `StreamTest` tests hooks.

Source: TopologyTestDriver of Kafka Streams.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb
from google.cloud.ndb.context import get_context

from rollforward.streams.execution.bundle_runner import MAX_FIRED, run_bundle
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.graph import Graph
from rollforward.streams.graph.plan import ActivePipeline, running_computation
from rollforward.streams.model.bundle import Effects, Failure, KeyedRecord, Target
from rollforward.streams.model.codecs import Undecodable
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import NotIdempotentError, UnknownStreamError
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.records import (
    FOREVER,
    NEVER,
    Timer,
    check_time,
    check_watermark,
    inbound_value,
)
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.topology.compatibility import (
    check_declared,
    check_replaces,
    check_state,
    check_topology,
)


@dataclass(frozen=True)
class Output:
    """A record of a stream, as `StreamTest.read` returns it."""

    value: Any
    timestamp_ms: int
    late: bool = False


def _ndb_context() -> AbstractContextManager[Any]:
    """Return a context in which a sink can make entities: the test's, or an offline one."""
    if get_context(raise_context_error=False) is not None:
        return nullcontext()
    client = ndb.Client("stream-test", credentials=AnonymousCredentials())
    return client.context()  # type: ignore[no-any-return]


@dataclass
class _Times:
    """Queue of keys by their times; outdated heap entries are skipped."""

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
        """Remove up to `limit` keys whose time has come; the caller must put them back."""
        keys = set[str]()
        while len(keys) < limit and self.first() <= until:
            key = heappop(self.heap)[1]
            del self.of[key]
            keys.add(key)
        return keys


class _Keys:
    """Keys of a computation, indexed by their holds and due times."""

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

    def take_due(self, watermark: int, now_ms: int) -> list[str]:
        """Remove some due keys; `put` puts them back."""
        due = self.dues.take(watermark, MAX_FIRED)
        return sorted(due | self.processing_dues.take(now_ms, MAX_FIRED - len(due)))

    def has_due(self, watermark: int, now_ms: int) -> bool:
        return self.dues.first() <= watermark or self.processing_dues.first() <= now_ms


class StreamTest:
    """A pipeline that runs in a test.

    Attributes:
        dead: Dead letters: pairs of a computation and a `Failure` with `key`, `input` and `error`.
        late: By computation, the records dropped as late.
    """

    def __init__(self, pipeline: Declaration, *, now_ms: int = 0, repeats: bool = False) -> None:
        """Start an empty pipeline with all watermarks at 0.

        Args:
            now_ms: The processing time.
            repeats: Run each bundle twice. Only the effects of the second run count.
        """
        self.pipeline = pipeline
        self._repeats = repeats
        self.now_ms = now_ms
        self.dead: list[tuple[str, Failure]] = []
        self.late: Counter[str] = Counter()
        self._graph = pipeline.graph
        self._keys: dict[str, _Keys] = defaultdict(_Keys)
        self._sunk: dict[str, list[KeyedRecord]] = defaultdict(list)
        self._taken: Counter[str] = Counter()  # By sink, the records of earlier calls.
        self._inboxes: dict[str, deque[KeyedRecord]] = defaultdict(deque)
        self._written: dict[str, list[Output]] = defaultdict(list)
        self._read: Counter[str] = Counter()
        self._sources = dict.fromkeys(pipeline.sources, 0)
        self._watermarks = dict.fromkeys(pipeline.computations, 0)

    # Inputs

    def push(self, stream: str, value: Any, timestamp_ms: int) -> None:
        """Push a record; it is late if it is behind the watermark of its source.

        Raises:
            UnknownStreamError: no computation that runs reads this stream as a source.
            BadRecordError: the record is invalid.
        """
        self.push_all(stream, [(value, timestamp_ms)])

    def push_all(self, stream: str, records: Iterable[tuple[Any, int]]) -> None:
        """Push records, each with its time, which readers get as one bundle.

        Raises:
            UnknownStreamError: no computation that runs reads this stream as a source.
            BadRecordError: a record is invalid; none was pushed.
        """
        _check_source(self.pipeline, stream)
        codecs = self.pipeline.codecs
        texts = [(*inbound_value(codecs, stream, value), check_time(at)) for value, at in records]
        for text, value, at in texts:
            floor, targets = self._sources[stream], self._graph.route(stream, value)
            self._deliver(stream, text, at, floor if at < floor else 0, targets)
        self._run()

    def advance_watermark(self, timestamp_ms: int, stream: str | None = None) -> None:
        """Advance the watermark of one source, or of all sources.

        Raises:
            UnknownStreamError: no computation that runs reads this stream as a source.
            ValueError: the watermark is already ahead of that, or this is no time.
        """
        watermark = check_watermark(min(timestamp_ms, FOREVER))
        if stream is not None:
            _check_source(self.pipeline, stream)
        streams = list(self._sources) if stream is None else [stream]
        for name in streams:
            if watermark < self._sources[name]:
                raise ValueError(
                    f"the watermark of {name} must not fall below {self._sources[name]}, "
                    f"got {timestamp_ms}"
                )
        self._sources.update(dict.fromkeys(streams, watermark))
        self._run()

    def close(self, stream: str | None = None) -> None:
        """End one source or all sources; without open sources, every timer fires."""
        self.advance_watermark(FOREVER, stream)

    def advance_clock(self, milliseconds: int) -> None:
        """Advance the processing time."""
        self.now_ms += milliseconds
        self._run()

    def replace(self, computation: str, version: int) -> None:
        """Replace a computation by another version, which takes over its states and timers.

        Raises:
            UnknownStreamError: the pipeline lacks this version, or the computation does not run.
            UnreadableStateError: the version cannot read a state; nothing was changed.
            TopologyError: it cannot take the other's place.
        """
        code = self.pipeline.versions.get((computation, version))
        if code is None:
            raise UnknownStreamError(f"there is no version {version} of {computation}")
        if computation not in self._graph.computations:
            raise UnknownStreamError(f"{computation} does not run: it is on standby")
        replaced = self._graph.computations[computation]
        states = self._keys[computation].states
        stored = {state.version for state in states.values() if state.text}
        if not code.weak and not isinstance(code, Sink):
            check_declared(code, {*stored, replaced.version})
        for key, state in states.items():
            check_state(code, key, state)
        check_replaces(replaced, running_computation(replaced), code)
        current = self._graph.computations
        changed = {**current, computation: code}
        check_topology(_active(self.pipeline, current), _active(self.pipeline, changed))
        self._graph = Graph([*changed.values()])

    # Results

    def read(self, stream: str) -> list[Output]:
        """Return the records written to a stream since the last call.

        Raises:
            UnknownStreamError: the stream is unknown.
        """
        if stream not in self._graph.streams:
            raise UnknownStreamError(f"{self.pipeline.name} has no stream {stream!r}")
        written = self._written[stream]
        start, self._read[stream] = self._read[stream], len(written)
        return written[start:]

    def sink_output(self, sink: str) -> list[Any]:
        """Return the results of a sink's `make` for the records since the last call.

        Entities are made in the ndb context of the test, or else in one without a service.

        Raises:
            UnknownStreamError: the sink is unknown.
            Exception: an error of `make`, which would be a dead letter in a pipeline.
        """
        computation = self.pipeline.computation(sink)
        if not isinstance(computation, Sink):
            raise UnknownStreamError(f"{sink} is no sink")
        inputs, self._sunk[sink] = self._sunk[sink], []
        start, self._taken[sink] = self._taken[sink], self._taken[sink] + len(inputs)
        with _ndb_context():
            return [
                computation.make(SinkRecord(f"{sink}.{n}", *record[:4], record.late_at > 0))
                for n, record in enumerate(inputs, start)
            ]

    def state(self, computation: str, key: str) -> dict[str, Any]:
        """Return a copy of the state of a key; empty if it has none."""
        state, code = self._state(computation, key), self._graph.computations[computation]
        return code.load(state.text, state.version) if state.text else {}

    def keys(self, computation: str) -> list[str]:
        """Return the keys with a state or a timer."""
        return sorted(self._keys[self.pipeline.computation(computation).name].states)

    def timers(self, computation: str, key: str) -> list[Timer]:
        """Return the pending timers of a key, in order of their times."""
        state = self._state(computation, key)
        timers = [
            Timer(key, tag, timer.at_ms, timer.is_processing_time)
            for tag, timer in state.timers.items()
            if not timer.is_hold
        ]
        return sorted(timers, key=lambda timer: (timer.at_ms, timer.tag))

    def watermark(self, computation: str) -> int:
        """Return the watermark of a computation."""
        return self._watermarks[self.pipeline.computation(computation).name]

    # Execution

    def _state(self, computation: str, key: str) -> KeyState:
        return self._keys[self.pipeline.computation(computation).name].states.get(key, NOTHING)

    def _run(self) -> None:
        """Run computations until there is no more work."""
        while self._advance() or sum(self._work(name) for name in self._graph.order):
            pass

    def _advance(self) -> bool:
        """Advance the watermarks of all computations; return whether one has moved."""
        previous, output = dict(self._watermarks), dict[str, int]()
        for name in self._graph.order:
            streams = self._graph.computations[name].inputs
            bounds = [self._sources[stream] for stream in streams if stream in self._sources]
            bounds += [output[writer] for writer in self._graph.upstream[name]]
            bounds += [record.timestamp_ms for record in self._inboxes[name] if not record.late_at]
            self._watermarks[name] = max(previous[name], min(bounds))
            output[name] = min(self._watermarks[name], self._keys[name].holds.first())
        return self._watermarks != previous

    def _work(self, name: str) -> bool:
        """Run one bundle of a computation; return whether there was work."""
        keys, inbox, watermark = self._keys[name], self._inboxes[name], self._watermarks[name]
        due = keys.take_due(watermark, self.now_ms)
        if not inbox and not due:
            return False
        inputs = [] if keys.has_due(watermark, self.now_ms) else list(inbox)

        def run(*, is_careful: bool = False) -> Effects:
            return run_bundle(
                self._graph.computations[name], keys.states, [*map(self._copy, inputs)],
                watermark=watermark, now_ms=self.now_ms, due=due, route=self._graph.route,
                codecs=self.pipeline.codecs, is_careful=is_careful,
            )  # fmt: skip

        effects = run()
        if self._repeats:
            effects = run(is_careful=True)
        if name in self._graph.weak and run().productions != effects.productions:
            raise NotIdempotentError(
                f"{name} is weak, but writes different records when it gets the same inputs again"
            )
        for _ in range(effects.consumed):
            inbox.popleft()
        keys.put({key: keys.states.get(key, NOTHING) for key in due} | effects.keys)
        self._apply(name, effects)
        return True

    def _apply(self, name: str, effects: Effects) -> None:
        self.late[name] += effects.counts.late + effects.counts.late_between_parts
        self.dead += [(name, failure) for failure in effects.failures]
        for stream, text, at, late_at, targets, _ in effects.productions:
            self._deliver(stream, text, at, late_at, targets)

    def _deliver(
        self, stream: str, text: str, at: int, late_at: int, targets: tuple[Target, ...]
    ) -> None:
        """Write a record to a stream and to the inboxes of its readers."""
        read = self.pipeline.codecs.read
        self._written[stream].append(Output(read(text), at, late_at > 0))
        for target in targets:
            value = read(text)
            record = KeyedRecord(target.key, value, at, stream, late_at, text=text)
            if isinstance(value, Undecodable):
                failure = Failure(target.key, record, value.error)
                self.dead.append((target.computation, failure))
            elif target.error:
                self.dead.append((target.computation, Failure("", record, target.error)))
            elif isinstance(self._graph.computations[target.computation], Sink):
                self._sunk[target.computation].append(record)
            else:
                self._inboxes[target.computation].append(record)

    def _copy(self, record: KeyedRecord) -> KeyedRecord:
        """Return a record with a newly decoded value, as no hook has changed it."""
        return record._replace(value=self.pipeline.codecs.read(record.text))


def _check_source(pipeline: Declaration, stream: str) -> None:
    """Refuse a stream that nothing reads as a source, as a push to a pipeline does."""
    pipeline.source(stream)
    if stream not in pipeline.sources:
        raise UnknownStreamError(
            f"no computation reads {stream} as a source: those on standby do not run"
        )


def _active(pipeline: Declaration, computations: Mapping[str, Computation]) -> ActivePipeline:
    """Return a pipeline as it runs with some versions of its computations."""
    running = {name: running_computation(code) for name, code in computations.items()}
    return ActivePipeline(pipeline, running)
