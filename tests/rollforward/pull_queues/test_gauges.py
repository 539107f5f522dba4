"""Gauges of pull queues: what waits, for how long, and what nobody could do."""

from __future__ import annotations

import pytest

from rollforward.pull_queues import PullQueue
from rollforward.pull_queues.pattern import PullQueues
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, add, lease


def gauges(world: World) -> dict[str, float]:
    return {gauge.name: gauge.value for gauge in PullQueues().gauges(world.clients, [WORK])}


def test_gauges_tell_the_backlog_and_its_age(world: World) -> None:
    """Leased items count as waiting, and are not ready."""
    add(world, "a", "b", "c")
    world.clock.sleep(40)
    lease(world, 2, lease_s=300)
    world.clock.sleep(20)

    found = gauges(world)
    assert found["pull_queue_items"] == 3
    assert found["pull_queue_oldest_seconds"] == pytest.approx(60, abs=1)
    assert found["pull_queue_dead_letters"] == 0


def test_a_dead_letter_is_counted_apart(world: World) -> None:
    """It waits no more."""
    add(world, "poison")
    for _ in range(4):
        lease(world, lease_s=1)
        world.clock.sleep(2)

    assert gauges(world) == {
        "pull_queue_items": 0,
        "pull_queue_oldest_seconds": 0,
        "pull_queue_dead_letters": 1,
    }


def test_gauges_read_no_item_to_count_it(world: World) -> None:
    """Keys cost nothing: a monitor that asks each minute pays for no backlog."""
    narrow, spent = PullQueue("narrow", partitions=1, max_deliveries=1), []
    for count in (1, 20):
        for _ in range(2):
            for number in range(count):
                narrow.add(world.clients, f"{number}")
            narrow.lease(world.clients, limit=100, lease_s=1)
            world.clock.sleep(2)
        before = world.clients.meter.cost()
        PullQueues().gauges(world.clients, [narrow])
        spent.append((world.clients.meter.cost() - before).reads)

    assert len(narrow.dead_letters()) > 20
    assert spent[1] <= max(spent[0], 1)
