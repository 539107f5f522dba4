"""Deferred items: tried again after a while, whatever clocks say, and not for ever."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations.entities import FINISHED
from rollforward.continuations.jobs import DeferredItemError, ItemError, Job
from rollforward.continuations.listing import run_details
from rollforward.continuations.progress import item_issues, progress
from rollforward.continuations.sources import EntitySource
from rollforward.runtime.clients import Clients
from rollforward.tasks import dead_tasks
from rollforward.testing.opening import QueueClock
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import Item, Walk, items_of, put_items, run_to_end

pytestmark = pytest.mark.fast


def test_a_deferred_item_comes_again_and_then_fails(world: World) -> None:
    """Deferring ends: after `max_attempts` attempts over its page the item has failed."""
    put_items(world, 1)
    seen: list[str] = []

    def defer(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        seen.append("pass")
        return [DeferredItemError("busy") for _ in items]

    job = Job("apply", "fan-out", Walk, items_of, apply=defer, max_attempts=3)
    world = World(world.services, [job])
    put_items(world, 1)

    run_to_end(world, job, "run")

    with world.context():
        current = progress("run")
    assert (current.state, current.totals.failed, len(seen)) == (FINISHED, 1, 3)


def test_an_answer_that_is_no_error_of_an_item_is_refused(world: World) -> None:
    """S2: as the keys that a put returns. Nothing is applied, and not once for each attempt."""

    def put(clients: Clients, args: Walk, items: list[Item]) -> Any:
        return ndb.put_multi([Item(id=f"done:{item.key.id()}", value=1) for item in items])

    job = Job("apply", "fan-out", Walk, items_of, apply=put, max_attempts=2)
    world = World(world.services, [job])
    put_items(world, 2)

    run_to_end(world, job, "run")

    with world.context():
        assert progress("run").totals.failed == 2
        assert "must return None or an ItemError" in item_issues("run", limit=5)[0].reason
        assert [row.value for row in Item.query().fetch()] == [0, 1]


def test_deferred_items_wait_for_minutes_not_seconds(world: World) -> None:
    """A relay that puts a mail off is asked again after minutes, also when tasks come twice."""
    tried: list[float] = []

    def defer(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        tried.append(world.clock.time_s)
        return [DeferredItemError("greylisted") for _ in items]

    job = Job("apply", "fan-out", Walk, items_of, apply=defer)
    world = World(world.services, [job])
    world.doubles = True
    put_items(world, 1)

    run_to_end(world, job, "run")

    waits = [next_try - earlier for earlier, next_try in itertools.pairwise(tried)]
    assert waits == pytest.approx([5, 30, 120, 600], abs=2)
    with world.context():
        assert (progress("run").state, dead_tasks.count_open()) == (FINISHED, 0)


def test_only_open_items_are_read_again(world: World) -> None:
    """A page whose items are deferred one after another reads each as often as it is tried."""
    tried: list[list[str]] = []
    loaded: list[list[str]] = []

    class Watched(EntitySource):
        def load(self, load_from: str, names: Sequence[str]) -> Sequence[Any]:
            loaded.append([*names])
            return super().load(load_from, names)

    def defer_all_but_the_first(
        clients: Clients, args: Walk, items: list[Item]
    ) -> list[ItemError | None]:
        tried.append([str(item.key.id()) for item in items])
        return [None, *[DeferredItemError("busy") for _ in items[1:]]]

    def source(args: Walk) -> EntitySource:
        return Watched(Item, key_prefix=f"{args.group}:")

    job = Job("apply", "fan-out", Walk, source, apply=defer_all_but_the_first)
    world = World(world.services, [job])
    names = put_items(world, 4)

    run_to_end(world, job, "run")

    assert tried == [sorted(names)[start:] for start in range(4)]
    assert loaded == tried[1:]
    with world.context():
        assert progress("run").totals.done == 4


def test_a_job_says_how_long_its_deferred_items_wait(world: World) -> None:
    """What waits for something near asks again soon; the last delay serves all later passes."""
    tried: list[float] = []

    def defer(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        tried.append(world.clock.time_s)
        return [DeferredItemError("busy") for _ in items]

    job = Job("apply", "fan-out", Walk, items_of, apply=defer, retry_delays_s=(1, 4))
    world = World(world.services, [job])
    put_items(world, 1)

    run_to_end(world, job, "run")

    waits = [next_try - earlier for earlier, next_try in itertools.pairwise(tried)]
    assert waits == pytest.approx([1, 4, 4, 4], abs=2)


@pytest.mark.parametrize("delays_s", [(5.0, 30.0), (300.0, 1.0)])
def test_a_delivery_before_its_time_tries_no_deferred_item(
    services: Services, delays_s: tuple[float, ...]
) -> None:
    """A task that is delivered twice asks nobody earlier than the job wants, whichever delay is
    its longest.
    """
    tried: list[float] = []
    job = replace(busy_once(tried, lambda: world), retry_delays_s=delays_s)
    world = World(services, [job])
    put_items(world, 1)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    [task] = world.engine.due()
    world.doubles = True
    assert world.deliver(task.task_name) == 204
    tried_at_first = len(tried)

    world.settle()

    assert (tried_at_first, len(tried)) == (1, 2)
    assert tried[1] - tried[0] >= job.retry_delays_s[0]
    with world.context():
        assert progress("run").totals.done == 1


def test_a_page_that_has_given_up_is_closed_by_the_next_delivery(services: Services) -> None:
    """A3: a crash after the last receipts costs a retry, not the time that items are deferred."""
    job = Job(
        "apply",
        "fan-out",
        Walk,
        items_of,
        apply=lambda clients, args, items: [DeferredItemError("busy") for _ in items],
        max_attempts=1,
    )
    world = World(services, [job])
    put_items(world, 1)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    before_s = world.clock.time_s
    world.plan.kind, world.plan.at = "crash-after", 6
    with world.plan.watched():
        world.deliver(world.engine.due()[0].task_name)

    world.settle()

    assert world.plan.fired == "crash-after at call 6 (Commit)"
    assert world.clock.time_s - before_s < 5
    with world.context():
        assert progress("run").state == FINISHED


@dataclass(frozen=True)
class Skewed:
    """A clock that goes wrong by some seconds."""

    clock: QueueClock
    by_s: float

    def now(self) -> datetime.datetime:
        return self.clock.now() + datetime.timedelta(seconds=self.by_s)

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


def busy_once(tried: list[float], world_of: Callable[[], World]) -> Job[Walk, Item]:
    """Return a job that defers its items the first time it sees them."""

    def apply(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        tried.append(world_of().clock.time_s)
        return [DeferredItemError("busy") if len(tried) == 1 else None for _ in items]

    return Job("apply", "fan-out", Walk, items_of, apply=apply)


def test_an_item_that_is_done_in_the_end_is_no_issue(services: Services) -> None:
    """Why it was deferred is forgotten: the list of issues, and the run's page, can be read."""
    tried: list[float] = []
    job = busy_once(tried, lambda: world)
    world = World(services, [job])
    put_items(world, 2)

    run_to_end(world, job, "run")

    with world.context():
        assert item_issues("run") == []
        details = run_details({"apply": job}, "run")
    assert (details.run.counts["done"], details.issues, len(tried)) == (2, [], 2)


@pytest.mark.parametrize("behind_s", [2, 5, 20])
def test_a_clock_that_is_behind_loses_no_deferred_item(services: Services, behind_s: int) -> None:
    """The task that comes again comes too early for that machine: it is told to come once more."""
    tried: list[float] = []
    job = busy_once(tried, lambda: world)
    world = World(services, [job])
    put_items(world, 1)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    world.deliver(world.engine.due()[0].task_name)
    object.__setattr__(world.clients, "clock", Skewed(world.clock, -behind_s))

    world.settle()

    with world.context():
        assert progress("run").state == FINISHED
    assert 5 <= tried[1] - tried[0] <= 5 + behind_s + 5


def test_a_clock_far_ahead_defers_nothing_for_long(services: Services) -> None:
    """A time that no job can have asked for means nothing: the next sweep has the item tried."""
    tried: list[float] = []
    job = busy_once(tried, lambda: world)
    world = World(services, [job])
    put_items(world, 1)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    object.__setattr__(world.clients, "clock", Skewed(world.clock, 7 * 86400))
    world.deliver(world.engine.due()[0].task_name)
    object.__setattr__(world.clients, "clock", world.clock)

    world.clock.sleep(60)
    world.sweep()
    world.deliver_due()

    with world.context():
        assert progress("run").state == FINISHED
