"""Beam as the judge: the same pipelines and records on its local runners and on `StreamTest`.

Runs where Beam is installed: `make beam`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="Beam is not installed: `make beam` runs this")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.test_stream import TestStream as Script  # noqa: E402
from apache_beam.testing.util import assert_that, equal_to  # noqa: E402
from apache_beam.transforms.window import TimestampedValue  # noqa: E402

from rollforward.streams import Pipeline, PullSource, StreamTest  # noqa: E402
from rollforward.streams.beam import UntranslatableError, translate  # noqa: E402
from rollforward.streams.beam.elements import milliseconds, stamp  # noqa: E402
from rollforward.streams.model.sources import Pulled, UnreadableItem  # noqa: E402
from tests.rollforward.streams.beam import pipelines  # noqa: E402

MINUTE = pipelines.MINUTE
# What happens, in order: a record (stream, value, time), or a watermark of all sources.
Event = tuple[str, Any, int] | int
END = 10 * 60_000


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
            # A script of Beam takes watermarks that rise only.
            risen = number * 6_000 - chance.randrange(30_000)
            if risen > watermark:
                watermark = risen
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


def never(stream: str, text: str) -> bool:
    return False


def expect(
    outputs: Mapping[str, Any],
    expected: Mapping[str, Counter[str]],
    may_be_more: Callable[[str, str], bool] = never,
) -> None:
    """Compare each stream's values and times when the pipeline has run.

    Args:
        may_be_more: Whether Beam may have a result of a stream besides those expected.
    """

    def check(stream: str) -> Callable[[list[str]], None]:
        def compare(actual: list[str]) -> None:
            surplus, missing = (
                Counter(actual) - expected[stream],
                expected[stream] - Counter(actual),
            )
            unexpected = [text for text in surplus if not may_be_more(stream, text)]
            assert (unexpected, missing) == ([], Counter()), stream

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
                TimestampedValue(event[1], stamp(event[2]))
                for event in events
                if not isinstance(event, int) and event[0] == stream
            ],
            reshuffle=False,
        )
        for stream in pipeline.sources
    }


@pytest.mark.parametrize("seed", pipelines.seeds(3))
@pytest.mark.parametrize("name", pipelines.ALL)
def test_a_bounded_input_gives_what_it_gives_here(name: str, seed: int) -> None:
    """All records in any order, none late: every stream of every pipeline is equal."""
    pipeline = pipelines.ALL[name]()
    events = drawn(seed, [*pipeline.sources], has_late=False)
    expected = here(pipeline, events)
    assert sum(map(len, expected.values())) > 3

    with beam.Pipeline(runner=FnApiRunner()) as p:
        expect(translate(pipeline, p, batch(pipeline, p, events)), expected)


@pytest.mark.parametrize("seed", pipelines.seeds(6, 2))
@pytest.mark.parametrize("name", pipelines.SINGLE)
def test_a_stream_with_late_records_gives_what_it_gives_here(name: str, seed: int) -> None:
    """Disorder, watermarks and late records, one by one: what is late here is late there."""
    pipeline = pipelines.ALL[name]()
    [source] = pipeline.sources
    # The last watermark closes all windows, since this runner drops what timers write behind an
    # infinite one (test_runners).
    events = [*drawn(seed, [source], has_late=True), END]
    expected = here(pipeline, events)
    assert sum(map(len, expected.values())) > 3
    script = Script()
    for event in events:
        if isinstance(event, int):
            script = script.advance_watermark_to(stamp(event))
        else:
            script = script.add_elements([TimestampedValue(event[1], stamp(event[2]))])

    options = PipelineOptions(streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
        values = p | script.advance_watermark_to_infinity()
        outputs = translate(pipeline, p, {source: values}, lateness=timedelta(days=1))
        expect(outputs, expected)


def run_batch(pipeline: Pipeline, events: list[Event], expected: Mapping[str, Any]) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as p:
        outputs = translate(pipeline, p, batch(pipeline, p, events))
        rows = outputs.dead | "texts of dead" >> beam.Map(json.dumps, sort_keys=True)
        named = {name: outputs[name] for name in expected if name != "dead"}
        for name, values in {**named, "dead": rows}.items():
            label = f"check {name}"
            assert_that(values, equal_to(expected[name]), label=label)


def test_a_record_that_fails_is_a_dead_letter_and_others_go_on() -> None:
    events: list[Event] = [("in", {"k": "a", "n": n, "size": n}, 1_000 * n) for n in range(5)]
    letter = {
        "computation": "poison", "key": "a", "error": "ValueError: poison", "stream": "in",
        "value": json.dumps(events[3][1], separators=(",", ":")), "timestamp_ms": 3_000,
    }  # fmt: skip
    sums = [{"k": "a", "n": n} for n in (0, 1, 2, 4)]
    expected = {"sums": sums, "dead": [json.dumps(letter, sort_keys=True)]}
    run_batch(pipelines.ALL["poison"](), events, expected)


def test_a_sink_makes_the_values_for_a_writer_of_beam() -> None:
    pipeline = Pipeline("judged", pipelines.OnTime, sinks=[pipelines.Rows("seen", name="rows")])
    events: list[Event] = [("in", {"k": "a", "n": n, "size": n}, 1_000 * n) for n in range(6)]
    letter = {
        "computation": "rows", "key": "all", "error": "ValueError: no row", "stream": "seen",
        "value": json.dumps(events[4][1], separators=(",", ":")), "timestamp_ms": 4_000,
    }  # fmt: skip
    rows = [{"row": n} for n in (0, 1, 2, 3, 5)]
    run_batch(pipeline, events, {"rows": rows, "dead": [json.dumps(letter, sort_keys=True)]})


def _read(clients: Any, position: Any, limit: int) -> Pulled:
    at = position or 0
    values = [({"k": clients["key"], "n": n, "size": n}, 1_000 * n) for n in range(at, at + 2)]
    return Pulled(values, at + 2, is_over=at == 4)


def _read_with_a_bad_line(clients: Any, position: Any, limit: int) -> Pulled:
    pulled = _read(clients, position, limit)
    bad = [UnreadableItem("a line", "ValueError: no number")] if pulled.is_over else []
    return replace(pulled, records=[*pulled.records, *bad])


def _clients() -> Any:
    return {"key": "pulled"}


def test_a_pulled_source_is_read_to_its_end() -> None:
    pipeline = Pipeline("judged", pipelines.OnTime, sources=[PullSource("in", _read)])
    with beam.Pipeline(runner=FnApiRunner()) as p:
        outputs = translate(pipeline, p, {}, clients=_clients)
        expected = [{"k": "pulled", "n": n, "size": n} for n in range(6)]
        assert_that(outputs["seen"], equal_to(expected))


def test_an_item_that_no_reader_can_convert_is_a_dead_letter() -> None:
    source = PullSource("in", _read_with_a_bad_line)
    with beam.Pipeline(runner=FnApiRunner()) as p:
        outputs = translate(
            Pipeline("judged", pipelines.OnTime, sources=[source]), p, {}, clients=_clients
        )
        letter = {
            "computation": "", "key": "", "error": "no record: ValueError: no number",
            "stream": "in", "value": "a line", "timestamp_ms": 0,
        }  # fmt: skip
        expected = [{"k": "pulled", "n": n, "size": n} for n in range(6)]
        assert_that(outputs["seen"], equal_to(expected), label="records")
        assert_that(outputs.dead, equal_to([letter]), label="dead letters")


def test_a_refused_pipeline_adds_nothing_to_beams() -> None:
    p = beam.Pipeline(runner=FnApiRunner())
    with pytest.raises(UntranslatableError, match="'in' is pushed"):
        translate(pipelines.ALL["own"](), p, {})
    assert not p.transforms_stack[0].parts


def test_a_late_record_of_a_key_that_had_none_in_its_window_opens_the_window() -> None:
    """The one difference of late records: a key knows the watermark by its own timers only."""
    value = {"k": "a", "n": 0, "size": 0}
    events: list[Event] = [("in", value, 130_000), 125_000, ("in", value, 1_000), END]
    here_too = Counter([text_of({"k": "a", "minute": 120_000, "hits": 1}, 180_000)])
    assert here(pipelines.ALL["own"](), events)["hits"] == here_too

    script = Script().add_elements([TimestampedValue(value, stamp(130_000))])
    script = script.advance_watermark_to(stamp(125_000))
    script = script.add_elements([TimestampedValue(value, stamp(1_000))])
    script = script.advance_watermark_to(stamp(END)).advance_watermark_to_infinity()
    options = PipelineOptions(streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
        outputs = translate(
            pipelines.ALL["own"](), p, {"in": p | script}, lateness=timedelta(days=1)
        )
        opened = Counter([text_of({"k": "a", "minute": 0, "hits": 1}, 60_000)])
        expect(outputs, {"hits": here_too + opened, "too-late": Counter()})
