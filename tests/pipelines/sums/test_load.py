"""Loads: every item of every writer counts once, under faults, too."""

from __future__ import annotations

import random

import pytest
from google.cloud import ndb

from models.sums import LoadWriter, sum_key, writer_key
from pipelines.loads import GIVEN_UP_AFTER_S, LoadGoesOnError, StepWork
from pipelines.sums import load, reconciliation, sums
from pipelines.sums.load import WriterStep, _record
from pipelines.sums.sums import Add
from rollforward.datastore.transactions import transact
from rollforward.fork_join.entities import WorkReceipt
from rollforward.testing.injection import CRASH_AFTER, REPLY_LOST
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World
from tests.pipelines.sums.loading import LOAD, OTHER, LoadScenario, both_sides, load_of, start_load


def test_a_load_is_folded_to_the_item(world: World) -> None:
    """Three writers with five items each, at their time; many items, few batches."""
    wanted = load_of(world)
    assert start_load(world, wanted)
    world.settle()

    assert wanted.expected.items == 15
    assert both_sides(world) == (wanted.expected, wanted.expected, 0)
    with world.context():
        status = load.status(world.clients, "s")
        assert status.is_over
        assert status.repeats == 0
        assert status.p95_ms is not None
        assert sum_key("s").get().batches < 5
        rows = [writer_key("s", LOAD, writer).get() for writer in range(3)]
    assert [row.accepted for row in rows] == [5, 5, 5]
    assert all(len(row.steps) > 1 for row in rows)


@pytest.mark.parametrize("seed", range(2))
def test_a_load_counts_once_with_every_task_delivered_twice(world: World, seed: int) -> None:
    """One after the other, in a shuffled order."""
    world.doubles, world.order = True, random.Random(seed)
    wanted = load_of(world)
    start_load(world, wanted)
    world.settle()

    assert both_sides(world) == (wanted.expected, wanted.expected, 0)


def test_a_load_counts_once_with_all_deliveries_side_by_side(world: World) -> None:
    """All that is due at once, each of it twice, on threads."""
    world.overlaps = True
    wanted = load_of(world)
    start_load(world, wanted)
    world.heal(lambda: load.status(world.clients, "s").is_over, rounds=3)
    world.heal(lambda: reconciliation.status("s").waiting == 0)

    assert both_sides(world) == (wanted.expected, wanted.expected, 0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [CRASH_AFTER, REPLY_LOST])
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_load_counts_once_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """A writer that is killed, or not answered, inserts again, and it counts once."""
    assert Explorer(world, LoadScenario(world)).explore([kind])


def test_a_load_counts_once_when_memcached_is_flushed_again_and_again(world: World) -> None:
    """Smaller batches, the same sum."""
    wanted = load_of(world)
    start_load(world, wanted)
    for _ in range(40):
        world.flush()
        world.deliver_due()
        wake_at = world.engine.wake_at()
        if wake_at is None:
            break
        world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)
    world.heal(lambda: reconciliation.status("s").waiting == 0)

    assert both_sides(world) == (wanted.expected, wanted.expected, 0)


def test_a_sum_is_under_one_load_at_a_time(world: World) -> None:
    """The same form starts nothing more, another is refused until the first is over."""
    first = load_of(world)
    assert start_load(world, first)
    assert not start_load(world, first)
    with pytest.raises(LoadGoesOnError):
        start_load(world, load_of(world, id_=OTHER))
    assert start_load(world, load_of(world, "another", id_=OTHER))
    world.settle()

    second = load_of(world, id_="c" * 32)
    assert start_load(world, second)
    assert not start_load(world, first)
    world.settle()

    both = first.expected + second.expected
    assert both_sides(world) == (both, both, 0)


def test_a_writer_that_comes_after_its_load_was_given_up_still_counts(
    world: World,
) -> None:
    """Its task was held up for minutes; meanwhile another load has begun."""
    first = load_of(world)
    start_load(world, first)
    for _ in range(2):  # The load begins, and one writer has inserted what was due.
        world.deliver(world.engine.due()[0].task_name)
    world.clock.sleep(first.seconds + GIVEN_UP_AFTER_S + 1)
    step = WriterStep(first, 1)
    late = StepWork(accepted=2)

    second = load_of(world, id_=OTHER)
    assert start_load(world, second)
    with world.clients.context():
        for number in range(2):
            amount = first.amounts(1, 2)[number]
            sums.add_up.insert(
                world.clients, "s", Add(amount), idempotency_key=f"{LOAD}.1.{number}"
            )
        transact(lambda: _record(step, late, [0, 1, 2], 0))
    world.settle()

    accepted, folded, waiting = both_sides(world)
    assert (accepted, waiting) == (folded, 0)
    assert folded.items >= second.items + 2


def test_a_step_that_comes_after_a_day_adds_nothing(world: World) -> None:
    """Receipts of its items may be deleted by then, and they would count twice."""
    wanted = load_of(world)
    start_load(world, wanted)
    world.settle()
    world.clock.sleep(49 * 3600)
    with world.context():
        for key in WorkReceipt.query().fetch(keys_only=True):
            key.delete()
        ndb.delete_multi(writer_key("s", LOAD, writer) for writer in range(3))
    with world.clients.context():
        load.write.work(world.clients, WriterStep(wanted, 1))
    world.settle()

    assert both_sides(world)[1] == wanted.expected


def test_rows_of_loads_are_deleted_after_two_days(world: World) -> None:
    """Growth is bounded: by the loads that come after; what they accepted still counts."""
    loads = []
    for name in "abc":
        loads.append(load_of(world, id_=name * 32))
        start_load(world, loads[-1])
        world.settle()
        world.clock.sleep(30 * 3600)
    with world.context():
        rows = [key.id() for key in LoadWriter.query().fetch(keys_only=True)]
    assert {row.split("|")[1] for row in rows} == {"b" * 32, "c" * 32}
    start_load(world, load_of(world, id_="d" * 32))
    world.settle()

    with world.context():
        rows = [key.id() for key in LoadWriter.query().fetch(keys_only=True)]
    assert {row.split("|")[1] for row in rows} == {"c" * 32, "d" * 32}
    accepted, folded, waiting = both_sides(world)
    assert (accepted, waiting, folded.items) == (folded, 0, 4 * loads[0].items)


def test_no_step_is_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is far behind stops after so many items, and goes on in its next step."""
    monkeypatch.setattr("pipelines.sums.load.MAX_ITEMS_A_STEP", 2)
    wanted = load_of(world, writers=1)
    start_load(world, wanted)
    world.clock.sleep(2)
    world.settle()

    with world.context():
        (row,) = LoadWriter.query(LoadWriter.key >= ndb.Key(LoadWriter, "s|")).fetch()
    assert row.accepted == 15
    assert max(items for _, _, items in row.steps) == 2
