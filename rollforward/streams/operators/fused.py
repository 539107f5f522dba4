"""Fused computations: some that have the same keys run as one.

    COUNTS = Fused("counts", Parse, Clean, Windowed("hits", Tumbling(MINUTE), ...))

What a part writes for another one is worked on at once, in the hook that it comes from, so it needs
no inbox, no commit and no task of its own. There is one worker for all parts, one checkpoint, one
watermark to be read, and one state of a key, which has that of each part under its name.

The parts are computations like any others, and get what they would get by themselves:

- Records come to a part in the order in which they were written, as JSON has made them.
- A part that gets what others write sees a watermark which waits for their timers of its key. So
  what came in time is not late at a later part either.

These things differ:

- All parts have the same keys: a hook that writes a record with another one for its reader fails.
- A hook that fails undoes what all parts have done with the record that came in, or with the timer
  that fired. That is the dead letter.
- Only a part that writes for no other one can have timers of the clock: they would hold back those
  that come behind it.

Sources: "fusion" of C. Chambers and others, "FlumeJava", 2010; operator chaining of Apache Flink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from rollforward.streams.graph.declaration import as_computation
from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context, ContextBackend
from rollforward.streams.model.errors import BadRecordError, UnknownStreamError
from rollforward.streams.model.json_text import decoded
from rollforward.streams.model.key_state import SetTimer
from rollforward.streams.model.records import (
    NEVER,
    Record,
    Timer,
    check_output,
    check_tag,
    value_text,
)
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.state import JSON, JsonCodec, State

_BETWEEN = ":"  # The name of a part and a tag; in no name.
# A record on its way to a part; what gives it its key, unless it has that already; is it late? And
# its value as it was written, because a part may change the value.
_Waiting = tuple[Computation, KeyOf | None, Record, int, str]


class _PartsCodec(JsonCodec):
    """The states of parts as JSON; of those that keep nothing, nothing."""

    def dump(self, items: dict[str, Any]) -> str:
        kept = {name: part for name, part in items.items() if part}
        return super().dump(kept) if kept else ""


class Fused(Computation):
    """Computations with the same keys, as one."""

    codec = _PartsCodec()

    def __init__(
        self,
        name: str,
        *parts: Computation | type[Computation],
        outputs: Sequence[str] | None = None,
        version: int = 1,
        reads: Sequence[int] = (),
        forgets: Sequence[str] = (),
    ) -> None:
        """Declare a computation.

        Args:
            parts: At least two. Streams that none of them writes come from outside.
            outputs: The streams that leave; by default those that no part reads.
            version: Of all parts: one more when one of them is replaced. A part's `upgrade` gets
                versions of these.
            reads: The earlier versions whose states all parts can read.
            forgets: Parts of earlier versions, whose states and timers are forgotten. States and
                timers of others are refused: those of a computation that was not fused are.

        Raises:
            TypeError: these cannot run as one; the text says why.
        """
        known = list(map(as_computation, parts))
        self.name = name
        self.version, self.reads, self.forgets = version, reads, frozenset(forgets)
        self.parts = {part.name: part for part in known}
        self.max_attempts = max((part.max_attempts for part in known), default=1)
        self.ttl = max((part.ttl for part in known if part.ttl is not None), default=None)
        if len(known) < 2 or len(self.parts) < len(known):
            raise TypeError(f"{name}: at least two parts are fused, each with a name of its own")
        graph = Graph(known)
        before: dict[str, frozenset[str]] = {}
        for part in graph.order:
            upstream = graph.upstream[part]
            before[part] = frozenset(upstream).union(*(before[each] for each in upstream))
        self.before: Mapping[str, frozenset[str]] = before
        self.readers = {
            stream: [(self.parts[part], key_of) for part, key_of in readers]
            for stream, readers in graph.readers.items()
        }
        self.inputs = {stream: self.readers[stream][0][1] for stream in graph.source_streams}
        written = [stream for part in known for stream in part.written]
        self.inner = tuple(stream for stream in written if self.readers[stream])
        unread = [stream for stream in written if stream not in self.inner]
        self.outputs = tuple(dict.fromkeys(unread if outputs is None else outputs))
        if unknown := {*self.outputs} - {*written}:
            raise TypeError(f"{name}: no part writes {min(unknown)!r}")

    def context(self, backend: ContextBackend) -> Context:
        return _Fusion(self, cast(_BundleBackend, backend))

    def record(self, ctx: Context, record: Record) -> None:
        cast(_Fusion, ctx).steps.work_on(record)

    def timer(self, ctx: Context, timer: Timer) -> None:
        cast(_Fusion, ctx).steps.fire(timer)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        kept = {name: items for name, items in state.items() if name not in self.forgets}
        for name, items in kept.items():
            self._check_part(name, is_one=isinstance(items, dict))
        return {name: self.parts[name].upgrade(items, version) for name, items in kept.items()}

    def check_tag(self, tag: str) -> None:
        name = tag.partition(_BETWEEN)[0]
        if name not in self.forgets:
            self._check_part(name)

    def _check_part(self, name: str, *, is_one: bool = True) -> None:
        """Check that a state or a timer is that of a part.

        Raises:
            BadRecordError: it is not; it would be lost.
        """
        if name not in self.parts or not is_one:
            raise BadRecordError(
                f"{name} is no part of {self.name}: name it in `forgets` if an earlier version had "
                "it; parts do not go on with what ran without them"
            )

    def check(self) -> None:
        super().check()
        for part in self.parts.values():
            part.check()
            if why := _unfit(part):
                raise TypeError(f"{self.name}: {part.name} cannot be fused: {why}")
        if len({part.ttl is None for part in self.parts.values()}) > 1:
            raise TypeError(
                f"{self.name}: all of its parts have a `ttl`, or none: a key is forgotten as one"
            )


def _unfit(part: Computation) -> str:
    """Return why a computation cannot be a part; empty: it can."""
    reasons = {
        "it is a sink, which reads its output": isinstance(part, Sink),
        "it is fused itself: name its parts": isinstance(part, Fused),
        "leave `weak` out: there is nothing to wait for": part.weak,
        "it has a `percentile`, and the others wait for all records": part.percentile < 100,
        "it has a `codec`, and the state is one of all parts": part.codec is not JSON,
        "it has a `version`: give it to the fused computation": part.version != 1 or part.reads,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


class _BundleBackend(ContextBackend, Protocol):
    """What stands behind a computation, in a batch (bundle_runner.py)."""

    firing: SetTimer | None

    @property
    def timers(self) -> Mapping[str, SetTimer]: ...

    def step(self, at: int, late_at: int) -> None: ...

    @property
    def text(self) -> str: ...

    def count_bytes(self, size: int) -> None: ...

    def produce_late(self, stream: str, text: str, at: int) -> None: ...

    def drop_inside(self) -> None: ...


class _Fusion(Context):
    """What a fused computation gets."""

    __slots__ = ("steps",)

    def __init__(self, fused: Fused, backend: _BundleBackend) -> None:
        super().__init__(backend)
        self.steps = _Steps(fused, backend)

    def close(self) -> None:
        super().close()
        self.steps.close()


class _Steps:
    """The hands behind the part at work, in the course of one hook of a fused computation."""

    __slots__ = (
        "_backend",
        "_context",
        "_fired",
        "_fused",
        "_has_dropped",
        "_part",
        "_waiting",
        "key",
        "late_at",
        "now_ms",
        "timestamp_ms",
    )  # fmt: skip

    def __init__(self, fused: Fused, backend: _BundleBackend) -> None:
        self._fused, self._backend = fused, backend
        self._context = Context(self)
        self._waiting: deque[_Waiting] = deque()
        self._part: Computation = fused
        self._has_dropped = False
        # Whose timer fires, and where it holds back what comes behind it; None: a record has come.
        self._fired: tuple[str, int] | None = None
        self.key, self.now_ms, self.timestamp_ms, self.late_at = "", 0, 0, 0

    def close(self) -> None:
        """Let go of what stands behind this, and of what this stands behind."""
        self._context.close()
        del self._backend

    # One hook

    def work_on(self, record: Record) -> None:
        """Have the parts work on a record from outside, and on what it leads to."""
        self._begin(None)
        [(first, _), *others] = self._fused.readers[record.stream]
        text = self._backend.text
        self._waiting.append((first, None, record, self.late_at, text))
        for part, key_of in others:
            again = record._replace(value=decoded(text))
            self._waiting.append((part, key_of, again, self.late_at, text))
        self._work_on_all(is_alone=not others)

    def fire(self, timer: Timer) -> None:
        """Have a part act on its timer, and the others work on what that leads to."""
        self._fused.check_tag(timer.tag)
        name, _, tag = timer.tag.partition(_BETWEEN)
        part, set_timer = self._fused.parts.get(name), self._backend.firing
        if part is None or set_timer is None:
            return  # It is a part of an earlier version, and forgotten.
        self._begin((name, NEVER if set_timer.is_late else set_timer.hold))
        self._part = part
        part.timer(self._context, Timer(self.key, tag, timer.at_ms, timer.is_processing_time))
        self._work_on_all(is_alone=False)

    def _begin(self, fired: tuple[str, int] | None) -> None:
        backend = self._backend
        self.key, self.now_ms, self.timestamp_ms, self.late_at = (
            backend.key,
            backend.now_ms,
            backend.timestamp_ms,
            backend.late_at,
        )
        self._fired = fired
        self._waiting.clear()  # A hook that raised has left something.

    def _work_on_all(self, *, is_alone: bool) -> None:
        """Have the parts work on what waits.

        Args:
            is_alone: The first record is the one that came in, and no other part gets it.
        """
        waiting, step = self._waiting, self._backend.step
        while waiting:
            part, key_of, record, late_at, text = waiting.popleft()
            self._part, self.timestamp_ms, self.late_at = part, record.timestamp_ms, late_at
            step(record.timestamp_ms, late_at)
            if key_of is not None and (key := key_of(record.value)) != self.key:
                raise BadRecordError(
                    f"{part.name} has the key {key!r:.100} for a record of {self.key!r:.100}: "
                    "computations that are fused have the same keys"
                )
            self._has_dropped = late_at > 0 and part.late == "drop"
            if not self._has_dropped:
                part.record(self._context, record)
            if self._has_dropped:
                self._drop(text, record.timestamp_ms, is_alone=is_alone)
            is_alone = False

    def _drop(self, text: str, at: int, *, is_alone: bool) -> None:
        """Count a record as late, and hand it to its part's stream for late ones."""
        if is_alone:
            self._backend.drop_late()
        else:
            self._backend.drop_inside()
        stream = self._part.late_stream
        if stream is not None:
            self._send(stream, text, at, late_at=self.late_at or 1)
            if stream in self._fused.outputs:
                self._backend.produce_late(stream, text, at)

    # What a part sees and does

    @property
    def watermark(self) -> int:
        """The time before which all in time has come to the part at work.

        While timers fire, those of other parts may still write for it.
        """
        watermark, before = self._backend.watermark, self._fused.before[self._part.name]
        if self._fired is None or not before:
            return watermark  # No record comes before a timer that is due.
        by, hold = self._fired
        if by in before:
            watermark = min(watermark, hold)
        for tag, timer in self._backend.timers.items():
            if not timer.is_late and tag.partition(_BETWEEN)[0] in before:
                watermark = min(watermark, timer.hold)
        return watermark

    def state(self) -> State:
        return self._backend.state().part(self._part.name)

    def set_timer(self, tag: str, at_ms: int, is_processing_time: bool) -> None:
        if is_processing_time and any(self._fused.readers[each] for each in self._part.written):
            raise BadRecordError(
                f"{self._part.name} cannot have timers of the clock: they would hold back those "
                "that it is fused with, and that read what it writes"
            )
        self._backend.set_timer(
            f"{self._part.name}{_BETWEEN}{check_tag(tag)}", at_ms, is_processing_time
        )

    def cancel_timer(self, tag: str) -> bool:
        return self._backend.cancel_timer(f"{self._part.name}{_BETWEEN}{tag}")

    def produce(self, stream: str, value: object, timestamp_ms: int) -> None:
        if stream not in self._part.outputs:
            raise UnknownStreamError(
                f"{self._part.name} does not write {stream!r}: add it to its `outputs`"
            )
        if self._fused.readers[stream]:
            text = value_text(value)
            self._backend.count_bytes(len(text))
            self._send(
                stream, text, check_output(timestamp_ms, self.timestamp_ms), late_at=self.late_at
            )
        if stream in self._fused.outputs:
            self._backend.produce(stream, value, timestamp_ms)

    def drop_late(self) -> None:
        if self._backend.firing is not None:
            self._backend.drop_late()  # It refuses that for a timer.
        self._has_dropped = True

    def _send(self, stream: str, text: str, at: int, *, late_at: int) -> None:
        """Have those parts work on a record that read it, each on one of its own."""
        for part, key_of in self._fused.readers[stream]:
            record = Record(self.key, decoded(text), at, stream)
            self._waiting.append((part, key_of, record, late_at, text))
