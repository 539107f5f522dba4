"""A stopped pipeline, as an operator and a pusher see it."""

from __future__ import annotations

import pytest

from rollforward.streams.inspection.topology_status import topology
from rollforward.streams.model.errors import MissingCodeError
from tests.rollforward.streams.moving import moves

pytestmark = pytest.mark.fast


def test_a_stopped_pipeline_says_that_it_is_stopped_and_which_versions_it_has() -> None:
    """An operator is not told that the code of a version -1 is missing, and a push says why."""
    desk = moves.first_half()
    parts = desk.do(topology(desk.environment)).parts
    with pytest.raises(MissingCodeError, match="moving is stopped: nothing is processed until"):
        desk.push(*moves.records(100, 101))

    assert {(part.version, part.is_missing) for part in parts.values()} == {(1, False)}
    assert {part.version for part in desk.status().computations.values()} == {1}
