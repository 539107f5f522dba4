"""Beam as the judge: the same pipelines and records on its local runners and on `StreamTest`.

Runs where Beam is installed: `make beam`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="Beam is not installed: `make beam` runs this")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.test_stream import TestStream as Script  # noqa: E402
from apache_beam.testing.util import assert_that  # noqa: E402
from apache_beam.transforms.window import TimestampedValue  # noqa: E402

from rollforward.streams import Computation, Context, Pipeline, Record, StreamTest, Timer  # noqa: E402
from rollforward.streams.beam import Moved, translate  # noqa: E402
from rollforward.streams.beam.elements import milliseconds  # noqa: E402
from tests.rollforward.streams.beam import pipelines  # noqa: E402

MINUTE = pipelines.MINUTE
# What happens, in order: a record (stream, value, time), or a watermark of all sources.
Event = tuple[str, Any, int] | int


def drawn(seed: int, streams: list[str], *, has_late: bool, count: int = 40) -> list[Event]:
    """Return records in disorder, some late, with the watermarks between them."""
    chance, events, watermark = random.Random(seed), list[Event](), 0
    for number in range(count):
        at = max(number * 6_000 + chance.randrange(-30_000, 30_000), 0)
        if at < watermark and not has_late:
            at = watermark
        value = {"k": f"k{chance.randrange(3)}", "n": number, "size": chance.randrange(9)}
        events.append((chance.choice(streams), value, at))
        if chance.random() < 0.3 and has_late:
            watermark = max(watermark, number * 6_000 - chance.randrange(30_000))
            events.append(watermark)
    return events


def here(pipeline: Pipeline, events: list[Event]) -> dict[str, Counter[str]]:
    """Return the outputs of our own engine, by stream."""
    test = StreamTest(pipeline)
    for event in events:
        if isinstance(event, int):
            test.advance_watermark(event)
        else:
            test.push(event[0], event[1], event[2])
    test.close()
    written = {stream for code in pipeline.computations.values() for stream in code.written}
    return {
        stream: Counter(text_of(one.value, one.timestamp_ms) for one in test.read(stream))
        for stream in written
    }


def text_of(value: Any, at: int) -> str:
    return f"{at} {json.dumps(value, sort_keys=True)}"


class _Text(beam.DoFn):  # type: ignore[misc,name-defined]
    def process(self, value: Any, at: Any = beam.DoFn.TimestampParam) -> Any:
        yield text_of(value, milliseconds(at))


def expect(outputs: Mapping[str, Any], expected: Mapping[str, Counter[str]]) -> None:
    """Compare each stream's values and times when the pipeline has run."""

    def check(stream: str) -> Callable[[list[str]], None]:
        def compare(actual: list[str]) -> None:
            surplus, missing = Counter(actual) - expected[stream], expected[stream] - Counter(actual)
            assert not surplus and not missing, (
                f"{stream}: only Beam {[*surplus][:5]}, only here {[*missing][:5]}"
            )

        return compare

    for stream in expected:
        texts = outputs[stream] | f"text of {stream}" >> beam.ParDo(_Text())
        assert_that(texts, check(stream), label=f"check {stream}")


def batch(pipeline: Pipeline, p: Any, events: list[Event]) -> dict[str, Any]:
    """Return the records as bounded collections."""
    return {
        stream: p
        | f"in {stream}"
        >> beam.Create(
            [
                TimestampedValue(event[1], event[2] / 1_000)
                for event in events
                if not isinstance(event, int) and event[0] == stream
            ],
            reshuffle=False,
        )
        for stream in pipeline.sources
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", pipelines.ALL)
def test_a_bounded_input_gives_what_it_gives_here(name: str, seed: int) -> None:
    """All records in any order, none late: every stream of every pipeline is equal."""
    pipeline = pipelines.ALL[name]()
    events = drawn(seed, [*pipeline.sources], has_late=False)
    expected = here(pipeline, events)
    assert sum(map(len, expected.values())) > 3

    with beam.Pipeline(runner=FnApiRunner()) as p:
        expect(translate(pipeline, p, batch(pipeline, p, events)), expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", pipelines.SINGLE)
def test_a_stream_with_late_records_gives_what_it_gives_here(name: str, seed: int) -> None:
    """Disorder, watermarks and late records, one by one: what is late here is late there."""
    pipeline = pipelines.ALL[name]()
    [source] = pipeline.sources
    events = drawn(seed, [source], has_late=True)
    expected = here(pipeline, events)
    assert sum(map(len, expected.values())) > 3
    script = Script()
    for event in events:
        if isinstance(event, int):
            script = script.advance_watermark_to(event / 1_000)
        else:
            script = script.add_elements([TimestampedValue(event[1], event[2] / 1_000)])

    options = PipelineOptions(streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
        values = p | script.advance_watermark_to_infinity()
        outputs = translate(pipeline, p, {source: values}, lateness=timedelta(days=1))
        expect(outputs, expected)
