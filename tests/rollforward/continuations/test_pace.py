"""A run with a rate: its pages take turns. And how long a run says that it takes."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward import continuations
from rollforward.continuations import ItemError, Job, RefusedItemError, runs
from rollforward.continuations.entities import FINISHED, RUNNING, pages_of
from rollforward.continuations.progress import (
    REDELIVERED_S,
    RunProgress,
    RunTotals,
    _pause_s,
    progress,
    run_of,
)
from rollforward.runtime import Clients
from rollforward.runtime.channel.rpc import Cost
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
    """A1: each item once; and the pages of all chains are spread over the time that the rate is.

    The first pages of its chains are no exception: they would be worked on all at once.
    """
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
        assert page.updated_at >= due


SLOW_RATE = 0.02
PACE_S = APPLY.page_size / SLOW_RATE  # Of the pages of one chain: longer than a sweep is patient.


def times_of_pages(world: World, run_id: str) -> list[float]:
    """Return when pages were worked on, in seconds after the start of their run."""
    with world.context():
        started = run_of(run_id).started
        return [(page.updated_at - started).total_seconds() for page in pages_of(run_id)]


def play_for(world: World, seconds: float) -> None:
    """Deliver what is due for some time, with a sweep a minute."""
    for _ in range(int(seconds / 60)):
        world.clock.sleep(60)
        world.sweep()
        world.deliver_due()


def test_a_sweep_wakes_no_page_before_its_turn(world: World) -> None:
    """A1: a page whose task waits for the rate has lost nothing."""
    names = put_items(world, 8)
    start(world, "run", 8, SLOW_RATE, 1)
    world.deliver_due()
    play_for(world, 4 * PACE_S)

    assert ledger(world, "run") == Counter(names)
    for number, at_s in enumerate(times_of_pages(world, "run")):
        assert number * PACE_S <= at_s <= number * PACE_S + 60


def test_the_first_pages_of_chains_have_their_turns_over_sweeps_and_a_resume(world: World) -> None:
    """A1: no sweep wakes one early, nor does a resume, and one whose task was lost is woken."""
    chains = 3
    names = put_items(world, 2 * chains)
    start(world, "run", len(names), SLOW_RATE, chains)
    world.deliver_due()
    play_for(world, 60)
    resume_cancelled(world)
    world.deliver_due()
    assert len(times_of_pages(world, "run")) == 1

    world.engine.purge_queue(world.engine.place.queue_name(APPLY.queue))
    play_for(world, 3 * chains * PACE_S)
    assert ledger(world, "run") == Counter(names)
    with world.context():
        firsts = [page for page in pages_of("run") if page.number == 0]
        started = run_of("run").started
    for page in firsts:
        turn_s = page.chain * PACE_S
        assert turn_s <= (page.updated_at - started).total_seconds() <= turn_s + 300


def resume_cancelled(world: World) -> None:
    """Cancel the run, and resume it at once."""
    with world.context():
        runs.cancel("run")
        runs.resume(world.clients, {APPLY.name: APPLY}, "run")


def test_a_page_whose_task_was_lost_is_woken_after_its_turn(world: World) -> None:
    """A3: by the sweep, as in a run without a rate."""
    names = put_items(world, 4)
    start(world, "run", 4, SLOW_RATE, 1)
    world.deliver_due()
    world.engine.purge_queue(world.engine.place.queue_name(APPLY.queue))
    play_for(world, PACE_S + 120)

    assert ledger(world, "run") == Counter(names)
    assert times_of_pages(world, "run")[1] >= PACE_S


def test_a_run_that_is_resumed_begins_no_page_before_its_turn(world: World) -> None:
    """A1: also if the task of that page had come while the run was cancelled, and was dropped."""
    names = put_items(world, 6)
    start(world, "run", 6, SLOW_RATE, 1)
    world.deliver_due()
    resume_cancelled(world)
    world.deliver_due()
    assert len(times_of_pages(world, "run")) == 1

    world.engine.purge_queue(world.engine.place.queue_name(APPLY.queue))
    resume_cancelled(world)
    world.settle()
    assert ledger(world, "run") == Counter(names)
    assert [round(at_s) for at_s in times_of_pages(world, "run")] == [0, PACE_S, 2 * PACE_S]


@pytest.mark.parametrize("chains", [1, 2])
def test_a_run_that_was_held_up_goes_on_at_its_rate(world: World, chains: int) -> None:
    """A1: an hour that a queue was paused is not made good by a burst."""
    names = put_items(world, 20)
    start(world, "run", 20, SLOW_RATE, chains)
    world.deliver_due()
    world.clock.sleep(3600)
    world.deliver_due()
    play_for(world, 10 * chains * PACE_S)

    assert ledger(world, "run") == Counter(names)
    times = times_of_pages(world, "run")
    late = sorted(at_s for at_s in times if at_s >= 3600)
    assert len(late) == len(times) - 1
    for number, at_s in enumerate(late):
        assert at_s >= 3600 + max(0, number - chains + 1) * PACE_S


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


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), 1e-9])
def test_a_rate_that_is_none_is_refused(world: World, rate: float) -> None:
    """Before anything is stored."""
    with world.context(), pytest.raises(ValueError, match="max_rate"):
        runs.new_run(world.clients, APPLY, Walk("run"), run_id="run", max_rate=rate)


@pytest.mark.parametrize(
    ("held_s", "max_rate", "recent_rate", "left_s"),
    [
        *((0, None, None, 5), (4, None, None, 5), (60, None, None, 60)),
        *((0, 0.5, 2.0, 10), (0, 9.0, 0.25, 20)),
    ],
)
def test_a_run_takes_as_long_as_its_lowest_rate_and_its_last_page_say(
    held_s: float, max_rate: float | None, recent_rate: float | None, left_s: float
) -> None:
    """Five of ten items in five seconds."""
    totals = RunTotals(
        done=5, skipped=0, failed=0, retrying=0, waiting=5, in_doubt=0, pages=1, cost=Cost()
    )
    now = RunProgress(
        *("run", RUNNING, 10, totals, 5.0, []),
        requested=10, held_s=held_s, max_rate=max_rate, recent_rate=recent_rate,
    )  # fmt: skip

    assert now.left_s == left_s


@pytest.mark.parametrize(
    ("retry_s", "silent_s", "lease_s", "held_s"),
    [
        *((30, 0, None, 30), (-30, 0, 60, 0), (-30, 900, 60, 60 + REDELIVERED_S)),
        *((None, 900, 60, 60 + REDELIVERED_S), (None, 900, None, REDELIVERED_S)),
        *((0, 0.9, 60, 0), (0, 1, 60, 60 + REDELIVERED_S), (0, 1, -60, REDELIVERED_S)),
    ],
)
def test_a_page_is_held_until_its_retry_or_the_end_of_its_lease(
    retry_s: float | None, silent_s: float, lease_s: float | None, held_s: float
) -> None:
    """A retry that is over holds nothing; a lease does whose attempt has been silent."""
    now = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.

    def at(seconds: float | None) -> datetime.datetime | None:
        return None if seconds is None else now + datetime.timedelta(seconds=seconds)

    page: Any = SimpleNamespace(
        dots=SimpleNamespace(done=False),
        retry_at=at(retry_s),
        updated_at=at(-silent_s),
        lease_expires_at=at(lease_s),
    )
    assert _pause_s(page, now) == held_s
    page.dots.done = True
    assert _pause_s(page, now) == 0


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
