"""The sweep of continuations: what was lost is found soon, whatever else is broken, at low cost."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import continuations
from rollforward.continuations import runs, sweep
from rollforward.continuations.entities import (
    FINISHED,
    RUNNING,
    ContinuationPage,
    ContinuationRun,
    ContinuationSweep,
    pages_of,
    run_key,
    sweep_key,
)
from rollforward.continuations.errors import OtherJobError
from rollforward.continuations.jobs import LEASE_S, Job
from rollforward.continuations.pages.attempt import page_task
from rollforward.continuations.pattern import Continuations
from rollforward.continuations.progress import progress
from rollforward.continuations.sweep import STALE_S
from rollforward.runtime.clients import Clients
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.testing.services import LOCATION, PROJECT
from tests.infra.runs import sampling
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    count_items,
    items_of,
    ledger,
    put_items,
)

QUEUE = f"projects/{PROJECT}/locations/{LOCATION}/queues/fan-out"


def store_run(world: World, run_id: str, job: Job[Walk, Item] = APPLY) -> None:
    """Store a run whose process dies before it creates a task."""
    with world.context():
        runs.new_run(world.clients, job, Walk(run_id), run_id=run_id).put()


def sweep_once(world: World) -> int:
    """Sweep once, a minute later, and deliver what that wakes; return how much it was."""
    world.clock.sleep(60)
    with world.context():
        woken = sweep.sweep(world.clients, {job.name: job for job in world.jobs})
    world.settle(patience_s=10)
    return woken


def state(world: World, run_id: str) -> str:
    with world.context():
        return progress(run_id, dots=False).state


def purge(world: World) -> None:
    """Lose all tasks of the queue."""
    world.engine.purge_queue(QUEUE)


@pytest.mark.parametrize("broken", ["m-queue", "zz-queue"])
def test_a_run_whose_queue_is_missing_holds_up_no_other(services: Services, broken: str) -> None:
    """Code may be deployed before its queue; the runs before and behind are woken."""
    nowhere = Job("nowhere", "not-deployed-yet", Walk, items_of, apply=count_items)
    world = World(services, [APPLY, nowhere])
    put_items(world, 2)
    with world.context(), pytest.raises(rpc_errors.NotFound):
        continuations.start(world.clients, nowhere, Walk(broken), run_id=broken)
    store_run(world, "a-before")
    store_run(world, "run-behind")
    store_run(world, "zzz-behind")

    sweep_once(world)

    assert {state(world, run) for run in ("a-before", "run-behind", "zzz-behind")} == {FINISHED}


def test_each_run_has_its_turn_within_as_many_sweeps_as_there_are_lots(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that never end, of a job that is gone, hide none behind them; ids are plain."""
    monkeypatch.setattr(sweep, "SWEPT_RUNS", 3)
    put_items(world, 1)
    for number in range(7):
        store_run(world, f"run-{number}", replace(APPLY, name="gone"))
    store_run(world, "run-9")
    store_run(world, "run-00")

    for _ in range(3):
        sweep_once(world)

    assert (state(world, "run-9"), state(world, "run-00")) == (FINISHED, FINISHED)


def test_a_round_that_begins_anew_meets_no_run_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last of the round before come the first ones again, once in a sweep each."""
    monkeypatch.setattr(sweep, "SWEPT_RUNS", 3)
    for number in range(4):
        store_run(world, f"run-{number}")
    monkeypatch.setattr(sweep, "SWEPT_RUNS", 5)
    swept: list[list[str]] = []
    monkeypatch.setattr(
        sweep, "_wake", lambda clients, jobs, run, stale_s: swept[-1].append(run.key.id()) or 0
    )
    with world.context():
        ContinuationSweep(key=sweep_key("running"), after="run-1").put()

    swept.append([])
    sweep_once(world)

    assert swept == [["run-2", "run-3", "run-0", "run-1"]]


def test_an_outage_does_not_begin_each_round_at_the_same_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three failures of a service in a row the sweep ends; the next one goes on behind."""
    put_items(world, 1)
    for number in range(8):
        store_run(world, f"run-{number}")
    tried: list[str] = []
    wake = sweep._wake

    def sick(clients, jobs, run, stale_s):  # type: ignore[no-untyped-def]
        tried.append(run.key.id())
        if run.key.id() < "run-6":
            raise rpc_errors.ServiceUnavailable("this queue is away")
        return wake(clients, jobs, run, stale_s)

    monkeypatch.setattr(sweep, "_wake", sick)

    for _ in range(3):
        sweep_once(world)

    assert tried[:6] == [f"run-{number}" for number in range(6)]
    assert (state(world, "run-6"), state(world, "run-7")) == (FINISHED, FINISHED)


@pytest.mark.parametrize("bad", ["x" * 501, "é" * 251, "a:b", "a;b", "", "a\nb", "a\0", "__a__", 5])
def test_an_id_that_no_page_could_have_is_refused_before_anything_is_stored(
    world: World, bad: object
) -> None:
    """What could be committed and never woken is not committed."""
    with world.context():
        with pytest.raises(ValueError, match="run_id must"):
            continuations.start(world.clients, APPLY, Walk("x"), run_id=bad)  # type: ignore[arg-type]

        assert ContinuationRun.query().fetch(keys_only=True) == []


@pytest.mark.parametrize(
    "bad", [{"page_size": 0}, {"page_size": -1}, {"chains": 0}, {"chains": -1}]
)
def test_a_number_of_none_is_refused_and_is_not_the_default(
    world: World, bad: dict[str, int]
) -> None:
    [option] = bad
    with world.context():
        with pytest.raises(ValueError, match=option):
            continuations.start(world.clients, APPLY, Walk("x"), run_id="run", **bad)

        assert ContinuationRun.query().fetch(keys_only=True) == []


@pytest.mark.parametrize("longest", ["x" * 500, "é" * 250, "語" * 166, '"' * 500])
def test_the_longest_ids_walk_to_their_end(world: World, longest: str) -> None:
    """Each id that is taken makes keys and names of tasks, wakes too."""
    put_items(world, 3)
    store_run(world, longest)

    assert sweep_once(world) == 1

    assert state(world, longest) == FINISHED


def test_a_finished_run_that_has_not_told_its_job_tells_it(services: Services) -> None:
    """The process died between the last page and the telling, and its task was lost."""
    finished: list[str] = []
    job = replace(
        APPLY, name="told", on_finished=lambda clients, args: finished.append(args.run_id)
    )
    world = World(services, [job])
    put_items(world, 2)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    world.plan.reset("crash-after", _call_of_end(world))
    finished.clear()
    with world.plan.watched():
        world.deliver(world.engine.due()[0].task_name)
    assert world.plan.fired
    purge(world)
    assert (state(world, "run"), finished) == (FINISHED, [])

    sweep_once(world)

    assert finished == ["run"]
    with world.context():
        assert run_key("run").get().totals["done"] == 2
    assert sweep_once(world) == 0


def _call_of_end(world: World) -> int:
    """Return which call commits the end of a run like the one to come."""
    with world.context():
        continuations.start(world.clients, world.jobs[0], Walk("other"), run_id="other")
    world.plan.reset()
    with world.plan.watched():
        world.deliver(world.engine.due()[-1].task_name)
    commits = [i for i, call in enumerate(world.plan.calls) if call == "Commit"]
    return commits[-2]  # The last one keeps the totals.


@pytest.mark.parametrize("how", ["sweep", "resume"])
def test_a_chain_whose_last_page_is_closed_is_ended(world: World, how: str) -> None:
    """A3: the process died before it noted the end of the chain, and its task was lost."""
    put_items(world, 3)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.settle()
    with world.context():
        run = run_key("run").get()
        run.populate(state=RUNNING, chains_ended=[], ended=None, totals=None, untold=None)
        run.put()
        assert all(page.closed for page in pages_of("run"))

    if how == "sweep":
        assert sweep_once(world) == 1
    else:
        with world.context():
            continuations.resume(world.clients, {"apply": APPLY}, "run")
        world.settle()

    assert state(world, "run") == FINISHED


@sampling.long
@one_emulator
def test_a_page_whose_wakes_are_lost_is_woken_each_hour(world: World) -> None:
    """A3: the names of wakes do not run out: one for each doubling, then one an hour.

    No name comes twice: it may be remembered for days, and the wake would not be created.
    """
    put_items(world, 1)
    store_run(world, "run")
    woken: list[int] = []
    names: list[str] = []
    for minute in range(1, 301):
        world.clock.sleep(60)
        with world.context():
            if sweep.sweep(world.clients, {"apply": APPLY}):
                woken.append(minute)
        names += [live.name for live in world.live_tasks(APPLY.queue)]
        purge(world)

    assert woken[:4] == [1, 2, 3, 6]
    assert (
        max(next_wake - earlier for earlier, next_wake in itertools.pairwise([*woken, 301])) <= 60
    )
    assert len(woken) <= 12
    assert len(set(names)) == len(names) == len(woken)


@one_emulator
def test_a_job_that_cannot_be_told_of_the_end_is_told_again_once_a_day(services: Services) -> None:
    """A3: each time it fails, it leaves a dead task to a person: few, after the first day."""

    def fail(clients: Clients, args: Walk) -> None:
        raise ValueError("no")

    job = replace(APPLY, name="told", on_finished=fail)
    world = World(services, [job])
    put_items(world, 1)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    assert world.deliver(world.engine.due()[0].task_name) == 422
    assert state(world, "run") == FINISHED
    purge(world)
    woken: list[int] = []
    for hour in range(1, 24 * 4):
        world.clock.sleep(3600)
        with world.context():
            if sweep.sweep(world.clients, {job.name: job}):
                woken.append(hour)
        purge(world)

    assert len([hour for hour in woken if hour < 24]) > 12
    assert [hour // 24 for hour in woken if hour >= 25] == [2, 3]


def test_a_worker_that_starts_may_look_for_younger_pages(world: World) -> None:
    """A3: what the worker before has left need not wait for 45 s; the sweep wakes it as before."""
    put_items(world, 1)
    store_run(world, "run")
    world.clock.sleep(6)
    jobs = {"apply": APPLY}

    with world.context():
        assert sweep.sweep(world.clients, jobs) == 0
        assert sweep.sweep(world.clients, jobs, stale_s=5) == 1
        purge(world)
        world.clock.sleep(40)
        assert sweep.sweep(world.clients, jobs) == 1


def test_a_worker_that_starts_wakes_no_page_whose_lease_may_last(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A3: however impatient it is; and only what waits for longer than usual is a warning."""
    put_items(world, 1)
    store_run(world, "run")
    woken = []
    with world.context():
        for pause_s, stale_s in ((LEASE_S - 1, 0.0), (1, 0.0), (STALE_S - LEASE_S, None)):
            world.clock.sleep(pause_s)
            woken.append(Continuations().sweep(world.clients, [APPLY], stale_s=stale_s))
            assert ("woke" in caplog.text) == (stale_s is None)

    assert woken == [{"woken": 0}, {"woken": 1}, {"woken": 1}]
    assert "woke 1 pages" in caplog.text


def test_the_id_of_another_jobs_run_is_refused(services: Services) -> None:
    """No page of a run is worked on by another job, and who asks for it hears so."""
    other = replace(APPLY, name="other")
    world = World(services, [APPLY, other])
    names = put_items(world, 3)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
        with pytest.raises(OtherJobError, match="apply"):
            continuations.start(world.clients, other, Walk("run"), run_id="run")
        page_task(other).enqueue(world.clients, sweep.head(run_key("run").get(), 0))

    world.settle()

    assert ledger(world, "run") == Counter(names)
    with world.context():
        reasons = [dead.reason for dead in open_dead_tasks().fetch()]
    assert reasons == ["Reject: run run is of job apply"]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "NOTED_EVERY", 2)
    monkeypatch.setattr(sweep, "SWEPT_PAGES", 4)


def test_a_page_that_is_missing_between_two_is_woken(world: World) -> None:
    """A3: whoever deleted its row by hand, the page is walked again and the run ends."""
    put_items(world, 6)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    for _ in range(3):
        world.deliver(world.engine.due()[-1].task_name)
    with world.context():
        _, lost_page, last_page = pages_of("run")
        _undo(lost_page)
        lost_page.key.delete()
    purge(world)
    assert last_page.number == 2

    sweep_once(world)

    assert state(world, "run") == FINISHED


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("chains", [1, 2])
def test_a_sweep_does_not_read_what_is_closed(world: World, chains: int) -> None:
    """The cost of a sweep follows what is left of a run, not what it has done."""
    put_items(world, 24)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run", chains=chains)
    for _ in range(10):
        world.deliver(world.engine.due()[0].task_name)
    purge(world)
    jobs = {"apply": APPLY}
    with world.context():
        for _ in range(8):
            sweep.sweep(world.clients, jobs)
        cost_before = world.clients.meter.total()
        sweep.sweep(world.clients, jobs)
        spent = world.clients.meter.total() - cost_before

    assert spent.reads <= 2 + 2 * chains  # The run, the turns' rows, and a page or two a chain.
    assert spent.writes <= 1


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("stuck", [0, 3, 7])
def test_a_stalled_page_among_many_is_found_in_turn(world: World, chains: int, stuck: int) -> None:
    """A3: a look that is cut goes on where it ended, so each page is looked at."""
    names = put_items(world, 24)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run", chains=chains)
    world.deliver(world.engine.due()[0].task_name)
    for _ in range(11 + chains):
        if due := world.engine.due():
            world.deliver(due[-1].task_name)
    purge(world)
    with world.context():
        page = list(pages_of("run"))[stuck]
        _undo(page)

    for _ in range(10):
        sweep_once(world)

    assert state(world, "run") == FINISHED
    assert set(ledger(world, "run")) == set(names)


def _undo(page: ContinuationPage) -> None:
    """Make a page one that was pinned and no more, and all behind it one that waits for it."""
    for each in pages_of("run"):
        if each.chain == page.chain and each.number >= page.number:
            each.closed = False
            each.put()
    page = page.key.get()
    page.populate(done=False, receipts="." * len(page.items))
    page.put()
    run = run_key("run").get()
    run.populate(
        state=RUNNING, ended=None, totals=None, untold=None, closed=None, swept_to=None,
        chains_ended=[chain for chain in run.chains_ended if chain != page.chain],
    )  # fmt: skip
    run.put()
