"""Gauges of batches: those that are not complete, and the age of the oldest."""

from __future__ import annotations

import pytest

from rollforward.batches.pattern import Batches
from tests.infra.world import World
from tests.rollforward.batches.harness import NOTES, notes


def gauges(world: World) -> dict[str, float]:
    with world.context():
        found = Batches().gauges(world.clients, [NOTES])
    return {gauge.name: gauge.value for gauge in found}


def test_gauges_tell_the_open_batches_and_the_oldest(world: World) -> None:
    """An hour apart; a batch that is sealed and done counts no more."""
    before = gauges(world)  # Batches of others are there already.
    for batch_id in ("first", "second"):
        with world.context():
            NOTES.populate(world.clients, batch_id, notes("a"))
        world.clock.sleep(3_600)

    both = gauges(world)
    with world.context():
        NOTES.seal(world.clients, "first")
    world.settle()
    one = gauges(world)

    counts = [found["batches_running"] - before["batches_running"] for found in (both, one)]
    assert counts == [2, 1]
    assert both["batches_oldest_seconds"] == pytest.approx(7_200, abs=2)
    assert 3_600 <= one["batches_oldest_seconds"] < 3_700
