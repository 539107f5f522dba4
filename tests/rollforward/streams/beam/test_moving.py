"""A pipeline that moves: another engine ends at a watermark, and Beam goes on from its states."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="Beam is not installed: `make beam` runs this")

from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

from rollforward.streams.beam import Moved, translate  # noqa: E402
from tests.rollforward.streams.beam import pipelines, test_judge  # noqa: E402

KEPT: dict[str, list[Any]] = {"rows": [], "texts": []}
CUT_MS = 165_000


def _keep(value: Any, name: str) -> None:
    # Pickled by the module's name, so the list is this process's one.
    KEPT[name].append(json.loads(json.dumps(value)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["own", "tumbling", "sliding", "sessions", "stages"])
def test_outputs_go_on_over_a_move_as_if_there_had_been_none(name: str, seed: int) -> None:
    pipeline = pipelines.ALL[name]()
    events = test_judge.drawn(seed, ["in"], has_late=False)
    expected = test_judge.here(pipeline, events)
    before = [event for event in events if event[2] < CUT_MS]  # type: ignore[index]
    after = [event for event in events if event[2] >= CUT_MS]  # type: ignore[index]
    for values in KEPT.values():
        values.clear()

    streams = [stream for stream in expected if stream != "too-late"]
    with beam.Pipeline(runner=FnApiRunner()) as p:
        outputs = translate(pipeline, p, test_judge.batch(pipeline, p, before), ends_at=CUT_MS)
        _note(outputs, streams)
        _ = outputs.states | "keep states" >> beam.Map(_keep, "rows")
    states, first = [*KEPT["rows"]], len(KEPT["texts"])
    assert states
    with beam.Pipeline(runner=FnApiRunner()) as p:
        moved = Moved(p | "states" >> beam.Create(states), CUT_MS)
        outputs = translate(pipeline, p, test_judge.batch(pipeline, p, after), moved=moved)
        _note(outputs, streams)

    assert 0 < first < len(KEPT["texts"])
    actual = Counter(map(tuple, KEPT["texts"]))
    assert actual == Counter(
        (stream, text) for stream in streams for text in expected[stream].elements()
    )


def _note(outputs: Any, streams: list[str]) -> None:
    for stream in streams:
        texts = outputs[stream] | f"text of {stream}" >> beam.ParDo(test_judge._Text())
        named = texts | f"name {stream}" >> beam.Map(lambda text, stream: (stream, text), stream)
        _ = named | f"keep {stream}" >> beam.Map(_keep, "texts")
