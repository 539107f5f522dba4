"""Counters that are calm, or not: when they shrink, and who sees to it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rollforward.counters import Counter, listing
from rollforward.counters.counter import SETTLED_AGAIN_S
from rollforward.counters.entities import config_key
from rollforward.counters.pattern import Counters
from tests.infra.world import World
from tests.rollforward.counters.counts import (
    HITS,
    LIKES,
    VOTES,
    WAYS,
    add,
    config,
    contend,
    resize,
    total,
)

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


def test_a_counter_that_stays_due_gets_a_task_once_in_ten_minutes(world: World) -> None:
    """E2: also if its queue is paused; a purge of the queue delays it no longer."""
    add(world, "a")
    resize(world, "a", 4)
    resize(world, "a", 2)
    world.engine.reset()
    for _ in range(5):
        world.sweep()
    waiting = len(world.engine.due())
    world.engine.reset()
    world.clock.sleep(SETTLED_AGAIN_S)
    world.sweep()
    world.settle()

    assert waiting == 1
    assert config(world, "a").read_shards == 2


def test_a_sweep_settles_what_is_due_of_its_own_counter_alone(world: World) -> None:
    """An idle counter costs nothing."""
    add(world, "rest")
    resize(world, "a", 4)
    resize(world, "a", 2)
    world.engine.reset()
    with world.context():
        assert LIKES.sweep(world.clients) == 1
        assert VOTES.sweep(world.clients) == 0
    world.settle()
    with world.context():
        assert LIKES.sweep(world.clients) == 0
        assert config_key("likes", "a").get().read_shards == 2


@pytest.mark.parametrize("key", ["字" * 400, '"' * 1200])
def test_a_key_of_the_longest_length_is_drained_and_holds_up_no_other(
    world: World, key: str
) -> None:
    """E2: it stands in no task's name, which has less room as JSON."""
    for each in (key, "a"):
        add(world, each)
        resize(world, each, 4)
        resize(world, each, 2)
    woken = len(world.engine.due())
    world.engine.reset()
    world.sweep()
    world.settle()

    assert woken == 2
    assert [config(world, each).read_shards for each in (key, "a")] == [2, 2]


def test_an_operator_sees_how_many_keys_are_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a bound; a gathered counter has no shards, but a queue."""
    for key in "abc":
        resize(world, key, 4)
        resize(world, key, 2)

    def numbers(counter: Counter) -> Mapping[str, object]:
        with world.context():
            return Counters().run(world.clients, [HITS, LIKES, VOTES], counter.name).numbers

    likes = {"mode": "exact", "min_shards": 1, "max_shards": 64}
    assert numbers(LIKES) == {**likes, "due_keys": 3}
    assert numbers(VOTES) == {**likes, "max_shards": 16, "due_keys": 0}
    assert numbers(HITS) == {"mode": "gathered", "gathered_by": "fork-join queue counters-hits"}
    monkeypatch.setattr(listing, "MAX_COUNTED", 2)
    assert numbers(LIKES)["due_keys"] == 2
