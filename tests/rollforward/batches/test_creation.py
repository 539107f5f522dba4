"""How members are stored and created: in pages, in bulk, once, whatever breaks off in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rollforward.batches.adding import creation, populate
from rollforward.batches.completion import STALE_S
from rollforward.batches.entities import BatchPage, BatchWork, state_key
from rollforward.batches.errors import BadWorkError
from rollforward.datastore.transactions import transact
from rollforward.runtime import naive_utc
from rollforward.runtime.messages import Message
from rollforward.tasks import CloudTaskQueue
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    Note,
    callbacks,
    deliver_all,
    deliver_next,
    note,
    notes,
    outcomes,
    rows_here,
    rows_of,
    told,
)

MANY = 100_000 if IS_EXHAUSTIVE else 2_500


def labels(count: int) -> list[Any]:
    return notes(*(str(number) for number in range(count)))


@pytest.mark.timeout(1200 if IS_EXHAUSTIVE else 120)
def test_many_members_are_created_in_bulk(world: World) -> None:
    """F4: a task for each, by a walk over pages of a thousand; `make soak` takes 100,000."""
    with world.context():
        cost_before = world.clients.meter.total()
        assert NOTES.populate(world.clients, "b", labels(MANY), seal=True) == MANY
        populated = world.clients.meter.total() - cost_before
        assert NOTES.populate(world.clients, "b", labels(MANY), seal=True) == 0
    deliver_all(world, "default")
    cost = world.clients.meter.total() - cost_before

    pages = MANY // 1_000 + (MANY % 1_000 > 0)
    with world.context():
        assert rows_of("notes:b")["BatchPage"] == rows_of("notes:b")["BatchWork"] == pages
        assert NOTES.progress("b").waiting == MANY
    assert populated.writes <= 2 * pages + 3
    assert MANY < cost.tasks <= MANY + pages


def test_pages_are_cut_by_members_and_by_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: and each member is created once, with its own arguments, which JSON may lengthen."""
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 3)
    monkeypatch.setattr(populate, "MAX_PAGE_BYTES", 200)
    some = notes(*"abcdefg", "x" * 100, "y" * 100, "\U0001f389" * 8, "z", '"' * 35)
    with world.context():
        NOTES.populate(world.clients, "b", some, seal=True)
        sizes = [len(page.letters) for page in rows_here(BatchPage)]
        stored = [len(json.dumps(work.members)) for work in rows_here(BatchWork)]
    world.settle()

    assert sum(sizes) == len(some)
    assert max(sizes) <= 3
    assert max(stored) <= 200
    assert {f"b/{args.label}": 1 for _, args in some} == RAN
    with world.context():
        assert [member.ordinal for member in NOTES.results("b")] == list(range(len(some)))
        assert told(NOTES, "b")[0]["done"] == len(some)


def test_a_member_costs_few_writes(world: World) -> None:
    """F6: at most 2.2 entity writes per member, from populate to completion, all included."""
    count = 200
    cost_before = world.clients.meter.total()
    with world.context():
        NOTES.populate(world.clients, "b", labels(count), seal=True)
    world.settle()
    cost = world.clients.meter.total() - cost_before

    with world.context():
        assert told(NOTES, "b")[0]["done"] == count
    assert cost.writes / count <= 2.2, cost


def test_pages_that_nothing_counted_are_not_created(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: a call that dies before its commit adds nothing; made again it adds all, once."""
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 2)
    sound = populate._add
    monkeypatch.setattr(populate, "_add", _dies)
    with world.context(), pytest.raises(ZeroDivisionError):
        NOTES.populate(world.clients, "b", labels(5))
    monkeypatch.setattr(populate, "_add", sound)
    with world.context():
        assert rows_of("notes:b")["BatchPage"] == 2
        NOTES.populate(world.clients, "b", labels(1), idempotency_key="other")
        walk = creation.Create("notes:b", "notes:b", 1, wake=1)
        creation.create.enqueue(world.clients, walk)
    world.settle()
    assert set(RAN) == {"b/0"}
    with world.context():
        assert outcomes(NOTES, "b") == ["done"]
        NOTES.populate(world.clients, "b", labels(5), seal=True)
    world.settle()

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 6
    assert callbacks(world) == {"notes:b:1": 1}


def test_populating_again_leaves_ended_members_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: pages that were stored before the commit are not stored anew."""
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 2)
    with world.context():
        NOTES.populate(world.clients, "b", labels(5))
    world.settle()
    with world.context():
        NOTES.populate(world.clients, "b", labels(5), seal=True)
        assert outcomes(NOTES, "b") == ["done"] * 5
        assert told(NOTES, "b") == [] or told(NOTES, "b")[0]["done"] == 5
    world.settle()

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 5


def test_a_transaction_takes_one_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 2)

    def body() -> None:
        NOTES.populate_in_transaction(world.clients, "b", labels(3))

    with world.context():
        with pytest.raises(BadWorkError):
            transact(body)
        assert rows_of("notes").total() == 0


def test_tasks_that_a_queue_lost_are_created_again(world: World) -> None:
    """F3: after half an hour in which nothing has ended, and once more an hour later."""
    with world.context():
        NOTES.populate(world.clients, "b", labels(3), seal=True)
    deliver_next(world, "default")
    world.engine.purge_queue(world.engine.place.queue_name("fan-out"))
    assert not world.live_tasks("fan-out")
    world.clock.sleep(STALE_S - 1)
    world.sweep()
    world.settle()
    assert not RAN
    world.clock.sleep(2)
    world.sweep()
    world.sweep()
    world.settle()

    assert {f"b/{number}": 1 for number in range(3)} == RAN
    with world.context():
        assert told(NOTES, "b")[0]["done"] == 3


def test_the_arguments_travel_as_json(world: World) -> None:
    """A member is read by its own task, as it was written."""
    with world.context():
        NOTES.populate(world.clients, "b", [(note, Note('"ä\n'))])
        [work] = rows_here(BatchWork)
    assert json.loads(work.members[0][1]) == {"label": '"ä\n'}
    world.settle()
    assert RAN == {'b/"ä\n': 1}


def _dies(*args: Any) -> None:
    raise ZeroDivisionError


def test_an_outage_that_shows_as_time_outs_fails_no_walk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3, H3: however long it lasts, the walk is tried again, and becomes no dead task."""

    def hangs(self: CloudTaskQueue, messages: Sequence[Message]) -> list[bool | Exception]:
        return [TimeoutError("the operation took longer than 30 s") for _ in messages]

    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "b"), seal=True)
    with monkeypatch.context() as patch:
        patch.setattr(CloudTaskQueue, "_create_part", hangs)
        answers = []
        for _ in range(60):
            answers.append(deliver_next(world, "default"))
            world.clock.sleep(60)
    world.settle()

    assert set(answers) == {503}
    assert RAN == {"b/a": 1, "b/b": 1}
    with world.context():
        assert not DeadTask.query().fetch()


def test_members_that_never_end_are_woken_ever_more_rarely(world: World) -> None:
    """F3: for their batch may have lost its declaration, and each delivery be a dead task."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"), seal=True)
    waits = []
    for _ in range(7):
        with world.context():
            state = state_key("notes:b").get()
        waits.append((state.due - naive_utc(world.clock.now())).total_seconds())
        world.clock.sleep(waits[-1])
        world.sweep()

    assert waits == [hours * 3600 for hours in (0.5, 1, 2, 4, 8, 16, 24)]
