"""Files of exports that an import must take, and files that must not be written."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rollforward.streams import FOREVER, Pipeline, Pulled, PullSource
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.inspection.status import overview
from rollforward.streams.moving import seal_to
from rollforward.streams.moving.exporting import export_with, record_page
from rollforward.streams.moving.file_format import read_header
from rollforward.streams.moving.importing import import_with
from rollforward.streams.moving.stopping import resume_steps, stop_steps
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.streams.storage.remote_calls import CallEffects, Key
from rollforward.streams.storage.schema import CHUNK, INTERVAL, SOURCE
from tests.rollforward.streams.moving import moves
from tests.rollforward.streams.simulator.driver import Came, Desk

pytestmark = pytest.mark.fast

WAITING = 12


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An export of a pipeline in which more large records wait than a row can hold."""
    desk = Desk(moves.pipeline())
    desk.push(*moves.records(0, 8))
    desk.run()
    for n in range(WAITING):
        desk.push(Came(f"large{n}", "a", 60_000 + n), padding='"' * 60_000)
    desk.do(stop_steps(desk.environment))
    return moves.exported(desk, tmp_path / "export")


def test_records_that_are_larger_together_than_a_row_are_imported(large: Path) -> None:
    """G22: the head was written, then each import failed, and the name of the pipeline was lost."""
    counted = moves.finish(moves.imported(large))

    assert [60_000 * 2, WAITING, False] in counted["totals a"]["windows"]


def test_an_import_that_dies_among_the_parts_of_a_page_doubles_none(large: Path) -> None:
    """G22: a part that was written is not written again."""
    desk = Desk(moves.pipeline())
    moves.calls_of(lambda run: import_with(run, large), desk)

    assert len(desk.rows(CHUNK)) > 2
    assert [60_000 * 2, WAITING, False] in moves.finish(desk)["totals a"]["windows"]


def test_a_pipeline_of_more_first_rows_than_a_commit_takes_is_imported(tmp_path: Path) -> None:
    """G22: The rows of 512 intervals; the position of the source and waiting records, too."""

    def desk() -> Desk:
        windows = [
            Windowed(f"w{n}", Tumbling(timedelta(minutes=1)), inputs={"in": str}, output=f"out{n}")
            for n in range(8)
        ]
        return Desk(Pipeline("wide", *windows, sources=[PullSource("in", read)], intervals=64))

    def read(clients: Any, position: int | None, limit: int) -> Pulled:
        at = position or 0
        return Pulled([(n, 1_000 * n) for n in range(at, count)], count, watermark=1_000 * count)

    first, count = desk(), 3
    first.do(pull(first.environment, "in"))
    first.do(stop_steps(first.environment))
    second = desk()
    import_with(moves.run_of(second), moves.exported(first, tmp_path / "export"))

    assert second.head.intervals == first.head.intervals
    assert len(second.rows(INTERVAL)) == 512
    source = second.simulation.store.rows[Key(SOURCE, second.rows(SOURCE)[0])].body
    assert (source.position, source.seq) == (3, 1)
    assert len(second.rows(CHUNK)) == len(first.rows(CHUNK)) > 0


def test_rows_of_an_unknown_computation_are_not_sealed(tmp_path: Path) -> None:
    """An import of them began the pipeline, and then failed by a `KeyError` for ever."""
    row = {"computation": "counted", "key": "a", "text": "{}"}
    with pytest.raises(ValueError, match="moving has no computation 'counted' of a row"):
        seal_to(tmp_path / "file", moves.pipeline(), [row], 0, id_="back")
    assert not [*tmp_path.iterdir()]


def test_an_export_beside_another_of_the_same_path_is_whole(tmp_path: Path) -> None:
    """In two containers both may be process 1: the second one truncated and deleted its file."""
    desk, path = moves.first_half(), tmp_path / "export"

    def dies(steps: Any, *args: Any) -> Any:
        if steps is record_page:
            raise moves.Killed
        return moves.run_of(desk)(steps, *args)

    def run(steps: Any, *args: Any) -> Any:
        if steps is record_page:
            with pytest.raises(moves.Killed):
                export_with(dies, path)
        return moves.run_of(desk)(steps, *args)

    export_with(run, path)
    assert read_header(path).pipeline == "moving"
    assert [*tmp_path.iterdir()] == [path]


def test_the_end_of_a_source_is_no_record_after_a_move(tmp_path: Path) -> None:
    """The page of the pipeline failed on a record of the year 33658, and its lag was an alert."""
    desk = moves.first_half()
    desk.do(resume_steps(desk.environment))
    moves.finish(desk)
    desk.do(stop_steps(desk.environment))
    moved = moves.imported(moves.exported(desk, tmp_path / "export"))

    assert moved.head.sources == {"in": FOREVER}
    assert moved.do(overview(moved.environment)).latest < FOREVER


def test_records_of_a_pull_source_have_new_ids_at_a_weak_sink_after_a_move(tmp_path: Path) -> None:
    """C, G22: they began with the first one's, which whom the sink calls drops as known."""
    count, acted = 3, list[tuple[str, int]]()

    def read(clients: Any, position: int | None, limit: int) -> Pulled:
        return Pulled([(n, n) for n in range(position or 0, count)], count)

    def act(call: CallEffects) -> tuple[int, ...]:
        acted.extend((record.id, record.value) for _, record in call.effects)
        return tuple(range(len(call.effects)))

    def desk() -> Desk:
        sink = EffectSink("in", lambda clients, record: None, weak=True, name="shop")
        made = Desk(Pipeline("weakly", sources=[PullSource("in", read)], sinks=[sink]))
        made.simulation.acts[CallEffects] = act
        return made

    first, path = desk(), tmp_path / "export"
    first.do(pull(first.environment, "in"))
    first.do(stop_steps(first.environment))
    export_with(moves.run_of(first), path)
    second, count = desk(), 5
    import_with(moves.run_of(second), path)
    second.do(pull(second.environment, "in"))

    assert [value for _, value in acted] == [0, 1, 2, 3, 4]
    assert len({id_ for id_, _ in acted}) == 5
