"""A pipeline that moves: another engine ends at a watermark, and Beam goes on from its states."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="Beam is not installed: `make beam` runs this")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.test_stream import TestStream as Script  # noqa: E402
from apache_beam.transforms.window import TimestampedValue  # noqa: E402

from rollforward.streams.beam import Moved, UntranslatableError, translate  # noqa: E402
from rollforward.streams.beam.elements import stamp  # noqa: E402
from rollforward.streams.moving import IncompleteExportError, file_format, seal_to  # noqa: E402
from rollforward.streams.moving.importing import import_with  # noqa: E402
from rollforward.streams.moving.stopping import stop_steps  # noqa: E402
from tests.rollforward.streams.beam import pipelines, test_judge  # noqa: E402
from tests.rollforward.streams.moving import moves  # noqa: E402
from tests.rollforward.streams.simulator.driver import Desk  # noqa: E402

KEPT: dict[str, list[Any]] = {"rows": [], "texts": []}
CUT_MS = 165_000


def _keep(value: Any, name: str) -> None:
    # Pickled by the module's name, so the list is this process's one.
    KEPT[name].append(json.loads(json.dumps(value)))


@pytest.mark.parametrize("seed", pipelines.seeds(2))
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


# Windows: a key, the time of the window's end, and its count.
Windows = Counter[tuple[str, int, int]]


def _windows_here(desk: Desk) -> Windows:
    return _windows_of(moves.totals(desk))


def _windows_of(totals: dict[str, Any]) -> Windows:
    return Counter(
        (name.removeprefix("totals "), at, count)
        for name, state in totals.items()
        for at, count, _ in state.get("windows", ())
    )


def _windows_kept() -> Windows:
    texts = [text.split(" ", 1) for stream, text in KEPT["texts"] if stream == "counts"]
    values = [(int(at), json.loads(value)) for at, value in texts]
    return Counter((value["key"], at, value["value"]) for at, value in values)


def _values(p: Any, start: int, end: int) -> Any:
    values = [TimestampedValue({"k": one.key}, stamp(one.at)) for one in moves.records(start, end)]
    return p | f"in {start}" >> beam.Create(values, reshuffle=False)


def _clear() -> None:
    for values in KEPT.values():
        values.clear()


def _on_beam(path: Path, start: int, end: int) -> Windows:
    """Go on from an export, to the end of the records."""
    _clear()
    with beam.Pipeline(runner=FnApiRunner()) as p:
        moved = Moved.read(p, str(path))
        outputs = translate(moves.pipeline(), p, {"in": _values(p, start, end)}, moved=moved)
        _note(outputs, ["counts", "ticks"])
    return _windows_kept()


def test_a_count_is_exact_over_a_move_from_our_engine_to_beam(tmp_path: Path) -> None:
    """States, large ones, timers and waiting records go on; what was counted here is not again."""
    desk = moves.first_half()
    here = _windows_here(desk)
    there = _on_beam(moves.exported(desk, tmp_path / "export"), 100, 200)

    assert here
    assert there
    assert here + there == _windows_of(moves.run_whole())
    # Timers of the clock, set here and due since: each key's fires there.
    ticks = [text for stream, text in KEPT["texts"] if stream == "ticks"]
    assert len(ticks) >= len(moves.KEYS)


def test_a_key_that_gets_no_more_records_fires_its_timers_on_beam(tmp_path: Path) -> None:
    desk = moves.first_half()
    here = _windows_here(desk)
    there = _on_beam(moves.exported(desk, tmp_path / "export"), 100, 100)
    assert here + there == _windows_of(moves.run_whole(100))


def _first_half_on_beam(ends_at: int) -> list[Any]:
    """Return the states at a watermark, and the records that come behind it."""
    _clear()
    script = Script()
    for one in moves.records(0, 90):
        script = script.add_elements([TimestampedValue({"k": one.key}, stamp(one.at))])
    script = script.advance_watermark_to(stamp(ends_at + 1))
    for one in moves.records(90, 100):
        script = script.add_elements([TimestampedValue({"k": one.key}, stamp(one.at))])
    options = PipelineOptions(streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
        values = p | script.advance_watermark_to_infinity()
        outputs = translate(
            moves.pipeline(), p, {"in": values}, lateness=test_judge.timedelta(days=1),
            ends_at=ends_at,
        )  # fmt: skip
        _note(outputs, ["counts"])
        _ = outputs.states | "keep states" >> beam.Map(_keep, "rows")
        _ = outputs.after | "keep after" >> beam.Map(_keep, "rows")
    return [*KEPT["rows"]]


def test_a_count_is_exact_over_a_move_from_beam_to_our_engine(tmp_path: Path) -> None:
    rows = _first_half_on_beam(80_000)
    there, path = _windows_kept(), tmp_path / "export"
    assert there
    assert any(not file_format.is_state(row) for row in rows)
    seal_to(path, moves.pipeline(), rows, 80_000, id_="back")
    desk = moves.imported(path)
    import_with(moves.run_of(desk), path)
    totals = moves.finish(desk, *moves.records(100, 200))

    # The states of `totals` have moved, too: they have both halves.
    assert _windows_of(totals) == _windows_of(moves.run_whole())
    assert there == Counter(
        {window: n for window, n in _windows_of(totals).items() if window[1] <= 80_000}
    )


def test_a_torn_export_and_one_that_does_not_fit_are_refused(tmp_path: Path) -> None:
    path = moves.exported(moves.first_half(), tmp_path / "export")
    text = path.read_bytes()
    p = beam.Pipeline(runner=FnApiRunner())
    path.write_bytes(text[: len(text) // 2])
    with pytest.raises(IncompleteExportError):
        Moved.read(p, str(path))
    path.write_bytes(text)
    moved = Moved.read(p, str(path))
    with pytest.raises(UntranslatableError, match="only one of it and the export has"):
        translate(pipelines.ALL["own"](), p, {"in": _values(p, 0, 1)}, moved=moved)


def _late_on_beam(path: Path) -> list[str]:
    """Return the streams that a record behind the source's watermark is written to."""
    _clear()
    value = TimestampedValue({"k": "a", "n": 1, "size": 1}, stamp(10_000))
    with beam.Pipeline(runner=FnApiRunner()) as p:
        moved = Moved.read(p, str(path))
        values = p | "in" >> beam.Create([value], reshuffle=False)
        outputs = translate(pipelines.ALL["late"](), p, {"in": values}, moved=moved)
        _note(outputs, ["seen", "late"])
    return [stream for stream, _ in KEPT["texts"]]


def test_a_record_behind_the_watermark_of_its_source_is_late_on_beam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(pipelines.ALL["late"]())
    desk.push(*moves.records(0, 10), watermark=60_000, n=0, size=0)
    desk.run()
    desk.do(stop_steps(desk.environment))
    path = moves.exported(desk, tmp_path / "export")
    assert _late_on_beam(path) == ["late"]

    monkeypatch.setattr(Moved, "floor", lambda moved, stream: 0)
    assert _late_on_beam(path) == ["seen"]


def test_records_that_do_not_wait_for_the_state_of_their_key_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = moves.first_half()
    here = _windows_here(desk)
    path = moves.exported(desk, tmp_path / "export")
    monkeypatch.setattr(Moved, "starts_at", lambda moved, computation: 0)
    assert here + _on_beam(path, 100, 200) != _windows_of(moves.run_whole())
