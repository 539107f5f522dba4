"""Continuations with a fault at every remote call, and deliveries in every disorder."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import continuations
from rollforward.continuations import ItemError, Job
from rollforward.continuations.entities import FINISHED, ContinuationPage
from rollforward.continuations.errors import UnknownRunError
from rollforward.continuations.pages import attempt
from rollforward.continuations.pages.lease import PageLease
from rollforward.continuations.progress import item_issues, progress
from rollforward.runtime import Clients
from rollforward.tasks.errors import Retry, Unavailable
from rollforward.testing.explorer import NO_SWEEPS
from rollforward.testing.injection import FLUSH, KINDS, OVERLAP
from rollforward.testing.world import in_threads
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    count_items,
    deliver_job,
    items_of,
    ledger,
    ledger_here,
    put_items,
    put_items_here,
)

ITEMS = 3  # Two pages of two.


class WalkScenario:
    """Start a run over a few items of its own, and walk to the end."""

    items = ITEMS

    def __init__(self, world: World, job: Job[Walk, Item], outside: Counter[str]) -> None:
        self.world = world
        self.job = job
        self.outside = outside
        self.names: dict[str, list[str]] = {}

    def begin(self, tag: str) -> None:
        if tag not in self.names:
            with self.world.plan.unwatched():
                self.names[tag] = put_items_here(self.items, tag)
        walk = Walk(tag, group=tag)
        continuations.start(self.world.clients, self.job, walk, run_id=tag)

    def is_done(self, tag: str) -> bool:
        try:
            return progress(tag).state == FINISHED
        except UnknownRunError:
            return False

    def check(self, tag: str, fault: str) -> None:
        current = progress(tag)
        assert (current.totals.done, current.totals.known, current.totals.failed) == (
            ITEMS,
            ITEMS,
            0,
        ), fault
        if self.job.apply is not None:
            applied = ledger_here(tag)
            assert applied == Counter(self.names[tag]), fault
        else:
            delivered = [self.outside[name] for name in self.names[tag]]
            assert min(delivered) >= 1, fault
            assert (
                sum(delivered) - ITEMS <= current.totals.in_doubt <= self._most_in_doubt(fault)
            ), fault
            if not fault.startswith(("reply-lost", "crash")):
                assert sum(delivered) == ITEMS, fault
        assert item_issues(tag) == [], fault

    def _most_in_doubt(self, fault: str) -> int:
        """Return how many items may be in doubt: the one that broke, or a page of a dead worker."""
        if fault.startswith("crash"):
            return self.job.page_size
        return int("(act)" in fault)


@pytest.fixture
def outside() -> Counter[str]:
    """The outside world: how often each item was delivered."""
    return Counter()


@pytest.fixture(params=["apply", "deliver"])
def scenario(
    request: pytest.FixtureRequest, services: Services, outside: Counter[str]
) -> WalkScenario:
    job = APPLY if request.param == "apply" else deliver_job(outside)
    return WalkScenario(World(services, [job]), job, outside)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_item_ends_once_with_a_fault_at_any_call(scenario: WalkScenario, kind: str) -> None:
    """A1, A3: a fault or a flushed cache at each call; in Datastore once, outside accounted."""
    Explorer(scenario.world, scenario, NO_SWEEPS).explore([kind])


def test_each_item_ends_once_when_deliveries_overlap_at_any_call(scenario: WalkScenario) -> None:
    """A1: a second delivery runs from start to end inside the first, at each of its calls."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario, NO_SWEEPS).explore([OVERLAP])


def test_each_item_ends_once_with_every_delivery_doubled(scenario: WalkScenario) -> None:
    """A1: every task delivered twice, one after the other."""
    scenario.world.doubles = True
    Explorer(scenario.world, scenario, NO_SWEEPS).play()


@pytest.mark.parametrize("seed", range(5))
def test_each_item_ends_once_in_any_order(scenario: WalkScenario, seed: int) -> None:
    """A1: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario, NO_SWEEPS).play()


def test_each_item_ends_once_with_all_deliveries_side_by_side(scenario: WalkScenario) -> None:
    """A1: all tasks that are due run at once, each of them twice, on threads."""
    scenario.world.overlaps = True
    for _ in range(3):
        Explorer(scenario.world, scenario, NO_SWEEPS).play()


def test_an_attempt_that_outlives_its_lease_stops(services: Services) -> None:
    """H4: held up for longer than its lease, an attempt does nothing more and commits nothing."""
    seen: list[str] = []

    @contextlib.contextmanager
    def slow(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
        def act(item: Item) -> None:
            seen.append(item.key.id())
            if len(seen) == 1:
                clients.clock.sleep(30)
                in_threads(lambda: world.answer(world.current))

        yield act

    job = Job("slow", "fan-out", Walk, items_of, side_effect=slow, page_size=3)
    world = World(services, [job])
    names = put_items(world, 3)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")

    first_answer = world.deliver(world.engine.due()[0].task_name)
    world.heal(lambda: progress("run").state == FINISHED)

    assert first_answer == 409
    assert Counter(seen) == Counter([seen[0], *names]), "the first item was in doubt, no other"
    with world.context():
        assert progress("run").totals.in_doubt >= 1


# How a service may answer a commit that it has made: the six codes that leave it open, two that are
# not supposed to, and one that ndb's failed rollback puts in their place.
LOST = (
    "CANCELLED",
    "UNKNOWN",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "ABORTED",
    "RESOURCE_EXHAUSTED",
    "INVALID_ARGUMENT",
)


@pytest.mark.parametrize("code", LOST)
def test_an_item_that_breaks_its_page_and_a_lost_commit_double_nothing(
    services: Services, code: str
) -> None:
    """A1: two faults at once, the reply of each commit lost in turn: one effect an item.

    In `make test` a code is the answer to one commit in three; `make soak` plays each with each.
    """

    def explode(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        if any(item.key.id() == min(names) for item in items):
            raise ValueError("a bad item")
        return count_items(clients, args, items)

    job = Job("apply", "fan-out", Walk, items_of, apply=explode, page_size=4, max_attempts=1)
    world = World(services, [job])
    names = put_items(world, 4)
    commits: list[int | None] = [None]
    while commits:
        at = commits.pop()
        run_id = f"run-{at}"
        world.engine.reset()
        with world.context():
            continuations.start(world.clients, job, Walk(run_id), run_id=run_id)
        world.plan.reset(f"reply-lost:{code}", at)
        with world.plan.watched():
            world.deliver_due()
        world.heal(lambda run_id=run_id: progress(run_id).state == FINISHED)

        assert (code in world.plan.fired) == (at is not None)
        assert ledger(world, run_id) == Counter(set(names) - {min(names)}), world.plan.fired
        with world.context():
            totals, issues = progress(run_id).totals, item_issues(run_id)
        assert (totals.done, totals.failed) == (3, 1), world.plan.fired
        assert [issue.name for issue in issues] == [min(names)], world.plan.fired
        if at is None:
            commits = [i for i, call in enumerate(world.plan.calls) if call == "Commit"]
            commits = commits if IS_EXHAUSTIVE else commits[LOST.index(code) % 3 :: 3]
            assert commits


@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.Aborted("contention"),
        rpc_errors.Cancelled("cancelled"),
        rpc_errors.DataLoss("data loss"),
        rpc_errors.DeadlineExceeded("no answer"),
        rpc_errors.InternalServerError("internal"),
        rpc_errors.ResourceExhausted("quota"),
        rpc_errors.RetryError("gave up", None),
        rpc_errors.ServiceUnavailable("away"),
        rpc_errors.Unknown("unknown"),
        Unavailable("away"),
        Retry("not now"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_outage_is_not_an_items_fault(services: Services, error: Exception) -> None:
    """What is wrong with a service ends the attempt: nothing is halved, and no item is deferred."""
    asked: list[int] = []

    def ask(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        asked.append(len(items))
        raise error

    job = Job("apply", "fan-out", Walk, items_of, apply=ask, page_size=4)
    world = World(services, [job])
    put_items(world, 4)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")

    status = world.deliver(world.engine.due()[0].task_name)

    assert status != 204
    assert set(asked) == {4}
    with world.context():
        current = progress("run").totals
    assert (current.waiting, current.retrying, current.in_doubt) == (4, 0, 0)


@pytest.mark.parametrize(
    ("planted", "kinds"),
    [
        ((attempt, "record"), KINDS),
        ((PageLease, "_check_free"), [OVERLAP]),
        ((PageLease, "_take"), KINDS),
    ],
    ids=["no receipts", "no lease", "no pinned page"],
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    planted: tuple[Any, str],
    kinds: Sequence[str],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    outside: Counter[str] = Counter()
    job = deliver_job(outside)
    scenario = WalkScenario(World(services, [job]), job, outside)
    monkeypatch.setattr(*planted, _PLANTED[planted[1]])

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario, NO_SWEEPS).explore(kinds, ALL)


def _never_pinned(
    lease: PageLease, draft: ContinuationPage | None
) -> tuple[ContinuationPage, bool]:
    """Take over whatever is there, and forget what was done."""
    page = draft or lease._key.get()
    page.receipts = "." * len(page.items)
    page.done = False
    lease.renew(page)
    page.put()
    return page, draft is not None


_PLANTED: dict[str, Callable[..., object]] = {
    "record": lambda *args, **kwargs: None,
    "_check_free": lambda *args: None,
    "_take": _never_pinned,
}
