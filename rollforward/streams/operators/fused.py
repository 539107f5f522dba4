"""Fused computations (operator chaining): computations with the same keys run as one.

    COUNTS = Fused("counts", Parse, Clean, Windowed("hits", Tumbling(MINUTE), ...))

A record that one part writes for another is processed immediately, in the same hook call. So it
needs no inbox, no commit and no task. All parts share a worker, a checkpoint and a watermark. The
state of a key contains the state of each part under the part's name.

Parts are ordinary computations and see the same data as without fusion:

- Records reach a part in the order in which they were written, encoded and decoded.
- The watermark of a part waits for the timers that upstream parts have for the same key. So on-time
  records are not late at a downstream part.

The differences:

- All parts must have the same keys: a hook fails if it writes a record with another key for a part.
- A failing hook undoes the effects of all parts for the incoming record or the fired timer, which
  becomes the dead letter.
- Only a part without readers among the parts can have processing-time timers and holds. Others
  would hold back the parts downstream.

Sources: "fusion" of C. Chambers and others, "FlumeJava", 2010; operator chaining of Apache Flink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from rollforward.streams.graph.declaration import as_computation
from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.codecs import Codecs
from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context, ContextBackend
from rollforward.streams.model.errors import BadRecordError, UnknownStreamError
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
from rollforward.streams.operators.windows import Windowed

_BETWEEN = ":"  # Separates a part's name and a tag; no name contains it.
# A record for a part: the part, its key function unless the key is checked, the record, `late_at`,
# and the value as text, because a part may change the value.
_Waiting = tuple[Computation, KeyOf | None, Record, int, str]


class _PartsCodec(JsonCodec):
    """Serializer of the parts' states as JSON, without empty ones."""

    def dump(self, items: dict[str, Any]) -> str:
        states = {name: state for name, state in items.items() if state}
        return super().dump(states) if states else ""


class Fused(Computation):
    """Computations with the same keys, run as one."""

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
            parts: At least two. They read the streams that none of them writes from outside.
            outputs: The streams that leave; default: the streams that no part reads.
            version: The version of all parts. Increment it to replace one of them. A part's
                `upgrade` gets this version.
            reads: The earlier versions whose states all parts can read.
            forgets: Parts of earlier versions whose states, timers and holds are deleted when their
                key has its next record or timer. States and timers of other names are refused,
                including those of an unfused computation.

        Raises:
            TypeError: the computations cannot be fused; the message says why.
        """
        codes = list(map(as_computation, parts))
        self.name = name
        self.version, self.reads, self.forgets = version, reads, frozenset(forgets)
        self.parts = {part.name: part for part in codes}
        self.max_attempts = max((part.max_attempts for part in codes), default=1)
        self.ttl = max((part.ttl for part in codes if part.ttl is not None), default=None)
        if len(codes) < 2 or len(self.parts) < len(codes):
            raise TypeError(f"{name}: must have at least two parts, with different names")
        graph = Graph(codes)
        ancestors: dict[str, frozenset[str]] = {}
        for part in graph.order:
            writers = graph.upstream[part]
            ancestors[part] = frozenset(writers).union(*(ancestors[writer] for writer in writers))
        self.ancestors: Mapping[str, frozenset[str]] = ancestors
        self.readers = {
            stream: [(self.parts[part], key_of) for part, key_of in readers]
            for stream, readers in graph.readers.items()
        }
        self.inputs = {stream: self.readers[stream][0][1] for stream in graph.source_streams}
        written = [stream for part in codes for stream in part.written]
        self.inner = tuple(stream for stream in written if self.readers[stream])
        unread = [stream for stream in written if stream not in self.inner]
        self.outputs = tuple(dict.fromkeys(unread if outputs is None else outputs))
        if unknown := {*self.outputs} - {*written}:
            raise TypeError(f"{name}: no part writes {min(unknown)!r}")

    def is_read(self, part: Computation) -> bool:
        """Return whether another part reads what a part writes."""
        return any(self.readers[stream] for stream in part.written)

    def context(self, backend: ContextBackend) -> Context:
        return _Fusion(self, cast(_BundleBackend, backend))

    def record(self, ctx: Context, record: Record) -> None:
        cast(_Fusion, ctx).steps.work_on(record)

    def timer(self, ctx: Context, timer: Timer) -> None:
        cast(_Fusion, ctx).steps.fire(timer)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        states = {name: items for name, items in state.items() if name not in self.forgets}
        for name, items in states.items():
            self._check_part(name, is_one=isinstance(items, dict))
        return {name: self.parts[name].upgrade(items, version) for name, items in states.items()}

    def check_tag(self, tag: str) -> None:
        name = tag.partition(_BETWEEN)[0]
        if name not in self.forgets:
            self._check_part(name)

    def _check_part(self, name: str, *, is_one: bool = True) -> None:
        """Check that a state or a timer belongs to a part.

        Raises:
            BadRecordError: it does not, so it would be lost.
        """
        if name not in self.parts or not is_one:
            raise BadRecordError(
                f"{name} is no part of {self.name}: name it in `forgets` if an earlier version had "
                "it; states of an unfused computation cannot be continued"
            )

    def check(self) -> None:
        super().check()
        for part in self.parts.values():
            part.check()
            reason = _mismatch(part)
            if isinstance(part, Windowed) and part.is_held and self.is_read(part):
                reason = "it holds the watermark (`stamp`), but another part reads its results"
            if reason:
                raise TypeError(f"{self.name}: {part.name} cannot be fused: {reason}")
        if len({part.ttl is None for part in self.parts.values()}) > 1:
            raise TypeError(
                f"{self.name}: all parts must have a `ttl`, or none, because keys expire as a whole"
            )


def _mismatch(part: Computation) -> str:
    """Return the reason why a computation cannot be a part; empty: it can."""
    reasons = {
        "it is a sink, which has no readers": isinstance(part, Sink),
        "it is fused itself: name its parts": isinstance(part, Fused),
        "leave `weak` out: parts run without a commit between them": part.weak,
        "it has a `percentile`, but the others wait for all records": part.percentile < 100,
        "it has a `codec`, but all parts share one state": part.codec is not JSON,
        "it has a `version`: set it on the fused computation": part.version != 1 or part.reads,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


class _BundleBackend(ContextBackend, Protocol):
    """Backend of a fused computation during a bundle (bundle_runner.py)."""

    firing: SetTimer | None
    codecs: Codecs

    @property
    def timers(self) -> Mapping[str, SetTimer]: ...

    def step(self, at: int, late_at: int) -> None: ...

    @property
    def text(self) -> str: ...

    def count_bytes(self, size: int) -> None: ...

    def hold(self, at_ms: int, tag: str) -> int: ...  # type: ignore[override]

    def release(self, tag: str) -> int | None: ...  # type: ignore[override]

    def produce(  # type: ignore[override]
        self, stream: str, value: object, timestamp_ms: int, tag: str
    ) -> None: ...

    def produce_late(self, stream: str, text: str, at: int) -> None: ...

    def drop_inner(self) -> None: ...


class _Fusion(Context):
    """Context of a fused computation."""

    __slots__ = ("steps",)

    def __init__(self, fused: Fused, backend: _BundleBackend) -> None:
        super().__init__(backend)
        self.steps = _Steps(fused, backend)

    def close(self) -> None:
        super().close()
        self.steps.close()


class _Steps:
    """Backend of the current part's context, during one hook of a fused computation."""

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
        # The part whose timer fires, and the time it holds downstream; None: a record arrived.
        self._fired: tuple[str, int] | None = None
        self.key, self.now_ms, self.timestamp_ms, self.late_at = "", 0, 0, 0

    def close(self) -> None:
        """Release the backend and the context, which breaks reference cycles."""
        self._context.close()
        del self._backend

    # One hook

    def work_on(self, record: Record) -> None:
        """Run the parts on a record from outside, and on the records derived from it."""
        self._begin(None)
        [(reader, _), *other_readers] = self._fused.readers[record.stream]
        text = self._backend.text
        self._waiting.append((reader, None, record, self.late_at, text))
        for part, key_of in other_readers:
            copy = record._replace(value=self._backend.codecs.value(text))
            self._waiting.append((part, key_of, copy, self.late_at, text))
        self._work_on_all(is_alone=not other_readers)

    def fire(self, timer: Timer) -> None:
        """Run a part on its timer, and the others on the records derived from it."""
        self._fused.check_tag(timer.tag)
        name, _, tag = timer.tag.partition(_BETWEEN)
        part, set_timer = self._fused.parts.get(name), self._backend.firing
        if part is None or set_timer is None:  # The part of an earlier version, in `forgets`.
            self._release_removed()
            return
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
        self._waiting.clear()  # A hook that raised may have left records.
        self._release_removed()

    def _release_removed(self) -> None:
        """End the key's holds of removed parts, which have no code to release them."""
        for name in self._fused.forgets:
            self._backend.release(name + _BETWEEN)

    def _work_on_all(self, *, is_alone: bool) -> None:
        """Run the parts on the pending records.

        Args:
            is_alone: The first record came from outside, and only one part reads it.
        """
        waiting, step = self._waiting, self._backend.step
        while waiting:
            part, key_of, record, late_at, text = waiting.popleft()
            self._part, self.timestamp_ms, self.late_at = part, record.timestamp_ms, late_at
            step(record.timestamp_ms, late_at)
            if key_of is not None and (key := key_of(record.value)) != self.key:
                raise BadRecordError(
                    f"the key at {part.name} must be {self.key!r:.100}, like in all fused "
                    f"computations, got {key!r:.100}"
                )
            self._has_dropped = late_at > 0 and part.late == "drop"
            if not self._has_dropped:
                part.record(self._context, record)
            if self._has_dropped:
                self._drop(text, record.timestamp_ms, is_alone=is_alone)
            is_alone = False

    def _drop(self, text: str, at: int, *, is_alone: bool) -> None:
        """Count a record as late, and write it to its part's stream for late records."""
        if is_alone:
            self._backend.drop_late()
        else:
            self._backend.drop_inner()
        stream = self._part.late_stream
        if stream is not None:
            self._send(stream, text, at, late_at=self.late_at or 1)
            if stream in self._fused.outputs:
                self._backend.produce_late(stream, text, at)

    # The context of a part

    @property
    def watermark(self) -> int:
        """The event time before which all on-time records have reached the current part.

        While timers fire, timers of upstream parts may still write for it.
        """
        watermark, ancestors = self._backend.watermark, self._fused.ancestors[self._part.name]
        if self._fired is None or not ancestors:
            return watermark  # Records are processed after all due timers.
        firing_part, hold = self._fired
        if firing_part in ancestors:
            watermark = min(watermark, hold)
        for tag, timer in self._backend.timers.items():
            if not timer.is_late and tag.partition(_BETWEEN)[0] in ancestors:
                watermark = min(watermark, timer.hold)
        return watermark

    def state(self) -> State:
        return self._backend.state().part(self._part.name)

    def set_timer(self, tag: str, at_ms: int, is_processing_time: bool) -> None:
        if is_processing_time:
            self._check_last("processing-time timers")
        self._backend.set_timer(
            f"{self._part.name}{_BETWEEN}{check_tag(tag)}", at_ms, is_processing_time
        )

    def cancel_timer(self, tag: str) -> bool:
        return self._backend.cancel_timer(f"{self._part.name}{_BETWEEN}{tag}")

    def hold(self, at_ms: int) -> int:
        self._check_last("holds")
        return self._backend.hold(at_ms, self.hold_tag)

    def release(self) -> int | None:
        return self._backend.release(self.hold_tag)

    @property
    def timers(self) -> Mapping[str, SetTimer]:
        return self._backend.timers

    @property
    def hold_tag(self) -> str:
        return self._part.name + _BETWEEN

    def _check_last(self, feature: str) -> None:
        """Check that no part reads what the current one writes."""
        if self._fused.is_read(self._part):
            raise BadRecordError(
                f"{self._part.name} cannot have {feature}: they would hold back the fused "
                "computations that read its output"
            )

    def produce(self, stream: str, value: object, timestamp_ms: int) -> None:
        if stream not in self._part.outputs:
            raise UnknownStreamError(
                f"{self._part.name} does not write {stream!r}: add it to its `outputs`"
            )
        if self._fused.readers[stream]:
            text = value_text(value, self._backend.codecs.writers.get(stream))
            self._backend.count_bytes(len(text))
            self._send(
                stream, text, check_output(timestamp_ms, self.timestamp_ms), late_at=self.late_at
            )
        if stream in self._fused.outputs:
            self._backend.produce(stream, value, timestamp_ms, self.hold_tag)

    def drop_late(self) -> None:
        if self._backend.firing is not None:
            self._backend.drop_late()  # It raises for a timer.
        self._has_dropped = True

    def _send(self, stream: str, text: str, at: int, *, late_at: int) -> None:
        """Queue a record for the parts that read it, with a separate copy for each."""
        for part, key_of in self._fused.readers[stream]:
            record = Record(self.key, self._backend.codecs.value(text), at, stream)
            self._waiting.append((part, key_of, record, late_at, text))
