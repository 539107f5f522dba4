"""Faults of Beam's local runners that the judge has met, each in a program of Beam alone.

If one of these fails, a newer Beam has mended it: then what works around it can go.
"""

from __future__ import annotations

from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="Beam is not installed: `make beam` runs this")

from apache_beam.coders import StrUtf8Coder  # noqa: E402
from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.test_stream import TestStream as Script  # noqa: E402
from apache_beam.transforms.timeutil import TimeDomain  # noqa: E402
from apache_beam.transforms.userstate import (  # noqa: E402
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows, TimestampedValue  # noqa: E402

FIRED: list[str] = []


def stage(name: str, timer_name: str) -> Any:
    """Return a DoFn that sets a timer at 60 s, and passes on what it has when that fires."""
    state = ReadModifyWriteStateSpec(f"{timer_name}-state", StrUtf8Coder())
    minute = TimerSpec(timer_name, TimeDomain.WATERMARK)

    class Stage(beam.DoFn):  # type: ignore[misc,name-defined]
        def process(
            self,
            element: tuple[str, str],
            stored: Any = beam.DoFn.StateParam(state),
            timer: Any = beam.DoFn.TimerParam(minute),
        ) -> Any:
            stored.write(element[1])
            timer.set(60)
            yield from ()

        @on_timer(minute)
        def fire(
            self, key: Any = beam.DoFn.KeyParam, stored: Any = beam.DoFn.StateParam(state)
        ) -> Any:
            _note(f"{name}: {stored.read()}")
            yield key, "passed on"

    return Stage()


def _note(text: str) -> None:
    # The DoFn is pickled, so it finds the list by the module's name.
    from tests.rollforward.streams.beam import test_runners

    test_runners.FIRED.append(text)


def _typed(element: Any) -> Any:
    return element


def typed(label: str) -> Any:
    return label >> beam.Map(_typed).with_output_types(tuple[str, str])


def two_stages(second_timer: str) -> list[str]:
    FIRED.clear()
    with beam.Pipeline(runner=FnApiRunner()) as p:
        values = p | beam.Create([("key", "value")], reshuffle=False)
        first = values | typed("in") | "first" >> beam.ParDo(stage("first", "minute"))
        _ = first | typed("between") | "second" >> beam.ParDo(stage("second", second_timer))
    return sorted(FIRED)


def test_a_timer_goes_to_another_function_that_has_one_of_its_name() -> None:
    """Two DoFns of a fused stage: the first one's timer fires in the second, without state."""
    assert two_stages("another") == ["first: value", "second: passed on"]
    assert two_stages("minute") == ["second: None"]


class Twice(beam.DoFn):  # type: ignore[misc,name-defined]
    """Fires at 60 s and at 120 s."""

    STATE = ReadModifyWriteStateSpec("twice-state", StrUtf8Coder())
    TIMER = TimerSpec("twice", TimeDomain.WATERMARK)

    def process(self, element: tuple[str, str], timer: Any = beam.DoFn.TimerParam(TIMER)) -> Any:
        timer.set(60)
        yield from ()

    @on_timer(TIMER)
    def fire(
        self,
        key: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        timer: Any = beam.DoFn.TimerParam(TIMER),
    ) -> Any:
        _note(f"{int(at)} s")
        if at < 120:
            timer.set(120)
        yield key, "passed on"


class AtTheEnd(beam.DoFn):  # type: ignore[misc,name-defined]
    """Fires at 180 s."""

    STATE = ReadModifyWriteStateSpec("end-state", StrUtf8Coder())
    TIMER = TimerSpec("end", TimeDomain.WATERMARK)

    def process(self, element: tuple[str, str], timer: Any = beam.DoFn.TimerParam(TIMER)) -> Any:
        timer.set(180)
        yield from ()

    @on_timer(TIMER)
    def fire(self) -> Any:
        _note("180 s")
        yield from ()


def test_a_timer_fires_before_earlier_ones_of_the_same_fused_stage() -> None:
    """A shuffle between the two ends the stage, and puts them in order."""

    def fired(between: Any) -> list[str]:
        FIRED.clear()
        with beam.Pipeline(runner=FnApiRunner()) as p:
            values = p | beam.Create([("key", "value")], reshuffle=False)
            first = values | typed("in") | beam.ParDo(Twice())
            _ = first | between | typed("between") | beam.ParDo(AtTheEnd())
        return list(FIRED)

    in_order = ["60 s", "120 s", "180 s"]
    assert fired(beam.Reshuffle()) == in_order
    assert fired("nothing" >> beam.Map(_typed)) != in_order


def test_the_watermark_does_not_wait_for_timers_at_the_end_of_all_time() -> None:
    """The older local runner: what a last timer has written is late behind it, and dropped."""

    def grouped(watermarks: list[int]) -> list[str]:
        FIRED.clear()
        script = Script().add_elements([TimestampedValue(("key", "value"), 0)])
        for watermark in watermarks:
            script = script.advance_watermark_to(watermark)
        options = PipelineOptions(streaming=True)
        with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
            values = p | script.advance_watermark_to_infinity() | typed("in")
            written = values | "one" >> beam.ParDo(stage("one", "minute"))
            windows = written | typed("out") | beam.WindowInto(FixedWindows(60))
            _ = windows | beam.GroupByKey() | beam.Map(lambda pair: _note(f"grouped: {pair[0]}"))
        return list(FIRED)

    assert grouped([61]) == ["one: value", "grouped: key"]
    assert grouped([]) == ["one: value"]


class After(beam.DoFn):  # type: ignore[misc,name-defined]
    """Fires at 90 s, and notes each record."""

    TIMER = TimerSpec("after", TimeDomain.WATERMARK)
    STATE = ReadModifyWriteStateSpec("after-state", StrUtf8Coder())

    def process(self, element: tuple[str, str], timer: Any = beam.DoFn.TimerParam(TIMER)) -> Any:
        _note(f"after: {element[1]}")
        timer.set(90)
        yield from ()

    @on_timer(TIMER)
    def fire(self) -> Any:
        _note("after: 90 s")
        yield from ()


def test_a_watermark_that_jumps_over_two_timers_fires_the_second_computation_first() -> None:
    """The older local runner again: what the first one writes at 60 s is late for 90 s."""

    def fired(watermarks: list[int]) -> list[str]:
        FIRED.clear()
        script = Script().add_elements([TimestampedValue(("key", "value"), 0)])
        for watermark in watermarks:
            script = script.advance_watermark_to(watermark)
        options = PipelineOptions(streaming=True)
        with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
            values = p | script.advance_watermark_to_infinity() | typed("in")
            written = values | "one" >> beam.ParDo(stage("one", "minute"))
            both = [values, written | typed("passed")] | beam.Flatten()
            _ = both | typed("both") | "after" >> beam.ParDo(After())
        return [text for text in FIRED if text.startswith("after")]

    assert fired([60, 100]) == ["after: value", "after: passed on", "after: 90 s"]
    assert fired([100])[:2] == ["after: value", "after: 90 s"]
