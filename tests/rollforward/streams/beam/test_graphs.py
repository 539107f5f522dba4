"""Beam as a judge of graphs that nobody chose, and of clocks, ttl and panes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="Beam is not installed: `make beam` runs this")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.test_stream import TestStream as Script  # noqa: E402
from apache_beam.testing.util import assert_that  # noqa: E402
from apache_beam.transforms.window import TimestampedValue  # noqa: E402

from rollforward.streams import Pipeline, StreamTest  # noqa: E402
from rollforward.streams.beam import translate  # noqa: E402
from rollforward.streams.beam.elements import stamp  # noqa: E402
from rollforward.streams.operators.deduplicate import Deduplicate  # noqa: E402
from tests.rollforward.streams.beam import graphs, pipelines, test_judge  # noqa: E402
from tests.rollforward.streams.beam.test_judge import END, Event, drawn, expect, here  # noqa: E402

LATER_S = 4_000_000_000  # Behind each time that a test sets by the machine's clock.


def in_time(events: list[Event]) -> list[Event]:
    """Return records with, behind each fourth, the highest watermark at which none is late."""
    times = [event[2] for event in events if not isinstance(event, int)]
    result, watermark = list[Event](), 0
    for number, event in enumerate(events):
        result.append(event)
        lowest = min(times[number + 1 :], default=0)
        if lowest > watermark and number % 4 == 3:
            watermark = lowest
            result.append(watermark)
    return [*result, END]


def run_script(
    pipeline: Pipeline,
    events: list[Event],
    expected: Any,
    *,
    clock_s: int = 0,
    may_be_more: Callable[[str, str], bool] = test_judge.never,
) -> None:
    """Run what happens in order on Beam's streaming runner, and compare.

    Args:
        expected: By stream, or a function that gets the results of "out".
    """
    [source] = pipeline.sources
    script = Script()
    for event in events:
        if isinstance(event, int):
            script = script.advance_watermark_to(stamp(event))
        else:
            script = script.add_elements([TimestampedValue(event[1], stamp(event[2]))])
    if clock_s:
        script = script.advance_processing_time(clock_s)
    options = PipelineOptions(streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
        values = p | script.advance_watermark_to_infinity()
        lateness = test_judge.timedelta(days=1)
        outputs = translate(pipeline, p, {source: values}, lateness=lateness)
        if callable(expected):
            texts = outputs["out"] | beam.ParDo(test_judge._Text())
            assert_that(texts, expected)
        else:
            expect(outputs, expected, may_be_more)


@pytest.mark.parametrize("seed", pipelines.seeds(12, 4))
def test_a_drawn_graph_gives_what_it_gives_here(seed: int) -> None:
    pipeline = graphs.drawn_graph(seed)
    events = drawn(seed, [*pipeline.sources], has_late=False)
    expected = here(pipeline, events)
    with beam.Pipeline(runner=FnApiRunner()) as p:
        expect(translate(pipeline, p, test_judge.batch(pipeline, p, events)), expected)


def test_drawn_graphs_have_all_kinds_and_results() -> None:
    kinds, results = Counter[str](), 0
    for seed in range(12):
        pipeline = graphs.drawn_graph(seed)
        kinds.update(type(code).__name__ for code in pipeline.computations.values())
        results += sum(
            map(len, here(pipeline, drawn(seed, [*pipeline.sources], has_late=False)).values())
        )
    assert len(kinds) == 6, kinds
    assert results > 200


# Beam's runner takes seconds for each step of a script, and more for each computation.
ONE_SOURCE = [
    seed
    for seed in range(60)
    if len(graphs.drawn_graph(seed).sources) == 1 and len(graphs.drawn_graph(seed).graph.order) == 2
][:8]


@pytest.mark.parametrize("seed", ONE_SOURCE[: len(pipelines.seeds(4))])
def test_a_drawn_graph_gives_as_a_stream_what_it_gives_here(seed: int) -> None:
    """Disorder and watermarks between the records, of which none is late."""
    pipeline = graphs.drawn_graph(seed)
    events = in_time(drawn(seed, ["in"], has_late=False, count=16))
    run_script(pipeline, events, here(pipeline, events))


def in_steps(pipeline: Pipeline, events: list[Event]) -> list[Event]:
    """Return the same with a watermark at the time of each result of the first computation.

    This runner's watermark does not wait for timers (test_runners): where it jumps over one in each
    of two computations, the second one fires before the first one has written.
    """
    [first, *_] = pipeline.graph.order
    [output] = pipeline.computations[first].written
    times = sorted({int(text.split()[0]) for text in here(pipeline, events)[output]})
    result, watermark = list[Event](), 0
    for event in events:
        if isinstance(event, int):
            result += [at for at in times if watermark < at < event]
            watermark = event
        result.append(event)
    return result


def late_in(events: list[Event]) -> list[tuple[Any, int]]:
    """Return the values and times of the records that are behind the watermark."""
    watermark, late = 0, list[tuple[Any, int]]()
    for event in events:
        if isinstance(event, int):
            watermark = event
        elif event[2] < watermark:
            late.append(event[1:])
    return late


def drawn_late(seed: int) -> list[Event]:
    """Return the first draw from a seed on that has three late records."""
    return next(
        [*events, END]
        for other in range(100 * seed, 100 * seed + 100)
        if len(late_in(events := drawn(other, ["in"], has_late=True, count=16))) >= 3
    )


def opened_by(
    late: list[tuple[Any, int]], expected: dict[str, Counter[str]]
) -> Callable[[str, str], bool]:
    """Return whether a result is of a key's window that has late records alone.

    Here a key that had no other record in the window drops them (test_judge), so no result is
    expected of this window.
    """
    bounds = ("key", "start", "end")

    def is_opened(stream: str, text: str) -> bool:
        result = _value(text)
        key, start, end = window = [result[name] for name in bounds]
        of_key = [at for value, at in late if key in (graphs.by_key(value), graphs.by_text(value))]
        within = [at for at in of_key if start <= at < end]
        here_too = [[_value(other)[name] for name in bounds] for other in expected[stream]]
        return window not in here_too and 0 < result["records"] <= len(within)

    return is_opened


def _value(text: str) -> Any:
    return json.loads(text.partition(" ")[2])


@pytest.mark.parametrize("seed", ONE_SOURCE[-len(pipelines.seeds(8, 2)) :])
def test_a_drawn_graph_with_late_records_gives_what_it_gives_here(seed: int) -> None:
    pipeline, events = graphs.drawn_graph(seed), drawn_late(seed)
    expected = here(pipeline, events)
    stepped = in_steps(pipeline, events)
    assert here(pipeline, stepped) == expected
    assert sum(map(len, expected.values())) > 3
    run_script(pipeline, stepped, expected, may_be_more=opened_by(late_in(events), expected))


@pytest.mark.parametrize("seed", pipelines.seeds(2))
def test_keys_are_forgotten_as_here(seed: int) -> None:
    pipeline = Pipeline("judged", graphs.Forgetting)
    events: list[Event] = []
    for event in in_time(drawn(seed, ["in"], has_late=False, count=16)):
        # Gaps of two minutes, in which keys are forgotten.
        if isinstance(event, int):
            events.append(event // 20_000 * 140_000)
        else:
            events.append((event[0], event[1], event[2] // 20_000 * 140_000 + event[2] % 20_000))
    events = [event for n, event in enumerate(events) if event not in events[:n]]
    events.append(10 * END)
    expected = here(pipeline, events)
    assert len({text for text in expected["counts"] if '"seen": 1}' in text}) >= 3
    run_script(pipeline, events, expected)


@pytest.mark.parametrize("seed", pipelines.seeds(2))
def test_timers_of_the_clock_fire_as_here(seed: int) -> None:
    pipeline = Pipeline("judged", graphs.Hourly)
    events = in_time(drawn(seed, ["in"], has_late=False, count=16))
    test = StreamTest(pipeline)
    for event in events:
        if isinstance(event, int):
            test.advance_watermark(event)
        else:
            test.push(event[0], event[1], event[2])
    assert not test.read("told")
    test.advance_clock(3_600_000)
    told = test.read("told")
    assert len(told) == 3
    texts = Counter(test_judge.text_of(one.value, one.timestamp_ms) for one in told)
    run_script(pipeline, events, {"told": texts}, clock_s=LATER_S)


@pytest.mark.parametrize("seed", pipelines.seeds(2))
def test_only_early_panes_may_be_more_than_here(seed: int) -> None:
    """Where the watermark jumps over several early panes, a key on Beam writes each of them."""
    pipeline = graphs.panes()
    events = [*drawn(seed, ["in"], has_late=True, count=24), END]
    expected = here(pipeline, events)["out"]
    kinds = Counter(
        kind for text in expected for kind in ("early", "on-time", "late") if kind in text
    )
    assert kinds["early"]
    assert kinds["on-time"]

    def compare(actual: list[str]) -> None:
        surplus = Counter(actual) - expected
        assert not expected - Counter(actual)
        assert all('"pane": "early"' in text for text in surplus), surplus

    run_script(pipeline, events, compare)


def deduplicated(within_s: int) -> Pipeline:
    within = test_judge.timedelta(seconds=within_s)
    inputs = {"in": graphs.by_key}
    once = Deduplicate("once", inputs=inputs, output="first", within=within, late_stream="late")
    return Pipeline("judged", once)


@pytest.mark.parametrize("seed", pipelines.seeds(3))
def test_duplicates_are_dropped_as_here(seed: int) -> None:
    """Also late ones, if they are not a whole span behind the watermark."""
    pipeline = deduplicated(45)
    events = [*drawn(seed, ["in"], has_late=True, count=24), END]
    expected = here(pipeline, events)
    assert 3 < sum(expected["first"].values()) < 20
    assert not expected["late"]
    run_script(pipeline, events, expected)


def test_a_duplicate_that_is_a_whole_span_late_is_forwarded_where_here_it_is_late() -> None:
    """The key has not been told that the watermark is there."""
    pipeline = deduplicated(20)
    value = {"k": "a", "n": 0, "size": 0}
    events: list[Event] = [("in", value, 130_000), 125_000, ("in", value, 50_000), END]
    first, late = (Counter([test_judge.text_of(value, at)]) for at in (130_000, 50_000))
    assert here(pipeline, events) == {"first": first, "late": late}
    run_script(pipeline, events, {"first": first + late, "late": Counter()})
