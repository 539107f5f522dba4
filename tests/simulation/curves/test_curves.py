"""The curves' loads lose and double nothing, and a point of a curve has its parts."""

import pytest

from tests.simulation.curves.curve import Conditions, play, text_of
from tests.simulation.curves.loads import LOADS

pytestmark = pytest.mark.fast

SHORT = Conditions(clients=4, warm_s=2.0, seconds=2.0)


@pytest.mark.parametrize("load", LOADS)
def test_a_load_of_two_workers_loses_and_doubles_nothing(load: str) -> None:
    row = play(LOADS[load], 2, SHORT)
    assert row.is_exact
    assert row.per_s > 0
    # A batch is offered whole, maybe before the count, and none need be complete so soon.
    assert load == "batches" or (row.offered_per_s > 0 and row.lags_s)
    assert sum(row.shares.values()) > 0.99
    assert {"Commit", "processor"} <= set(row.shares)
    assert text_of(row, row.lags_s, 1.0).startswith("| 2 | ")


def test_a_play_can_be_repeated() -> None:
    """A point of a curve is the same each time."""
    assert play(LOADS["gathered"], 2, SHORT) == play(LOADS["gathered"], 2, SHORT)
