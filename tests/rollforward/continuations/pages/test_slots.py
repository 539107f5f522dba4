"""The slots of a run's totals: processes and threads share them without waiting for each other."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.continuations.entities import (
    TOTALS_SLOTS,
    ContinuationTotals,
    pages_of,
    totals_keys,
)
from rollforward.continuations.pages import slots as run_slots
from rollforward.continuations.pages.slots import RunSlots, SlotsBusyError, slots_of
from rollforward.continuations.progress import progress
from rollforward.datastore.transactions import transact
from tests.infra.world import Services, World
from tests.rollforward.continuations.pages.test_kept_totals import PAGE_ITEMS, check_exact, start
from tests.rollforward.continuations.walk_jobs import APPLY, deliver_job


def test_two_processes_that_prefer_one_slot_both_count(world: World) -> None:
    """Each finds the other's version in it, counts in a transaction, and takes the next."""
    start(world, 16)
    states = []
    for _ in range(2):
        world.clients.process_state.clear()
        with world.context():
            slots = slots_of(world.clients, "run", "an owner")
            assert isinstance(slots, RunSlots)
        states.append(world.clients.process_state._objects)
    for turn in range(40):
        world.clients.process_state._objects = states[turn % 2]
        if due := world.engine.due():
            world.deliver(due[0].task_name)
        with world.context():
            check_exact()

    with world.context():
        assert progress("run").totals.done == 16


@pytest.mark.parametrize("kind", ["apply", "deliver"])
def test_no_delivery_waits_for_slots_that_other_threads_hold(
    services: Services, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They hang in a commit: it counts in a transaction instead."""
    monkeypatch.setattr(run_slots, "MAX_WAIT_S", 0.0)
    job = APPLY if kind == "apply" else deliver_job(Counter())
    world = World(services, [job])
    start(world, 6, job=job)
    with world.context(), contextlib.ExitStack() as held:
        slots = slots_of(world.clients, "run", "an owner")
        assert len({held.enter_context(slots.one()) for _ in range(TOTALS_SLOTS)}) == TOTALS_SLOTS
        with pytest.raises(SlotsBusyError), slots.one():
            pass
        world.settle()
    with world.context():
        check_exact()
        assert progress("run", dots=False).totals.done == 6
        with slots.one():
            pass


def test_transactions_take_turns_at_the_slots_and_read_none_that_they_do_not_change(
    world: World,
) -> None:
    """So neither an interim commit nor a take locks a row that others write."""
    start(world, 2 * PAGE_ITEMS * TOTALS_SLOTS)
    world.settle()
    with world.context():
        rows = ContinuationTotals.query().fetch()
        assert {row.sums["pages"] for row in rows} <= {2, 3}
        assert len(rows) == TOTALS_SLOTS
        page = pages_of("run").get()
        before = world.clients.meter.total().reads
        slots = slots_of(world.clients, "run", "an owner")
        assert transact(lambda: slots.count_in_transaction(page)) == []
        assert world.clients.meter.total().reads == before


@pytest.mark.parametrize("first", range(TOTALS_SLOTS))
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_processes_that_meet_at_the_slots_part(first: int, threads: int) -> None:
    """Else they go on in step, and one of them repeats each of its transactions."""
    keys, random_ = [*"abcdefgh"], random.Random(first)
    processes = [RunSlots(keys, 0), RunSlots(keys, first)]
    met: list[int] = []
    for _ in range(50):
        turns = [[process.take_turn() for _ in range(threads)] for process in processes]
        used = [{slot.key for slot, _ in taken} for taken in turns]
        assert [len(each) for each in used] == [threads, threads]
        loser = random_.randrange(2)
        for n, process in enumerate(processes):
            for slot, is_free in turns[n]:
                is_lost = n == loser and slot.key in used[1 - n]
                process.end_turn(slot, is_free=is_free, is_lost=is_lost)
        met.append(len(used[0] & used[1]))
    assert sum(map(bool, met)) <= 10
    assert not any(met[25:])


@pytest.mark.parametrize(
    "error", [rpc_errors.Aborted("busy"), rpc_errors.ServiceUnavailable("gone")]
)
def test_a_transaction_gives_its_slot_back_however_it_ends(
    world: World, error: rpc_errors.GoogleAPICallError
) -> None:
    """A lost race leaves half of the slots to others; the outcome of a lost reply says nothing."""
    start(world, 2 * TOTALS_SLOTS)
    world.settle()
    used: list[Any] = []

    def count(slots: RunSlots) -> None:
        page = pages_of("run").get()
        page.counted = None
        used.extend(row.key for row in slots.count_in_transaction(page))
        if len(used) == 1:
            raise error
        raise ValueError("the end")

    with world.context():
        slots = RunSlots(totals_keys("run"), 0)
        with pytest.raises(ValueError, match="the end"):
            transact(lambda: count(slots), sleep=world.clock.sleep)
        assert used[0] == totals_keys("run")[0]
        is_lost = isinstance(error, rpc_errors.Aborted)
        assert (used[1] in totals_keys("run")[4:]) == is_lost
        with contextlib.ExitStack() as held:
            for _ in range(TOTALS_SLOTS):
                held.enter_context(slots.one())
