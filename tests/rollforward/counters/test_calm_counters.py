"""Counters that are calm, or not: when they shrink, and who sees to it."""

from __future__ import annotations

import pytest

from tests.infra.world import World
from tests.rollforward.counters.counts import VOTES, WAYS, add, config, contend, resize, total

pytestmark = [WAYS, pytest.mark.fast]


def test_a_counter_that_nobody_could_be_woken_for_is_drained_by_the_sweep(world: World) -> None:
    """E2: its number is changed all the same; Cloud Tasks did not answer."""
    for _ in range(4):
        add(world, "a", counter=VOTES)
    with world.plan.watched():
        world.plan.reset()
        world.plan.break_next("CreateTask", "error:UNAVAILABLE", 20)
        resize(world, "a", 4, VOTES)
        resize(world, "a", 2, VOTES)
    world.plan.pending = []
    drained = config(world, "a", VOTES)
    world.settle()
    assert (drained.shards, drained.is_pinned) == (2, True)
    assert drained.read_shards == config(world, "a", VOTES).read_shards == 4
    world.sweep()
    world.settle()

    assert config(world, "a", VOTES).read_shards == 2
    assert total(world, "a", VOTES) == 4


def test_a_counter_with_all_its_shards_does_not_shrink_while_it_has_conflicts(
    world: World,
) -> None:
    """E2: its time is moved on when half of it has passed, and not by each commit."""
    contend(world, VOTES, "a", 8)
    grown = config(world, "a", VOTES)
    world.clock.sleep(10)
    contend(world, VOTES, "a", 4)
    assert config(world, "a", VOTES).due == grown.due
    world.clock.sleep(15)
    contend(world, VOTES, "a", 4)
    assert config(world, "a", VOTES).due > grown.due
    world.clock.sleep(10)
    world.sweep()
    world.settle()
    assert config(world, "a", VOTES).shards == grown.shards == 16
    world.clock.sleep(25)
    world.sweep()
    world.settle()

    assert config(world, "a", VOTES).shards == 8
    assert total(world, "a", VOTES) == 16
