"""A run with a rate: its pages take turns. And how long a run says that it takes."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from dataclasses import replace

import pytest

from rollforward import continuations
from rollforward.continuations import ItemError, Job, RefusedItemError, runs
from rollforward.continuations.entities import FINISHED, pages_of
from rollforward.continuations.progress import progress, run_of
from rollforward.runtime import Clients
from rollforward.testing.injection import CRASH_BEFORE
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    count_items,
    ledger,
    put_items,
    run_to_end,
)

RATE = 10.0


def start(
    world: World,
    run_id: str,
    count: int,
    max_rate: float | None,
    chains: int,
    job: Job[Walk, Item] = APPLY,
) -> None:
    """Start a run over so many items that exist."""
    with world.context():
        runs.new_run(
            world.clients,
            job,
            Walk(run_id),
            run_id=run_id,
            expected=count,
            chains=chains,
            max_rate=max_rate,
        ).put()
        runs.launch(world.clients, job, run_id)


@pytest.mark.parametrize("chains", [1, 3])
def test_no_page_is_worked_on_before_its_turn(world: World, chains: int) -> None:
    """A1: each item once; and the pages of all chains are spread over the time that the rate is."""
    names = put_items(world, 20)
    start(world, "run", 20, RATE, chains)
    world.settle()

    assert ledger(world, "run") == Counter(names)
    with world.context():
        run = run_of("run")
        pages = list(pages_of("run"))
        assert progress("run").state == FINISHED
    for page in pages:
        turn = page.number * chains + page.chain
        due = run.started + datetime.timedelta(seconds=turn * APPLY.page_size / RATE)
        assert page.number == 0 or page.updated_at >= due


@pytest.mark.parametrize("rate", [None, RATE])
def test_the_retry_of_a_run_has_its_rate(services: Services, rate: float | None) -> None:
    """A1: what takes ten items a second takes no more of those that have failed."""
    broken = [RefusedItemError("no")]

    def refuse(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        return [error for error in broken for _ in items] or count_items(clients, args, items)

    job = replace(APPLY, apply=refuse)
    world = World(services, [job])
    names = put_items(world, 8)
    start(world, "run", 8, rate, 1, job=job)
    world.settle()
    broken.clear()
    with world.context():
        retry = continuations.retry_failed(world.clients, {job.name: job}, "run")
        began = world.clients.clock.now()
    world.settle()

    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert (run_of(retry).max_rate, progress(retry).state) == (rate, FINISHED)
    took_s = (world.clients.clock.now() - began).total_seconds()
    assert (took_s >= 3 * APPLY.page_size / RATE) is (rate is not None)


def test_a_run_without_a_rate_waits_for_nothing(world: World) -> None:
    """On a clock that stands still it ends when it began."""
    put_items(world, 20)
    run_to_end(world, APPLY, "run")

    with world.context():
        assert progress("run").elapsed_s == 0


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(world: World, rate: float) -> None:
    """Before anything is stored."""
    with world.context(), pytest.raises(ValueError, match="max_rate"):
        runs.new_run(world.clients, APPLY, Walk("run"), run_id="run", max_rate=rate)


def play(world: World, dice: random.Random, estimates: list[tuple[float, float]]) -> float:
    """Deliver until the run is over: a fifth of a second each, some struck, some workers killed.

    Notes, before each delivery, when it was and how long the run said that it would take. Returns
    when it was over.
    """
    while True:
        due = world.engine.due()
        if not due:
            with world.context():
                if progress("run").state == FINISHED:
                    return world.clock.time_s
            wake_at = world.engine.wake_at()
            if wake_at is None:
                world.clock.sleep(60)
                world.sweep()
            else:
                world.clock.sleep(max(0.01, wake_at - world.clock.time_s))
            continue
        with world.context():
            left_s = progress("run", now=world.clock.now()).left_s
        if left_s is not None:
            estimates.append((world.clock.time_s, left_s))
        world.clock.sleep(0.2)
        chance = dice.random()
        name = dice.choice(due).task_name
        if chance < 0.1:
            world.end(world.engine.begin_attempt(name), 500)
        elif chance < 0.2:
            world.plan.reset(CRASH_BEFORE, at=dice.randint(2, 5))
            with world.plan.watched():
                world.deliver(name)
            world.plan.reset()
        else:
            world.deliver(name)


# While faults strike, no estimate can know that the last page will be struck, and wait for the
# lease of a worker that died over it; pages say at least this then.
UNKNOWABLE_S = 12.0


@pytest.mark.parametrize("seed", range(3))
def test_the_time_left_is_never_less_than_a_third_of_what_it_turns_out_to_be(
    world: World, seed: int
) -> None:
    """Under errors and killed workers, from the first receipt to the last."""
    put_items(world, 40)
    start(world, "run", 40, None, chains=4)
    estimates: list[tuple[float, float]] = []

    over_at = play(world, random.Random(seed), estimates)

    assert len(estimates) > 10
    for at, left_s in estimates:
        assert 3 * left_s >= over_at - at - UNKNOWABLE_S, (at, left_s, over_at)
