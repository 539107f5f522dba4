"""Counters that are calm, or not: when they shrink, and who sees to it."""

from __future__ import annotations

import pytest

from tests.infra.world import World
from tests.rollforward.counters.counts import VOTES, WAYS, config, contend, total

pytestmark = [WAYS, pytest.mark.fast]


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
