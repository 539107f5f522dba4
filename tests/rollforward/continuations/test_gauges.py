"""Gauges of continuations: runs that have not ended, and the age of the oldest."""

from __future__ import annotations

import pytest

from rollforward import continuations
from rollforward.continuations import pattern
from rollforward.continuations.pattern import Continuations
from tests.infra.world import World
from tests.rollforward.continuations.walk_jobs import APPLY, Walk, put_items


def gauges(world: World) -> dict[str, float]:
    with world.context():
        found = Continuations().gauges(world.clients, [APPLY])
    return {gauge.name: gauge.value for gauge in found}


def test_gauges_tell_the_runs_under_way_and_the_oldest(world: World) -> None:
    """Two runs, a minute apart; none when they have ended."""
    put_items(world, 3)
    for run_id in ("first", "second"):
        with world.context():
            continuations.start(world.clients, APPLY, Walk(run_id), run_id=run_id)
        world.clock.sleep(60)

    found = gauges(world)
    world.settle()

    assert found["continuations_running"] == 2
    assert found["continuations_oldest_seconds"] == pytest.approx(120, abs=2)
    assert set(gauges(world).values()) == {0}


def test_gauges_read_so_many_runs_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three runs two are counted."""
    monkeypatch.setattr(pattern, "MAX_MEASURED", 2)
    put_items(world, 3)
    with world.context():
        for run_id in ("first", "second", "third"):
            continuations.start(world.clients, APPLY, Walk(run_id), run_id=run_id)

    assert gauges(world)["continuations_running"] == 2
