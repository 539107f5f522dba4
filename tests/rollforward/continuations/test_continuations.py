"""Continuations: every item once, whatever happens. Invariants A1 to A5 of docs/invariants.md."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations import runs
from rollforward.continuations.entities import FINISHED, PAGES_KEPT_FOR, pages_of
from rollforward.continuations.jobs import (
    MAX_PAGE_SIZE,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from rollforward.continuations.pages.attempt import page_task
from rollforward.continuations.progress import item_issues, progress, run_of
from rollforward.continuations.sources import EntitySource
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks import dead_tasks
from rollforward.tasks.errors import Retry, Unavailable
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    count_items,
    items_of,
    ledger,
    put_items,
    run_to_end,
)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 20])
def test_each_item_is_applied_once_and_the_chain_ends(world: World, count: int) -> None:
    """A1, A3: 0, 1, size-1, size, size+1 and 10 x size items; no more pages than needed."""
    names = put_items(world, count)

    run_to_end(world, APPLY, "run")

    assert ledger(world, "run") == Counter(names)
    with world.context():
        current = progress("run")
    assert (current.state, current.totals.done, current.waiting) == (FINISHED, count, 0)
    assert current.totals.pages == max(1, -(-count // 2))
    assert ("".join(current.dots), current.totals.known, current.expected) == (
        "d" * count,
        count,
        count,
    )


@pytest.mark.parametrize("letter", ["\x01", "\U0001f600"])
def test_a_page_holds_what_its_row_can_name(world: World, letter: str) -> None:
    """A1: pages of 1,000 with the longest names and a reason of each item are cut to fit."""

    def refuse(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        return [RefusedItemError(letter * 300) for _ in items]

    def source(args: Walk) -> EntitySource:
        return EntitySource(Item)

    job = Job("apply", "fan-out", Walk, source, check=refuse, page_size=MAX_PAGE_SIZE)
    world = World(world.services, [job])
    with world.context():
        items = [Item(id=f"{number:04d}".ljust(1_400, "n")) for number in range(1_000)]
        for start in range(0, len(items), 250):
            ndb.put_multi(items[start : start + 250])

    run_to_end(world, job, "run")

    with world.context():
        current = progress("run")
    assert (current.state, current.totals.failed) == (FINISHED, 1_000)
    assert 1 < current.totals.pages < 10


def test_items_of_others_are_left_alone(world: World) -> None:
    """A2: nothing happens to an item outside the source."""
    names = put_items(world, 3)
    put_items(world, 3, group="f")
    put_items(world, 3, group="h")

    run_to_end(world, APPLY, "run", chains=4)

    assert ledger(world, "run") == Counter(names)


@pytest.mark.parametrize("chains", [2, 3, 8])
def test_chains_share_no_item_and_miss_none(world: World, chains: int) -> None:
    """A1 holds when the key space is cut into several chains."""
    names = put_items(world, 25)

    run_to_end(world, APPLY, "run", chains=chains)

    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert progress("run").state == FINISHED


def test_a_run_has_as_many_chains_as_its_items_are_worth(world: World) -> None:
    """One for four pages of two, and eight at most."""
    put_items(world, 60)

    with world.context():
        drafts = [
            runs.new_run(world.clients, APPLY, Walk("r"), run_id="r", expected=expected)
            for expected in (None, 0, 15, 16, 31, 1_000)
        ]

    assert [len(run.spans) for run in drafts] == [1, 1, 1, 2, 3, 8]


def test_a_page_has_one_to_a_thousand_items(world: World) -> None:
    """What cannot be is refused before anything is stored, for a job and for a run; one is."""
    names = put_items(world, 3)
    for size in (-1, MAX_PAGE_SIZE + 1):
        with world.context(), pytest.raises(ValueError, match=f"1 to 1,000, got {size}"):
            runs.new_run(world.clients, APPLY, Walk("r"), run_id="r", page_size=size)
    for size in (0, MAX_PAGE_SIZE + 1):
        with pytest.raises(ValueError, match=f"1 to 1,000, got {size}"):
            dataclasses.replace(APPLY, page_size=size)
    assert dataclasses.replace(APPLY, page_size=MAX_PAGE_SIZE).page_size == MAX_PAGE_SIZE

    run_to_end(world, APPLY, "run", page_size=1)

    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert progress("run").totals.pages == 3


def test_the_next_page_is_linked_before_this_page_works(world: World) -> None:
    """A4: a page whose work fails does not hold up the pages behind it."""
    names = put_items(world, 6)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.plan.kind, world.plan.at = "crash-before", None
    with world.plan.watched():
        world.deliver(world.engine.due()[0].task_name)
    calls = world.plan.calls

    assert calls.index("CreateTask") < len(calls) - 1 - calls[::-1].index("Commit")
    pinned = calls.index("Commit")
    linked = calls.index("CreateTask")
    worked = calls.index("Commit", linked)
    assert pinned < linked < worked
    world.settle()
    assert ledger(world, "run") == Counter(names)


def test_two_runs_over_the_same_items_do_not_block_each_other(world: World) -> None:
    """A5: task names hold the run; an old run's names stop nobody."""
    names = put_items(world, 5)

    run_to_end(world, APPLY, "first")
    run_to_end(world, APPLY, "second")

    assert ledger(world, "first") == ledger(world, "second") == Counter(names)


def test_starting_twice_starts_once(world: World) -> None:
    """A start is known by its run id."""
    put_items(world, 3)
    with world.context():
        started = continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
        started_again = continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.settle()

    assert (started, started_again) == (True, False)
    assert set(ledger(world, "run").values()) == {1}


@pytest.mark.parametrize("step", range(1, 8))
def test_rows_that_come_and_go_during_a_run_double_nothing(world: World, step: int) -> None:
    """A1: rows inserted and deleted ahead of and behind the cursor; those there throughout once."""
    names = put_items(world, 8)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    for _ in range(step):
        if due := world.engine.due():
            world.deliver(due[0].task_name)
    with world.context():
        Item(id="g:00000000a", value=1).put()
        Item(id="g:ffffffffa", value=1).put()
        ordered = sorted(names)
        ndb.delete_multi([ndb.Key(Item, ordered[0]), ndb.Key(Item, ordered[-1])])

    world.settle()

    applied = ledger(world, "run")
    assert set(applied.values()) == {1}
    assert set(ordered[1:-1]) <= set(applied)


def test_a_retry_sees_the_page_that_was_pinned(world: World) -> None:
    """A row inserted into a page that has begun is not drawn into it by the retry."""
    put_items(world, 4)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.plan.at, world.plan.kind = 6, "crash-before"
    with world.plan.watched():
        world.deliver(world.engine.due()[0].task_name)
    with world.context():
        pinned = [page.items for page in pages_of("run")]
        Item(id="g:00000000a", value=1).put()

    world.heal(lambda: progress("run").state == FINISHED)

    assert world.plan.fired
    with world.context():
        assert [page.items for page in pages_of("run")][: len(pinned)] == pinned
    assert "g:00000000a" not in ledger(world, "run")


def test_an_item_that_breaks_its_batch_fails_alone(world: World) -> None:
    """A poison item is found by halving; the others are applied once."""
    names = put_items(world, 4)

    def explode(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        if any(item.key.id() == names[0] for item in items):
            raise RuntimeError("poison")
        return count_items(clients, args, items)

    job = Job("apply", "fan-out", Walk, items_of, apply=explode, page_size=4, max_attempts=2)
    world = World(world.services, [job])
    put_items(world, 4)

    run_to_end(world, job, "run")

    assert ledger(world, "run") == Counter(names[1:])
    with world.context():
        current, listed = progress("run"), item_issues("run")
    assert (current.state, current.totals.done, current.totals.failed) == (FINISHED, 3, 1)
    assert [(m.name, m.outcome) for m in listed] == [(names[0], "failed")]
    assert "poison" in listed[0].reason


def test_failed_items_are_run_again_once(world: World) -> None:
    """The failed items of an ended run make a run of their own, whoever asks how often.

    Those behind a chain's end are among them. What was skipped has ended well: it is not asked
    for again.
    """
    names = put_items(world, 6)
    broken, asked = set(names[:3]), Counter[str]()

    def pick(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        asked.update(item.key.id() for item in items)
        errors: list[ItemError | None] = [
            RefusedItemError("no")
            if item.key.id() in broken
            else SkippedItemError("no need")
            if item.key.id() == names[5]
            else None
            for item in items
        ]
        count_items(clients, args, [i for i, error in zip(items, errors, strict=True) if not error])
        return errors

    job = Job("apply", "fan-out", Walk, items_of, apply=pick, page_size=2)
    world = World(world.services, [job])
    put_items(world, 6)
    run_to_end(world, job, "run", page_size=3, chains=4)
    broken.clear()
    world.clock.sleep(3600)

    with world.context():
        children = {
            continuations.retry_failed(world.clients, {"apply": job}, "run") for _ in range(2)
        }
    world.settle()

    assert len(children) == 1
    assert ledger(world, "run") == Counter(names[:5])
    assert asked == Counter(names) + Counter(names[:3])
    with world.context():
        parent, [child_id] = run_of("run"), children
        child, page_size = progress(child_id), run_of(child_id).page_size
    assert (parent.retried_by, page_size) == (child_id, 3)
    assert parent.pages_until >= parent.ended + PAGES_KEPT_FOR + datetime.timedelta(hours=1)
    assert (child.state, child.totals.done, child.totals.failed) == (FINISHED, 3, 0)


@pytest.mark.parametrize(
    "wrong", [{"run_id": ""}, {"run_id": "x" * 1600}, {"chain": 10**40}, {"number": -1}]
)
def test_a_page_that_cannot_be_is_not_worked_on(world: World, wrong: dict[str, object]) -> None:
    """H3: arguments that make no key are refused by their declaration, not by Datastore.

    Another version may take them, so the task waits, and is parked in the end.
    """
    body = {"run_id": "run", "chain": 0, "number": 0, "after": "", **wrong}
    task = page_task(APPLY)
    world.clients.tasks.create(Message(task.path, task.queue, json.dumps(body).encode()))

    first_answer = world.deliver(world.engine.due()[0].task_name)
    world.clock.sleep(3600)
    last_answer = world.deliver(world.engine.due()[0].task_name)

    with world.context():
        assert (first_answer, last_answer, dead_tasks.count_open()) == (200, 204, 1)


@pytest.mark.parametrize(
    "error",
    [
        Retry("made by a test"),
        Unavailable("made by a test"),
        rpc_errors.Aborted("made by a test"),
        rpc_errors.ResourceExhausted("made by a test"),
        rpc_errors.ServiceUnavailable("made by a test"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_an_outage_is_not_the_fault_of_what_is_delivered(
    services: Services, error: Exception
) -> None:
    """A1: the attempt ends; the item is in doubt, is not put off, and comes with the retry."""
    delivered: list[str] = []
    errors = [error]

    @contextlib.contextmanager
    def line(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
        def act(item: Item) -> None:
            if len(delivered) == 1 and errors:
                raise errors.pop()
            delivered.append(item.key.id())

        yield act

    job = Job("deliver", "fan-out", Walk, items_of, side_effect=line, page_size=3)
    world = World(services, [job])
    names = put_items(world, 3)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")

    status = world.deliver(world.engine.due()[0].task_name)

    with world.context():
        (page,) = pages_of("run").fetch()
        assert (page.receipts, page.in_doubt, page.owner) == ("d..", 1, None)
    assert status in (409, 503)
    world.settle()
    assert delivered == sorted(names)
    with world.context():
        current = progress("run")
    assert (current.state, current.totals.done, current.totals.in_doubt) == (FINISHED, 3, 1)


@pytest.mark.parametrize(("stored", "draft"), [(4, 2), (2, 4), (2, 3)])
def test_a_second_start_that_would_cut_otherwise_changes_nothing(
    world: World, stored: int, draft: int
) -> None:
    """A1: the chains of the stored run are launched, whoever starts it again and how."""
    names = put_items(world, 60)
    with world.context():
        first = runs.new_run(world.clients, APPLY, Walk("run"), run_id="run", chains=stored)
        first.put()
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run", chains=draft)
    world.settle()

    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert progress("run").state == FINISHED


def test_an_item_that_datastore_refuses_fails_alone(services: Services) -> None:
    """An error of the service that is for good is the item's: its page-mates are applied."""

    def too_long(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        if any(item.key.id() == names[0] for item in items):
            ndb.Key(Item, "x" * 1600).get()
        return count_items(clients, args, items)

    job = Job("apply", "fan-out", Walk, items_of, apply=too_long, page_size=4, max_attempts=2)
    world = World(services, [job])
    names = put_items(world, 4)

    run_to_end(world, job, "run")

    assert ledger(world, "run") == Counter(names[1:])
    with world.context():
        current = progress("run")
    assert (current.state, current.totals.done, current.totals.failed) == (FINISHED, 3, 1)
