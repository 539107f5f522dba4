"""A stopped pipeline, as an operator and a pusher see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollforward.streams.inspection.topology_status import topology
from rollforward.streams.model.errors import MissingCodeError, TopologyError
from rollforward.streams.moving import importing
from rollforward.streams.moving.exporting import export_with, record_page
from rollforward.streams.moving.file_format import read_header
from rollforward.streams.moving.stopping import resume_steps, stop_steps
from tests.rollforward.streams.moving import moves
from tests.rollforward.streams.simulator.driver import Desk

pytestmark = pytest.mark.fast


def test_a_stopped_pipeline_says_that_it_is_stopped_and_which_versions_it_has() -> None:
    """An operator is not told that the code of a version -1 is missing, and a push says why."""
    desk = moves.first_half()
    parts = desk.do(topology(desk.environment)).parts
    with pytest.raises(MissingCodeError, match="moving is stopped: nothing is processed until"):
        desk.push(*moves.records(100, 101))

    assert {(part.version, part.is_missing) for part in parts.values()} == {(1, False)}
    assert {part.version for part in desk.status().computations.values()} == {1}


@pytest.mark.parametrize("stops_again", [False, True])
def test_an_export_of_a_pipeline_that_is_resumed_meanwhile_is_none(
    stops_again: bool, tmp_path: Path
) -> None:
    """G22: its first pages are of one cut and its last ones of another, with a valid digest."""
    desk = moves.first_half()

    def run(steps: Any, *args: Any) -> Any:
        if steps is record_page:
            desk.do(resume_steps(desk.environment))
            desk.run()
            if stops_again:
                desk.do(stop_steps(desk.environment))
        return moves.run_of(desk)(steps, *args)

    with pytest.raises(TopologyError, match="was resumed while it was exported"):
        export_with(run, tmp_path / "export")
    assert not [*tmp_path.iterdir()]


def test_a_pipeline_whose_import_is_unfinished_is_not_stopped(tmp_path: Path) -> None:
    """G22: it was, as the operator was told, and the end of the import let it run."""
    header = read_header(moves.exported(moves.first_half(), tmp_path / "export"))
    half = Desk(moves.pipeline())
    half.do(importing.begin(half.environment, header))
    with pytest.raises(TopologyError, match="an import into it is not finished"):
        half.do(stop_steps(half.environment))
