"""The sweep of fork-join queues: stranded batches are woken, at little cost."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import pytest

from rollforward.fork_join import fork_join
from rollforward.fork_join.entities import EpochId, PackId, WorkPack
from rollforward.fork_join.sweep import Drain, SweepResult, sweep_all
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import (
    AT_ONCE,
    TALLIES,
    packs,
    put,
    tallied,
    tally,
    tasks,
)


def test_a_batch_whose_task_is_lost_is_woken_by_the_sweep(world: World) -> None:
    """D3: within its period and one sweep."""
    put(world, "t", "a", "b")
    world.engine.reset()
    world.heal(lambda: not packs(), rounds=2)

    with world.context():
        assert tallied("t") == Counter("ab")


def test_a_sweep_of_several_queues_says_what_it_woke_in_all() -> None:
    results = [SweepResult(woken=2), SweepResult(woken=3, partitions=4)]
    assert sum(results, start=SweepResult()) == SweepResult(woken=5, partitions=4)


def test_many_stranded_batches_are_woken_by_walks(world: World, monkeypatch: Any) -> None:
    """D3: partition by partition, page by page, each its own task."""
    monkeypatch.setattr("rollforward.fork_join.sweep.MAX_HERE", 7)
    for i in range(60):
        put(world, f"t{i}", "a")
    world.engine.reset()
    world.clock.sleep(60)
    world.sweep()
    assert 16 >= len([t for t in tasks(world) if t.http_request.url.endswith("/drain")]) > 10
    world.settle()

    with world.context():
        assert packs() == []
        assert all(tallied(f"t{i}") == Counter("a") for i in range(60))


def test_walks_wake_all_of_a_partition_at_the_age_that_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: by one sweep, although each page has one pack, and a partition has two."""
    monkeypatch.setattr("rollforward.fork_join.sweep.MAX_HERE", 1)
    for i in range(20):
        put(world, f"t{i}", "a")
    world.engine.reset()
    world.clock.sleep(3)
    with world.context():
        assert TALLIES.sweep(world.clients, stale_s=1).partitions == 16
    world.settle()

    with world.context():
        assert packs() == []
        assert all(tallied(f"t{i}") == Counter("a") for i in range(20))


def test_a_batch_whose_period_lasts_is_not_stranded(services: Services) -> None:
    """It has a joiner to come: waking it would cut it in two."""
    slow = fork_join("tallies-slow", queue="fork-join", period_s=60.0)(tally)
    world = World(services, fork_joins=[slow])
    put(world, "t", "a", queue=slow)
    woken = []
    for _ in range(2):
        world.clock.sleep(40)
        with world.context():
            woken.append(slow.sweep(world.clients).woken)

    assert woken == [0, 1]


@pytest.mark.parametrize("minutes", [13, 25, 45, 90, 24 * 60])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_was_stranded_while_nobody_swept_is_woken_by_the_next_sweep(
    world: World, minutes: int, is_first: bool
) -> None:
    """D3: within one sweep, however long there was none, whether or not there ever was one."""
    if not is_first:
        world.sweep()
    put(world, "t", "a")
    world.engine.reset()
    world.clock.sleep(minutes * 60)
    world.sweep()
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_many_stranded_batches_are_woken_after_a_day_without_sweeps(
    world: World, monkeypatch: Any
) -> None:
    """D3: walks know when the last round was, too."""
    monkeypatch.setattr("rollforward.fork_join.sweep.MAX_HERE", 3)
    for i in range(8):
        put(world, f"t{i}", "a")
    world.engine.reset()
    world.clock.sleep(24 * 3600)
    world.sweep()
    world.settle()

    with world.context():
        assert packs() == []


@pytest.mark.parametrize(("minutes", "woken"), [(19, 0), (21, 1)])
def test_a_walk_that_comes_late_wakes_what_was_due_when_its_round_began(
    world: World, minutes: int, woken: int
) -> None:
    """D3: what became due since is left to the next round, which wakes it once."""
    put(world, "t", "a")
    world.engine.reset()
    with world.context():
        [pack] = packs()
    epoch = PackId.parse(pack.key.id()).epoch
    began = EpochId.parse(epoch).opened + datetime.timedelta(minutes=minutes, seconds=2)
    world.clock.sleep(45 * 60)

    args = Drain(epoch[0], "a minute", "", began, since=began - datetime.timedelta(minutes=2))
    with world.context():
        TALLIES.drain_task.work(world.clients, args)

    assert len(tasks(world)) == woken


def test_one_that_was_just_stranded_is_woken_by_who_cannot_wait(world: World) -> None:
    """A worker that starts looks for what its predecessor left, at any age it likes."""
    put(world, "t", "a")
    world.engine.reset()
    world.clock.sleep(3)
    with world.context():
        assert TALLIES.sweep(world.clients).woken == 0
        assert TALLIES.sweep(world.clients, stale_s=1).woken == 1
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize("bad", ["no pack", "0.no.epoch|1|0|x", "|1|0|x", "0|x|0|x"])
def test_what_is_no_pack_stops_no_sweep(world: World, bad: str) -> None:
    """D3: the packs behind it are woken."""
    put(world, "t", "a")
    world.engine.reset()
    with world.context():
        WorkPack(id=f"{TALLIES.name}|{bad}", batch_key="t", items="[]").put()
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_queue_that_cannot_be_swept_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: its error is still raised."""

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("made by a test")

    put(world, "t", "a", queue=AT_ONCE)
    world.engine.reset()
    world.clock.sleep(60)
    monkeypatch.setattr(TALLIES._joiners, "wake", broken)
    put(world, "t", "b")
    world.engine.reset()
    world.clock.sleep(60)
    with world.context(), pytest.raises(RuntimeError, match="made by a test"):
        sweep_all(world.clients, [TALLIES, AT_ONCE])
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_sweep_reads_no_packs(world: World) -> None:
    """The key of a batch is in its packs, of up to a MiB: its joiner reads them."""
    put(world, "t", "a")
    put(world, "u", "b")
    world.engine.reset()
    world.clock.sleep(60)
    with world.context():
        cost_before = world.clients.meter.cost()
        assert TALLIES.sweep(world.clients).woken == 2
        cost = world.clients.meter.cost() - cost_before

    assert (cost.reads, cost.writes, cost.tasks) == (0, 0, 2)
