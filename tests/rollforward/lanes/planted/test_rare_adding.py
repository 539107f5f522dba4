"""Tasks added by a commit whose reply was lost, with large arguments, or in two databases."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.lanes import Lane, adding, hints, reading
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneTask
from rollforward.lanes.runs import lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.operations import replay_dead_task
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject, Retry
from rollforward.tasks.stored.entities import StoredArguments
from tests.infra.world import World
from tests.rollforward.lanes.office import BLOCKING, DESK, IN_ORDER, SHARED, write

LARGE = "x" * 200_000


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_task_that_has_run_before_its_commit_is_made_again_runs_once(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K2: others of the same commit wait, which says that it was made."""

    def body() -> None:
        for text in ("0", "1", "2"):
            outbox.enqueue(world.clients, write, write.bind("ada", text), lane=lane("ada"))

    def run_one(seconds: float) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lookups, "SLICE_S", 0.0)
            deliver(lane, world.clients, LaneArgs(f"{lane.name}|ada"))

    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    transact(body, sleep=run_one)
    assert len(DESK.written) == 1
    world.settle()
    assert sorted(DESK.of("ada")) == ["0", "1", "2"]


def test_a_task_without_an_order_whose_lost_commit_lands_late_runs_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: behind the attempt after it, in each key: both write the same rows."""
    rows: list[LaneTask] = []
    row_of = adding._row

    def note(*args: Any) -> LaneTask:
        rows.append(row_of(*args))
        return rows[-1]

    def body() -> None:
        for person in ("ada", "bob"):
            outbox.enqueue(world.clients, write, write.bind(person, "0"), lane=SHARED(person))

    monkeypatch.setattr(adding, "_row", note)
    world.plan.break_next("Commit", "error:UNAVAILABLE")
    transact(body, sleep=lambda seconds: world.clock.sleep(1))
    assert len(rows) == 4
    ndb.put_multi(rows[:2])
    world.settle()
    assert (DESK.of("ada"), DESK.of("bob")) == (["0"], ["0"])


def expiries() -> list[str | None]:
    return [row.expires for row in StoredArguments.query().fetch()]


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_large_arguments_stay_for_as_long_as_their_task_waits(
    world: World, *, is_in_transaction: bool
) -> None:
    """K1: a key may be paused, or a task wait, for longer than 32 days."""

    def add() -> None:
        outbox.enqueue(world.clients, write, write.bind("ada", LARGE), lane=SHARED("ada"))

    def wait_once(name: str) -> None:
        if len(DESK.begun) == 1:
            raise Retry("later", after_s=5)

    DESK.before = wait_once
    if is_in_transaction:
        transact(add)
    else:
        write.enqueue(world.clients, write.bind("ada", LARGE), lane=SHARED("ada"))
    assert expiries() == [None]
    deliver(SHARED, world.clients, LaneArgs("test-shared|ada"))
    assert len(DESK.begun) == 1
    assert expiries() == [None]
    world.settle()
    assert DESK.of("ada") == [LARGE]
    assert expiries() != [None]


def test_large_arguments_of_a_task_that_is_replayed_stay(world: World) -> None:
    """K1: the key that it goes back to may be paused."""

    def refuse(name: str) -> None:
        raise Reject("no such address")

    DESK.before = refuse
    write.enqueue(world.clients, write.bind("ada", LARGE), lane=BLOCKING("ada"))
    world.settle()
    [dead] = open_dead_tasks().fetch()
    assert expiries() == [None]
    BLOCKING("ada").pause(world.clients)
    replay_dead_task(world.clients, dead.key.id())
    assert expiries() == [None]
    DESK.before = lambda name: None
    BLOCKING("ada").resume(world.clients)
    world.settle()
    assert DESK.of("ada") == [LARGE]
    assert expiries() != [None]


@pytest.mark.parametrize("name", ["project", "database", "namespace"])
def test_two_databases_with_one_memcached_share_no_mark(world: World, name: str) -> None:
    """K5: a hint that exists for a key of one is none for the same key of the other."""
    here = world.clients.datastore
    place: dict[str, Any] = {
        "project": here.project,
        "database": here.database,
        "namespace": here.namespace,
    }
    other = replace(world.clients, datastore=SimpleNamespace(**{**place, name: "other"}))
    for clients in (world.clients, other):
        hints.hint_later(clients, SHARED.task, ["test-shared|ada"])
    assert len(world.live_tasks("default")) == 2
    at = world.clients.clock.now().replace(year=2031)
    for clients in (world.clients, other):
        hints.hint_at(clients, SHARED.task, "test-shared|ada", at)
    reading.note_oldest(world.clients, "test-shared", "test-shared|ada|0000000000000017-c0ffee")
    assert reading._oldest_key(world.clients, "a") != reading._oldest_key(other, "a")
