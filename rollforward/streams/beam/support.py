"""Support: what of a pipeline Beam can run, and the names of all else; without Beam."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import StreamError
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PullSource
from rollforward.streams.moving.file_format import Header
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Windowed


class UntranslatableError(StreamError, TypeError):
    """A pipeline has parts that Beam cannot run as they are meant; the message names them all."""


def check_translatable(
    pipeline: Declaration,
    inputs: Collection[str],
    *,
    can_read: bool = False,
    unbounded: Collection[str] = (),
    header: Header | None = None,
) -> None:
    """Check that Beam can run a pipeline.

    Args:
        inputs: The source streams that are given as collections.
        can_read: Pull sources that are not among them may be read.
        unbounded: Those that never end, while nothing says how late a record may be.
        header: The export that continues here.

    Raises:
        UntranslatableError: it cannot.
    """
    problems = [
        *_missing(pipeline, inputs, can_read),
        *(problem for code in pipeline.computations.values() for problem in _unknown(code)),
        *_sinks(pipeline),
        *_codecs(pipeline, header),
        *(f"{stream!r} never ends: pass its `lateness`" for stream in unbounded),
        *(_unmovable(pipeline, header) if header is not None else ()),
    ]
    if problems:
        raise UntranslatableError(
            f"{pipeline.name} cannot be translated to Beam: {'; '.join(problems)}"
        )


def has_clock_timers(computation: Computation) -> bool:
    """Return whether the code of a computation names timers of the clock (processing time).

    Runners differ in their support of these timers, so only computations that set them declare one.
    """
    return _has_name(computation, "processing_time")


def _holds(computation: Computation) -> bool:
    """Return whether a computation holds the watermark."""
    if isinstance(computation, Fused):
        return any(map(_holds, computation.parts.values()))
    if isinstance(computation, Windowed):
        return computation.is_held or _has_name(computation, "hold", Windowed)
    return _has_name(computation, "hold")


def _has_name(computation: Computation, name: str, base: type[Computation] = Computation) -> bool:
    """Return whether the code of a computation, without its base's, uses a name."""
    if isinstance(computation, Fused):
        return any(_has_name(part, name) for part in computation.parts.values())
    own = [kind for kind in type(computation).__mro__ if kind not in base.__mro__]
    codes = [
        function.__code__
        for kind in own
        for function in vars(kind).values()
        if isinstance(function, FunctionType)
    ]
    return any(name in names for code in codes for names in _names(code))


def _names(code: CodeType) -> Iterator[Collection[str]]:
    """Yield the names that a function and those inside of it use, also as keywords."""
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, tuple):
            yield constant
        elif inspect.iscode(constant):
            yield from _names(constant)


def _missing(pipeline: Declaration, inputs: Collection[str], can_read: bool) -> Iterator[str]:
    for stream, source in pipeline.sources.items():
        if stream in inputs:
            continue
        if not isinstance(source, PullSource):
            yield f"the source {stream!r} is pushed: pass its records in `sources`"
        elif source.poll is not None:
            yield f"the source {stream!r} polls and never ends: pass its records in `sources`"
        elif not can_read:
            yield f"the source {stream!r} is pulled: pass `clients`, or its records in `sources`"
    for stream in sorted({*inputs} - {*pipeline.sources}):
        yield f"{stream!r} is no source of it"


def _unmovable(pipeline: Declaration, header: Header) -> Iterator[str]:
    for name in sorted({*pipeline.computations} ^ {*header.watermarks}):
        yield f"only one of it and the export has {name}"
    for name in header.due:
        yield f"{name} had timers that were due: resume it, and stop it when they have fired"
    for name, versions in header.versions.items():
        code = pipeline.computations.get(name)
        if code is not None and (unknown := sorted({*versions} - {code.version, *code.reads})):
            yield f"{name} does not declare that it reads states of versions {unknown}"


def _codecs(pipeline: Declaration, header: Header | None) -> Iterator[str]:
    for stream in sorted(pipeline.codecs.by_stream):
        yield f"the stream {stream!r} has a codec, and Beam's records are JSON here"
    for name in () if header is None else header.codecs:
        yield f"the export has records of the codec {name!r}"


def _unknown(computation: Computation) -> Iterator[str]:
    name = computation.name
    if computation.percentile < 100:
        yield f"{name} has a `percentile`, and Beam has one watermark for all records"
    if _holds(computation):
        yield f"{name} holds the watermark (`hold`, `stamp`), which Beam does not show"
    is_own = type(computation).context not in (Computation.context, Fused.context)
    if is_own:
        yield f"{name} has a `context` of its own"


def _sinks(pipeline: Declaration) -> Iterator[str]:
    for sink in pipeline.computations.values():
        if not isinstance(sink, Sink):
            continue
        if type(sink).act is not Sink.act:
            yield f"the sink {sink.name} acts by tasks: write its stream by a transform of Beam"
        if sink.name in pipeline.graph.streams:
            yield f"the sink {sink.name} has the name of a stream"
