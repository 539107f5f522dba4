"""Leases of pages: who works on a page, for how long, and who takes over."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import main
from rollforward import continuations
from rollforward.continuations import ItemError, Job
from rollforward.continuations.entities import (
    CANCELLED,
    FINISHED,
    ContinuationPage,
    page_key,
    pages_of,
)
from rollforward.continuations.pages.attempt import PageArgs, page_task
from rollforward.continuations.pages.lease import PageLease
from rollforward.continuations.progress import progress
from rollforward.continuations.sources import EntitySource, Slice, Span
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import hashed_name
from tests.infra.runs import sampling
from tests.infra.world import Services, World
from tests.rollforward.continuations.under_faults.overlapping_attempts import Timeline
from tests.rollforward.continuations.walk_jobs import APPLY, Item, Walk, items_of, ledger, put_items


@dataclass
class Slow:
    """Work on items that takes a while each, and when it began."""

    seconds: float  # No whole number: at a tie, nobody says who comes first.
    opening_s: float = 0.0
    begun: list[tuple[float, str]] = field(default_factory=list)
    dies_at: int | None = None  # How many items are begun when the process dies over the next.

    def deliver_job(self) -> Job[Walk, Item]:
        return Job("slow", "fan-out", Walk, items_of, side_effect=self._line, page_size=10)

    def check_job(self) -> Job[Walk, Item]:
        return Job("slow", "fan-out", Walk, items_of, check=self._check, page_size=10)

    @property
    def mails(self) -> Counter[str]:
        return Counter(name for _, name in self.begun)

    @contextlib.contextmanager
    def _line(self, clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
        clients.clock.sleep(self.opening_s)

        def act(item: Item) -> None:
            self.begun.append((clients.clock.now().timestamp(), item.key.id()))
            is_last = len(self.begun) - 1 == self.dies_at
            clients.clock.sleep(self.seconds)
            if is_last:
                clients.cache.plan.die()  # type: ignore[attr-defined]

        yield act

    def _check(self, clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        self.begun.append((clients.clock.now().timestamp(), "page"))
        clients.clock.sleep(self.seconds)
        return [None] * len(items)


def begin(services: Services, job: Job[Walk, Item], items: int, *, tasks: int = 1) -> World:
    """Start a run of one page, with so many tasks of that page."""
    world = World(services, [job])
    put_items(world, items)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
        for number in range(1, tasks):
            page_task(job).enqueue(world.clients, PageArgs("run", 0, 0, ""), name=("more", number))
    return world


def state(world: World) -> tuple[str, int, int]:
    """Return the run's state, what is done, and what is in doubt."""
    with world.context():
        current = progress("run")
    return current.state, current.totals.done, current.totals.in_doubt


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_mails_that_outlast_the_lease_go_out_once(services: Services, tasks: int) -> None:
    """H4: one attempt keeps its lease by heartbeats; the page's other tasks wait for it."""
    slow = Slow(seconds=30.3, opening_s=50.3)
    world = begin(services, slow.deliver_job(), 3, tasks=tasks)
    timeline = Timeline(world)

    timeline.play(until_s=200)

    assert set(slow.mails.values()) == {1}
    assert state(world) == (FINISHED, 3, 0)
    assert set(timeline.answers) == {204}


def test_a_look_that_outlasts_the_lease_is_taken_once(services: Services) -> None:
    """H4: `check` commits nothing before its end, and still nobody begins it a second time."""
    slow = Slow(seconds=60.3)
    world = begin(services, slow.check_job(), 5, tasks=2)

    Timeline(world).play(until_s=120)

    assert len(slow.begun) == 1
    assert state(world) == (FINISHED, 5, 0)


@pytest.mark.parametrize("tasks", [2, 3])
def test_without_a_heart_mails_that_outlast_the_lease_still_come_to_an_end(
    services: Services, tasks: int
) -> None:
    """H4: each take-over doubles the lease, so a long item gets through; repeats are in doubt."""
    slow = Slow(seconds=30.3)
    world = begin(services, slow.deliver_job(), 3, tasks=tasks)

    Timeline(world, has_heart=False).play(until_s=600)

    finished, done, in_doubt = state(world)
    assert (finished, done) == (FINISHED, 3)
    assert max(slow.mails.values()) <= 5
    assert sum(slow.mails.values()) - 3 <= in_doubt


def test_without_a_heart_a_slow_line_is_no_reason_to_begin_anew(services: Services) -> None:
    """H4: a lease that ran out while nobody else came is renewed."""
    slow = Slow(seconds=0, opening_s=50.3)
    world = begin(services, slow.deliver_job(), 3)

    Timeline(world, has_heart=False).play(until_s=100)

    assert set(slow.mails.values()) == {1}
    assert state(world) == (FINISHED, 3, 0)


def test_a_page_goes_on_within_ten_seconds_after_its_worker_was_killed(services: Services) -> None:
    """H4: heartbeats end with their process, and the next delivery takes over."""
    slow = Slow(seconds=25, dies_at=1)
    world = begin(services, slow.deliver_job(), 3)

    Timeline(world).play(until_s=200)

    first_s, second_s, repeated_s, _ = [at_s for at_s, _ in slow.begun]
    assert (slow.begun[1][1], second_s - first_s) == (slow.begun[2][1], 25)
    assert 25 < repeated_s - second_s < 25 + 10
    finished, done, in_doubt = state(world)
    assert (finished, done) == (FINISHED, 3)
    assert in_doubt >= 1


@sampling.long
def test_an_attempt_does_not_keep_its_lease_for_ever(services: Services) -> None:
    """H4: what hangs for longer than an attempt may last is taken over, and commits nothing."""
    slow = Slow(seconds=3600)
    job = slow.deliver_job()
    world = begin(services, job, 1, tasks=2)

    def hurry() -> None:
        slow.seconds = 0

    timeline = Timeline(world)
    timeline.at(job.deadline_s - 1, hurry)
    timeline.play(until_s=4000)

    (first_s, _), (second_s, _) = slow.begun
    assert job.deadline_s < second_s - first_s < job.deadline_s + 20
    assert state(world)[:2] == (FINISHED, 1)


def test_fast_pages_cost_no_heartbeat(services: Services) -> None:
    """A page that is done within a third of its lease writes lease, receipts and totals only."""
    slow = Slow(seconds=0.5)
    world = begin(services, slow.deliver_job(), 3)

    Timeline(world).play(until_s=20)

    with world.context():
        [page] = pages_of("run")
    # The lease, a commit after each slow item, and the run's totals with the last one.
    assert page.cost["writes"] == 1 + 3 + 1


def test_each_commit_renews_the_lease(services: Services) -> None:
    """H4: work of several leases, an item less than one each, needs no heart and no one else."""
    slow = Slow(seconds=5.3)
    world = begin(services, slow.deliver_job(), 4, tasks=2)
    assert slow.deliver_job().lease_s < 3 * slow.seconds

    Timeline(world, has_heart=False).play(until_s=60)

    assert set(slow.mails.values()) == {1}
    assert state(world) == (FINISHED, 4, 0)


def test_a_lease_that_was_doubled_is_short_again_after_quick_work(services: Services) -> None:
    """H2: a page that was taken over goes on as soon as any after its next crash."""
    slow = Slow(seconds=8.3)
    job = slow.deliver_job()
    world = begin(services, job, 4, tasks=2)
    timeline = Timeline(world, has_heart=False)
    timeline.at(20, lambda: setattr(slow, "seconds", 2.3))

    timeline.play(until_s=100)

    with world.context():
        [page] = pages_of("run")
    assert state(world)[:2] == (FINISHED, 4)
    assert page.in_doubt > 0
    assert page.takeovers == 0


def test_whoever_is_locked_out_has_linked_the_next_page(services: Services) -> None:
    """A4: a page whose owner died before it linked holds up no other, not even for its lease."""
    job = dataclasses.replace(Slow(0).deliver_job(), page_size=2)
    world = begin(services, job, 3)
    task = world.engine.due()[0].task_name
    world.plan.reset("crash-before", 3)
    with world.plan.watched():
        world.deliver(task)
    assert world.plan.fired == "crash-before at call 3 (CreateTask)"
    world.clock.sleep(0.3)

    world.deliver(task)

    linked = hashed_name(page_task(job).path, "run", 0, 1)
    assert linked in {live.name.rpartition("/")[2] for live in world.live_tasks(job.queue)}
    with world.context():
        assert [page.owner is None for page in pages_of("run")] == [False]


@dataclass(frozen=True)
class Dead:
    """Whoever signs is dead."""

    def sign(self, id_: str) -> str:
        return f"{id_}, dead"

    def is_dead(self, owner: str) -> bool:
        return owner.endswith(", dead")


@pytest.mark.parametrize("is_known", [True, False])
def test_nobody_waits_for_the_lease_of_an_attempt_that_is_known_to_be_dead(
    services: Services, is_known: bool
) -> None:
    """M4: its task comes again in another process of its instance, which works on at once.

    The next leases are no longer for it: nothing is wrong with heartbeats.
    """
    slow = Slow(seconds=0.1, dies_at=1)
    world = begin(services, slow.deliver_job(), 4)
    if is_known:
        world.clients = dataclasses.replace(world.clients, processes=Dead())
        world.app = main.create_app(world.settings, world.clients, world.registry)
    task = world.engine.due()[0].task_name
    with world.plan.watched():
        world.deliver(task)
    assert len(slow.begun) == 2
    slow.dies_at = 2

    with world.plan.watched():
        world.deliver(task)

    assert len(slow.begun) == (3 if is_known else 2)
    with world.context():
        assert [page.takeovers for page in pages_of("run")] == [0]


def test_a_page_has_one_attempt_after_cancel_and_resume(services: Services) -> None:
    """H4: the task that resuming makes waits for the attempt that has not heard of it."""
    slow = Slow(seconds=30.3)
    job = slow.deliver_job()
    world = begin(services, job, 3)

    def cancel_and_resume() -> None:
        with world.context():
            continuations.cancel("run")
            continuations.resume(world.clients, {job.name: job}, "run")

    timeline = Timeline(world)
    timeline.at(10, cancel_and_resume)
    timeline.play(until_s=200)

    assert set(slow.mails.values()) == {1}
    assert state(world) == (FINISHED, 3, 0)


@pytest.mark.parametrize("kind", ["apply", "check", "deliver"])
def test_an_attempt_that_was_held_up_does_nothing_after_a_cancel(
    services: Services, kind: str
) -> None:
    """What a cancelled run has not begun it leaves, also where an attempt had taken the page."""
    slow = Slow(seconds=0)
    job = {"deliver": slow.deliver_job(), "check": slow.check_job()}.get(kind, APPLY)

    def held_up(args: Walk) -> HeldUp:
        return HeldUp(begun, items_of(args))

    begun: list[Timeline] = []
    world = begin(services, dataclasses.replace(job, source=held_up), 2)
    timeline = Timeline(world)
    begun.append(timeline)

    def cancel() -> None:
        with world.context():
            continuations.cancel("run")

    timeline.at(300, cancel)
    timeline.play(until_s=700)

    assert state(world) == (CANCELLED, 0, 0)
    assert not slow.begun
    assert not ledger(world, "run")
    with world.context():
        assert [page.owner for page in pages_of("run")] == [None]


@dataclass
class HeldUp:
    """A source that takes ten minutes to read."""

    timelines: list[Timeline]
    items: EntitySource

    def split(self, max_spans: int) -> list[Span]:
        return self.items.split(max_spans)

    def read(self, span: Span, size: int) -> Slice[Item]:
        self.timelines[0].sleep(600)
        return self.items.read(span, size)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[Item]:
        return self.items.load(load_from, names)


@pytest.mark.parametrize(("ahead_s", "is_taken"), [(30, False), (120, True)])
def test_a_lease_of_a_clock_far_ahead_means_nothing(
    services: Services, ahead_s: float, is_taken: bool
) -> None:
    """H2: up to a minute is honoured, as nobody can tell; a lease of days would stop the page."""
    slow = Slow(seconds=0)
    world = begin(services, slow.deliver_job(), 2)
    with world.context():
        now_utc = naive_utc(world.clock.now())
        names = sorted(key.id() for key in Item.query().fetch(keys_only=True))
        ContinuationPage(
            key=page_key("run", 0, 0),
            after="",
            load_from="",
            items=names,
            receipts="..",
            updated_at=now_utc,
            progressed_at=now_utc,
            owner="somebody",
            lease_expires_at=now_utc + datetime.timedelta(seconds=ahead_s),
        ).put()

    assert world.deliver(world.engine.due()[0].task_name) == 204

    assert len(slow.begun) == (2 if is_taken else 0)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("wrong", [(), (-1.0,), (NAN,), (INF,)])
def test_a_job_without_delays_is_refused(wrong: tuple[float, ...]) -> None:
    """It would break at its first deferred item, in the commit that keeps the receipts."""
    with pytest.raises(ValueError, match="delays"):
        dataclasses.replace(APPLY, retry_delays_s=wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *((name, wrong) for name in ("lease_s", "deadline_s") for wrong in (0, -1, NAN, INF)),
        *(("max_attempts", wrong) for wrong in (0, -1)),
    ],
)
def test_a_job_that_could_not_hold_a_page_is_refused(name: str, wrong: float) -> None:
    """Each attempt would find its own lease ended, or have no end."""
    with pytest.raises(ValueError, match=f"{name} must be"):
        dataclasses.replace(APPLY, **{name: wrong})


@pytest.mark.parametrize(
    ("takeovers", "deadline_s", "lasts_s"),
    [(0, 600.0, 6.0), (1, 600.0, 12.0), (7, 600.0, 600.0), (1000, 600.0, 600.0), (3, 1.0, 6.0)],
)
def test_a_lease_is_doubled_up_to_what_an_attempt_may_take(
    takeovers: int, deadline_s: float, lasts_s: float
) -> None:
    """A page is taken over by then, however often that was so; no lease is shorter than a job's."""
    now_utc = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
    clients: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: now_utc), new_owner=lambda: "an attempt"
    )
    job = dataclasses.replace(APPLY, lease_s=6.0, deadline_s=deadline_s)
    run: Any = SimpleNamespace(has_slots=False)
    page: Any = SimpleNamespace(takeovers=takeovers)

    PageLease(clients, job, run, None).renew(page)

    lasts = page.lease_expires_at - now_utc.replace(tzinfo=None)
    assert lasts.total_seconds() == lasts_s
