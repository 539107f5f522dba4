"""Computations: what a user writes, called for each record and each timer of a key.

    class HitsPerPath(Computation):
        inputs = {"requests": lambda request: request["path"]}
        outputs = ["hits"]

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state.counter("hits").add(1)
            ctx.set_timer("report", record.timestamp_ms + 60_000)

        def timer(self, ctx: Context, timer: Timer) -> None:
            ctx.produce("hits", {"path": ctx.key, "hits": ctx.state.counter("hits").get()})

A hook works on what it is given and on nothing else: it may be called again for the same record
when its commit was lost, or when a hook beside it has raised. Then its first call never was, and
`record.value` is as it came, whatever the hook has changed in it. A hook calls no service, asks
no clock (`ctx.now_ms` is the time) and keeps nothing in `self`, which all threads share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from rollforward.streams.model.context import Context, ContextBackend
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import Record, Timer
from rollforward.streams.model.state import JSON, Codec

KeyOf = Callable[[Any], str]
# What becomes of a late record.
Late = Literal["process", "drop"]


class Computation:
    """Code that runs for keyed records, with state and timers of each key.

    Attributes:
        name: Stands in keys: never change it while the pipeline runs. By default that of the
            class, with dashes.
        version: Of this code: one more for a version that replaces another while the pipeline runs.
        reads: The earlier versions whose states this one can read.
        inputs: The streams that it reads, each with the function that takes a record's key from
            its value.
        outputs: The streams that it may write.
        inner: The streams that it both writes and reads, if it is fused
            (rollforward.streams.operators.fused).
        late: What becomes of a record that was late when it was injected, and of what it led to:
            "process": `record` gets it, and `ctx.late` says so; "drop": it is counted and dropped.
        late_stream: Where late records go that are dropped, here or by `ctx.drop_late()`; None:
            they are only counted. It is written without a declaration in `outputs`.
        ttl: A key that has had no record for so long (by the watermark) is forgotten, with its
            state and its timers; if no record can come any more, behind its last timer of the
            clock. None: it is kept, also if an earlier version had a time for it.
        percentile: How much of what is expected its timers and `ctx.watermark` wait for: 100: all;
            99: all but about the slowest hundredth. What comes behind that is not `late`, but may
            find its window closed.
        codec: How a state is written as text.
        weak: Its records are worked on, and its results handed on, by whoever writes for it, before
            anything of it is durable. It keeps nothing: no state, no timers, no counts.
        idempotent: Nothing is changed by working on a record again whose results were handed on
            before. A weak computation says so.
        max_attempts: How often a hook may raise for one record or timer, before that becomes a dead
            letter.
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
        """Take one record in: called once for each, one after the other for one key."""

    def timer(self, ctx: Context, timer: Timer) -> None:
        """Act on a timer: called once for each, in order of time for one key."""

    def context(self, backend: ContextBackend) -> Context:
        """Return what hooks get, for one batch."""
        return Context(backend)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Return a state that an earlier version has left as this one has it: here, as it is.

        Called for a key's first record or timer after the version was replaced, and to try whether
        stored states can be read before that.

        Args:
            state: As this version's codec reads it.
            version: One of `reads`.
        """
        return state

    def check_tag(self, tag: str) -> None:
        """Check that this version can act on a timer that an earlier one has set.

        Raises:
            BadRecordError: it cannot.
        """

    def load(self, text: str, version: int) -> dict[str, Any]:
        """Return a state from the text that a version has left.

        Raises:
            BadRecordError: this version cannot read that one.
        """
        if version == self.version:
            return self.codec.load(text)
        if version not in self.reads:
            raise BadRecordError(
                f"version {self.version} of {self.name} does not read states of version {version}"
            )
        return self.upgrade(self.codec.load(text), version)

    @property
    def written(self) -> tuple[str, ...]:
        """Return the streams that it may write, that of late records among them."""
        late = () if self.late_stream is None else (self.late_stream,)
        return tuple(dict.fromkeys((*self.outputs, *late)))

    def check(self) -> None:
        """Check that this can be a part of a pipeline.

        Raises:
            TypeError: it cannot; the text says why.
        """
        if not self._NAMES.fullmatch(self.name):
            raise TypeError(f"a computation's name is of a-z, 0-9 and -, not {self.name!r}")
        if not self.inputs:
            raise TypeError(f"{self.name} reads no stream: name some in `inputs`")
        for stream, key_of in self.inputs.items():
            if not self._NAMES.fullmatch(stream) or not callable(key_of):
                raise TypeError(f"{self.name}: `inputs` are streams (a-z, 0-9 and -), with keys")
        if isinstance(self.outputs, str) or not all(map(self._NAMES.fullmatch, self.written)):
            raise TypeError(f"{self.name}: `outputs` is a list of streams, of a-z, 0-9 and -")
        if not all(type(each) is int and each > 0 for each in (self.version, *self.reads)):
            raise TypeError(f"{self.name}: a `version` is 1 or more, and so are those in `reads`")
        if self.late not in ("process", "drop"):
            raise TypeError(f'{self.name}: `late` is "process" or "drop", not {self.late!r}')
        if self.max_attempts < 1 or (self.ttl is not None and self.ttl <= timedelta(0)):
            raise TypeError(f"{self.name}: `max_attempts` and `ttl` are more than nothing")
        if not 0 < self.percentile <= 100:
            raise TypeError(f"{self.name}: `percentile` is up to 100, not {self.percentile}")
        if self.percentile < 100 and self.ttl is not None:
            raise TypeError(f"{self.name}: no `ttl` with a `percentile`: it waits for all records")
        if self.weak:
            self._check_weak()

    def _check_weak(self) -> None:
        if not self.idempotent:
            raise TypeError(
                f"{self.name} is weak: a record may be worked on again after its results were "
                "handed on. Say `idempotent = True` if that changes nothing, or leave `weak` out"
            )
        keeps = {
            "timers": type(self).timer is not Computation.timer,
            "a `ttl`": self.ttl is not None,
            "a `percentile`": self.percentile < 100,
            "a count of late records": self.late == "drop" or self.late_stream is not None,
        }
        if wrong := [what for what, is_kept in keeps.items() if is_kept]:
            raise TypeError(
                f"{self.name} is weak, and has {wrong[0]}: that has to be durable before a result "
                "is handed on. Leave `weak` out, or let a reader of its results do it"
            )
