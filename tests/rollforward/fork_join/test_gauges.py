"""Gauges of fork-join queues: what is not folded, its age, and what is parked."""

from __future__ import annotations

import pytest

from rollforward.fork_join.pattern import ForkJoins
from tests.infra.world import World
from tests.rollforward.fork_join.tally_queue import TALLIES, put


def gauges(world: World) -> dict[str, float]:
    with world.context():
        found = ForkJoins().gauges(world.clients, [TALLIES])
    assert {gauge.labels["fork_join"] for gauge in found} == {TALLIES.name}
    return {gauge.name: gauge.value for gauge in found}


def test_gauges_tell_the_backlog_and_its_age(world: World) -> None:
    """In items, not in packs; all of it is gone with the fold."""
    put(world, "t", "a", "b", "c")
    put(world, "u", "d")
    world.clock.sleep(30)

    waiting = gauges(world)
    world.settle()

    assert waiting["fork_join_waiting_items"] == 4
    assert waiting["fork_join_oldest_seconds"] == pytest.approx(30, abs=2)
    assert set(gauges(world).values()) == {0}


def test_parked_items_are_counted(world: World) -> None:
    """They wait for a replay, and not for a fold."""
    put(world, "t", "a", "bad")
    world.settle()

    assert gauges(world) == {
        "fork_join_waiting_items": 0,
        "fork_join_oldest_seconds": 0,
        "fork_join_parked_items": 1,
    }
