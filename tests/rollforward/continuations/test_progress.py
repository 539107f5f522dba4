"""Progress: how far a run has come, what it has cost, and why items failed."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from rollforward import continuations
from rollforward.continuations.entities import CANCELLED, FINISHED, RUNNING, ContinuationPage
from rollforward.continuations.jobs import DeferredItemError, ItemError, Job, RefusedItemError
from rollforward.continuations.listing import list_runs
from rollforward.continuations.pages.seen_pages import issues_of
from rollforward.continuations.progress import (
    RunProgress,
    RunTotals,
    item_issues,
    progress,
    run_of,
    store_totals,
)
from rollforward.runtime import Clients
from rollforward.runtime.channel.rpc import Cost
from rollforward.tasks.runs import RunQuery
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    deliver_job,
    items_of,
    put_items,
    run_to_end,
)
from tests.rollforward.datastore.counters import break_call

pytestmark = pytest.mark.fast


def test_a_run_says_what_its_effects_cost(world: World) -> None:
    """M8: what `apply` reads and writes is on the bill, in the very commit that it is part of."""
    put_items(world, 20)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    cost_before = world.clients.meter.total()
    world.settle()
    spent = world.clients.meter.total() - cost_before

    with world.context():
        reported = progress("run").totals.cost

    # The run, a lease, a commit and its totals for each of ten pages, and a ledger for each item.
    assert reported.writes == 1 + 3 * 10 + 20
    # Its end, once, and what follows each page's last commit are on no bill.
    assert 0.8 < reported.reads / spent.reads <= 1


def test_the_bill_of_a_run_has_its_start_and_a_look_behind_each_page() -> None:
    """M8: a row, a task for each chain, and whether each page is closed."""
    spent = Cost(reads=3, round_trips=2)
    page = ContinuationPage(receipts="d", cost=spent.as_dict())

    cost = RunTotals.of([page, page], chains=4).cost

    assert cost == Cost(reads=8, writes=1, tasks=4, round_trips=6)


def test_an_item_in_doubt_is_counted_once(services: Services) -> None:
    """A1: one call outside was not answered; the commits that follow in its page add nothing."""
    outside: Counter[str] = Counter()
    job = replace(deliver_job(outside), page_size=25)
    world = World(services, [job])
    names = put_items(world, 25)
    break_call(world, "act", ERROR)
    with world.plan.watched():
        run_to_end(world, job, "run")

    assert world.plan.fired
    assert outside == Counter(names)
    with world.context():
        assert progress("run").totals.in_doubt == 1


@pytest.mark.parametrize("dies_at", [1, 3, 10, 12])
def test_what_a_dead_attempt_may_have_done_is_in_doubt(services: Services, dies_at: int) -> None:
    """A1: as much as may have no receipt: ten items, or what was open."""
    outside: Counter[str] = Counter()

    @contextlib.contextmanager
    def open_line(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
        def act(item: Item) -> None:
            outside[item.key.id()] += 1
            if outside.total() == dies_at:
                world.plan.die()

        yield act

    job = Job("deliver", "fan-out", Walk, items_of, side_effect=open_line, page_size=13)
    world = World(services, [job])
    put_items(world, 13)

    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    world.settle(revives=True)

    receipted = 10 if dies_at > 10 else 0
    with world.context():
        assert progress("run").totals.in_doubt == min(10, 13 - receipted)
    assert outside.total() - 13 == dies_at - receipted


def test_a_commit_whose_reply_was_lost_breaks_off_no_attempt(services: Services) -> None:
    """A1: the page knows the commit that it holds: nothing is in doubt, nobody comes again."""
    outside: Counter[str] = Counter()
    job = replace(deliver_job(outside), page_size=25)
    world = World(services, [job])
    names = put_items(world, 25)
    commits = [-1]
    while commits:
        at = commits.pop()
        world.engine.reset()
        with world.context():
            continuations.start(world.clients, job, Walk(f"run{at}"), run_id=f"run{at}")
        world.plan.reset(REPLY_LOST, at if at >= 0 else None)
        with world.plan.watched():
            status = world.deliver(world.engine.due()[0].task_name)
        with world.context():
            totals = progress(f"run{at}").totals
        assert (status, totals.done, totals.in_doubt) == (204, 25, 0), world.plan.fired
        if at < 0:
            calls = world.plan.calls
            last_act = max(at for at, call in enumerate(calls) if call == "act")
            commits = [at for at, call in enumerate(calls[: last_act + 3]) if call == "Commit"]
            assert len(commits) == 4

    assert outside == Counter(names * 5)


def test_reasons_are_kept_as_long_as_a_page_has_room_for_them(world: World) -> None:
    """A page of 1,000 fits into its row: JSON writes letters beyond ASCII six times as long."""
    reasons = ["x" * 400, "é" * 400]
    job = Job(
        "apply",
        "fan-out",
        Walk,
        items_of,
        apply=lambda clients, args, items: [RefusedItemError(reason) for reason in reasons],
    )
    world = World(world.services, [job])
    put_items(world, 2)

    run_to_end(world, job, "run")

    with world.context():
        assert [issue.reason for issue in item_issues("run")] == ["x" * 300, "é" * 100]
        assert len(item_issues("run", limit=1)) == 1


def test_issues_come_in_the_order_of_the_items() -> None:
    """A page keeps their positions as texts, where 10 stands before 9."""
    pages = [
        ContinuationPage(
            items=[f"{name}{place}" for place in range(12)],
            receipts="f" * 12,
            reasons={str(place): "no" for place in range(12)},
        )
        for name in "ab"
    ]

    names = [issue.name for issue in issues_of(pages)]

    assert names == [f"{name}{place}" for name in "ab" for place in range(12)]


def test_progress_tells_how_much_there_is_to_go() -> None:
    """Of twenty items five have ended in ten seconds; ten stand in pages that have been read."""
    totals = RunTotals(
        done=3, skipped=1, failed=1, retrying=2, waiting=3, in_doubt=0, pages=5, cost=Cost()
    )
    reported = RunProgress(
        "run", RUNNING, expected=20, totals=totals, elapsed_s=10.0, dots=[], requested=20
    )

    assert (totals.ended, totals.known) == (5, 10)
    assert (reported.waiting, reported.share, reported.rate, reported.left_s) == (
        13,
        0.25,
        0.5,
        30.0,
    )
    assert replace(reported, expected=5).share == 0.99
    assert replace(reported, expected=0).share == 0
    assert (replace(reported, elapsed_s=0.0).rate, replace(reported, elapsed_s=0.0).left_s) == (
        0,
        None,
    )
    for state in (FINISHED, CANCELLED):
        assert replace(reported, state=state).left_s is None
    assert replace(reported, state=FINISHED).share == 1


def test_totals_are_kept_whatever_the_row_of_a_finished_run_says(world: World) -> None:
    """An earlier version finished it, its job was told twice, or its totals are of another time."""
    put_items(world, 2)
    run_to_end(world, APPLY, "run")

    with world.context():
        totals = run_of("run").totals
        for untold, stored_totals in ((None, None), (True, totals), (False, {**totals, "done": 0})):
            run = run_of("run")
            run.untold, run.totals = untold, stored_totals
            run.put()
            store_totals("run")

            assert (run_of("run").totals, run_of("run").untold or False) == (totals, False)


def test_the_time_of_a_cancelled_run_stands_still(world: World) -> None:
    """Its rate, too: what counts is until its last page was touched."""
    put_items(world, 6)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.clock.sleep(10)
    world.deliver(world.engine.due()[0].task_name)
    with world.context():
        continuations.cancel("run")
        stopped = progress("run", now=world.clock.now())
    world.clock.sleep(3600)

    with world.context():
        later = [progress("run", now=world.clock.now(), dots=dots) for dots in (True, False)]

    assert stopped.elapsed_s == pytest.approx(10)
    assert [(run.elapsed_s, run.rate) for run in later] == [(stopped.elapsed_s, stopped.rate)] * 2


@pytest.mark.parametrize("dots", [True, False])
def test_the_recent_rate_is_of_what_ended_in_the_last_five_seconds(
    world: World, dots: bool
) -> None:
    """Of each page one item ends; a run has no such rate in its first ten seconds."""

    def defer_one(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        return [None, DeferredItemError("later")]

    job = replace(APPLY, apply=None, check=defer_one, retry_delays_s=(600.0,))
    world = World(world.services, [job])
    put_items(world, 8)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
        started = run_of("run").started.replace(tzinfo=datetime.UTC)
    for pause_s in (1, 6, 0, 2):
        world.clock.sleep(pause_s)
        world.deliver(world.engine.due()[0].task_name)

    def rate_after(seconds: float) -> float | None:
        now = started + datetime.timedelta(seconds=seconds)
        return progress("run", now=now, dots=dots).recent_rate

    with world.context():
        rates = [rate_after(seconds) for seconds in (9.9, 10, 11, 12, 14)]

    assert rates == [None, 0.6, 0.6, 0.2, 0]


def test_what_was_announced_gives_way_to_what_was_found(world: World) -> None:
    """Nine items were announced; there are four, as the end of the run shows."""
    put_items(world, 4)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run", expected=9)
    world.deliver(world.engine.due()[0].task_name)
    with world.context():
        before = progress("run")
    world.settle()
    with world.context():
        after = progress("run")

    assert [(run.expected, run.requested, run.waiting) for run in (before, after)] == [
        (9, 9, 7),
        (4, 9, 0),
    ]


def test_a_run_that_goes_on_is_never_all_done(world: World) -> None:
    """Where nobody said how much there is, the share stays below one until the run has ended.

    What is left is unknown, and lists and pages say that there may be more.
    """
    put_items(world, 4)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.deliver(world.engine.due()[0].task_name)

    with world.context():
        assert (progress("run").share < 1, progress("run").left_s) == (True, None)
        [listed] = list_runs({APPLY.name: APPLY}, RunQuery()).runs
    assert (listed.expected, listed.is_partial) == (2, True)
    world.settle()

    with world.context():
        assert progress("run").share == 1
