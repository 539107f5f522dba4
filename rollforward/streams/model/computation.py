"""Computations: hooks that run for each record and each timer of a key.

    class HitsPerPath(Computation):
        inputs = {"requests": lambda request: request["path"]}
        outputs = ["hits"]

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state.counter("hits").add(1)
            ctx.set_timer("report", record.timestamp_ms + 60_000)

        def timer(self, ctx: Context, timer: Timer) -> None:
            ctx.produce("hits", {"path": ctx.key, "hits": ctx.state.counter("hits").get()})

Hooks must be deterministic. A hook runs again for the same record if its commit was lost, or if
another hook of the bundle raised. The effects of the first call are then discarded, and
`record.value` is decoded again. A hook calls no service, reads no clock but `ctx.now_ms`, and
keeps nothing in `self`, which all threads share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from rollforward.app_code import runs_when_called
from rollforward.streams.model.context import Context, ContextBackend
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import Record, Timer
from rollforward.streams.model.state import JSON, Codec

KeyOf = Callable[[Any], str]
# The policy for late records.
Late = Literal["process", "drop"]


class Computation:
    """Code that runs for keyed records, with keyed state and timers.

    Attributes:
        name: A part of stored names: never change it while the pipeline runs. Default: the name of
            the class, with dashes.
        version: The version of this code. Increment it to replace a running version.
        reads: The earlier versions whose states this one can read.
        inputs: The streams to read, each with the function that extracts the key from a value.
        outputs: The streams that it may write.
        inner: The streams that it both writes and reads, if it is fused
            (rollforward.streams.operators.fused).
        late: The policy for records that arrived late, and for the records derived from them.
            "process": `record` gets them, with `ctx.late` set; "drop": they are counted and
            dropped.
        late_stream: The stream for dropped late records, both by policy and by `ctx.drop_late()`.
            None: they are only counted. It needs no declaration in `outputs`.
        ttl: A key without a record for so long (in event time) is deleted, with its state and its
            timers. Once the inputs have ended, processing-time timers of the key fire first. None:
            keys stay, even if an earlier version had a `ttl`.
        percentile: The share of the expected records that timers and `ctx.watermark` wait for. 100:
            all; 99: all but about the slowest hundredth. Slower records are not `late`, but their
            window may be closed.
        codec: Serializer of states.
        weak: Stateless and at least once. Its writer runs it inline and forwards its results before
            anything is durable. It has no state, timers or counts.
        idempotent: Processing a record again has no further effect, even if its results were
            forwarded before. A weak computation must declare it.
        max_attempts: How many times a hook may raise for one record or timer, before that becomes a
            dead letter.
    """

    name: str = ""
    version: int = 1
    reads: Sequence[int] = ()
    inputs: Mapping[str, KeyOf] = {}
    outputs: Sequence[str] = ()
    inner: Sequence[str] = ()
    late: Late = "process"
    late_stream: str | None = None
    ttl: timedelta | None = None
    percentile: float = 100
    codec: Codec = JSON
    weak: bool = False
    idempotent: bool = False
    max_attempts: int = 3

    _NAMES: ClassVar[re.Pattern[str]] = re.compile(r"[a-z][a-z0-9-]{0,60}")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).strip("_").lower()

    def record(self, ctx: Context, record: Record) -> None:
        """Process one record: called once for each, sequentially per key."""

    def timer(self, ctx: Context, timer: Timer) -> None:
        """Process a timer: called once for each, in order of time per key."""

    def context(self, backend: ContextBackend) -> Context:
        """Return the context of the hooks of one bundle."""
        return Context(backend)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Return an earlier version's state in the form of this version; default: unchanged.

        Called for a key's first record or timer after the version was replaced. The compatibility
        check before a replacement calls it, too.

        Args:
            state: The state as read by this version's codec.
            version: One of `reads`.
        """
        return state

    def check_tag(self, tag: str) -> None:
        """Check that this version can process a timer that an earlier one has set.

        Raises:
            BadRecordError: it cannot.
        """

    def load(self, text: str, version: int) -> dict[str, Any]:
        """Return the state that a version has stored as text.

        Raises:
            BadRecordError: this version cannot read states of that one.
        """
        if version == self.version:
            return self.codec.load(text)
        if version not in self.reads:
            raise BadRecordError(
                f"version {self.version} of {self.name} does not read states of version {version}"
            )
        state = self.upgrade(self.codec.load(text), version)
        if not isinstance(state, dict):  # A forgotten `return` would lose the state.
            raise BadRecordError(
                f"`upgrade` of {self.name} must return a dict, got a {type(state).__name__}"
            )
        return state

    @property
    def written(self) -> tuple[str, ...]:
        """Return the streams that it may write, including its `late_stream`."""
        late = () if self.late_stream is None else (self.late_stream,)
        return tuple(dict.fromkeys((*self.outputs, *late)))

    def check(self) -> None:
        """Check that this can be a part of a pipeline.

        Raises:
            TypeError: it cannot; the message says why.
        """
        name = self.name
        if not self._NAMES.fullmatch(name):
            raise TypeError(f"a computation's name must consist of a-z, 0-9 and -, got {name!r}")
        if not self.inputs or not isinstance(self.inputs, Mapping):
            raise TypeError(f"{name}: `inputs` must map at least one stream to its key function")
        for stream, key_of in self.inputs.items():
            if not self._NAMES.fullmatch(stream) or not callable(key_of):
                raise TypeError(
                    f"{name}: `inputs` must map streams (a-z, 0-9 and -) to key functions"
                )
        if isinstance(self.outputs, str) or not all(map(self._NAMES.fullmatch, self.written)):
            raise TypeError(f"{name}: `outputs` must be a list of streams (a-z, 0-9 and -)")
        versions = self.version, *self.reads
        if not all(type(version) is int and version > 0 for version in versions):
            raise TypeError(f"{name}: `version` and `reads` must be whole numbers from 1 on")
        if self.late not in ("process", "drop"):
            raise TypeError(f'{name}: `late` must be "process" or "drop", got {self.late!r}')
        if self.max_attempts < 1 or (self.ttl is not None and self.ttl <= timedelta(0)):
            raise TypeError(f"{name}: `max_attempts` and `ttl` must be positive")
        if not 0 < self.percentile <= 100:
            raise TypeError(
                f"{name}: `percentile` must be positive and at most 100, got {self.percentile}"
            )
        if self.percentile < 100 and self.ttl is not None:
            raise TypeError(
                f"{name}: `ttl` must be None with a `percentile`, because it waits for all records"
            )
        for hook in (self.record, self.timer):
            check_plain(name, hook)
        if self.weak:
            self._check_weak()

    def _check_weak(self) -> None:
        if not self.idempotent:
            raise TypeError(
                f"{self.name} is weak, so a record may be processed again after its results were "
                "forwarded. Set `idempotent = True` if that is harmless, or leave `weak` out"
            )
        durable = {
            "timers": type(self).timer is not Computation.timer,
            "a `ttl`": self.ttl is not None,
            "a `percentile`": self.percentile < 100,
            "a count of late records": self.late == "drop" or self.late_stream is not None,
        }
        if used := [feature for feature, is_used in durable.items() if is_used]:
            raise TypeError(
                f"{self.name} is weak, but has {used[0]}, which must be durable before a result "
                "is forwarded. Leave `weak` out, or let a reader of its results do it"
            )


def check_plain(name: str, function: Callable[..., object]) -> None:
    """Check that a call of a computation's or sink's function runs it.

    Raises:
        TypeError: it is a generator, as in Apache Beam, or a coroutine, which a call only creates.
    """
    if not runs_when_called(function):
        called = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name}: {called} must be a plain function: called, it would not run")
