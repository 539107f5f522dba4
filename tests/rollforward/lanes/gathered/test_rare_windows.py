"""Windows that are large, of another version, of odd keys, or of callers with wrong clocks."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

from google.cloud import ndb

from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject, Retry
from rollforward.tasks.stored.entities import ArgumentsChunk
from tests.infra.world import World
from tests.rollforward.lanes.gathered.mailroom import (
    DESK,
    WAIT_S,
    MailRun,
    Note,
    digest,
    once,
    sync,
)


def test_a_dead_task_takes_a_million_bytes_of_calls_and_replays_them(world: World) -> None:
    def refuse(run: MailRun) -> None:
        raise Reject("no such address")

    DESK.before = refuse
    texts = [f'{number}"' * 22_000 for number in range(16)]
    for text in texts:
        digest.call(world.clients, "ada", Note(text))
    world.settle()
    dead = open_dead_tasks().fetch()
    assert len(dead) == 2  # A run has at most a million bytes of calls.

    DESK.before = lambda run: None
    replay = world.registry.tasks["/tasks/dead/replay"]
    for row in dead:
        for _ in range(2):
            replay.enqueue(world.clients, replay.args(row.key.id()))
    world.settle()
    assert sorted(text for texts in DESK.texts() for text in texts) == sorted(texts)
    assert open_dead_tasks().fetch() == LaneTask.query().fetch() == LaneState.query().fetch() == []
    assert ArgumentsChunk.query().fetch(keys_only=True) == []


def test_a_call_of_another_version_waits_for_it_and_then_the_window_is_dead(world: World) -> None:
    digest.call(world.clients, "ada", Note("0"))
    [row] = LaneTask.query().fetch()
    row.body = '{"words":"0"}'
    row.put()
    for seconds in (WAIT_S + 1, 11, 3_500):
        world.clock.sleep(seconds)
        world.deliver_due()
    assert open_dead_tasks().fetch() == []
    world.clock.sleep(101)
    world.settle()
    assert DESK.begun == []
    [dead] = open_dead_tasks().fetch()
    assert dead.reason.startswith("BadArgumentsError")


def test_a_key_may_have_any_characters(world: World) -> None:
    keys = ["auth0|7", "~", "a~b", "é ü", "a|", "x/y", "a", 7]
    for key in keys:
        sync.call(world.clients, key, Note("0"))
    world.settle()
    assert sorted(run.person for run in DESK.done) == sorted(map(str, keys))


def test_a_caller_whose_clock_is_ahead_holds_up_no_unique_run(world: World) -> None:
    class Ahead:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.clock, name)

        def now(self) -> datetime.datetime:
            return world.clients.clock.now() + datetime.timedelta(minutes=10)

    began_s = world.clock.time_s
    sync.call(replace(world.clients, clock=Ahead()), "ada", Note("0"))
    sync.call(world.clients, "ada", Note("1"))
    world.settle()
    assert DESK.texts() == [("0", "1")]
    assert world.clock.time_s - began_s < 60


def test_calls_that_an_operator_has_deleted_hold_up_no_later_ones(world: World) -> None:
    def wait(run: MailRun) -> None:
        raise Retry("not yet", after_s=20)

    DESK.before = wait
    once.call(world.clients, "ada", Note("0"))
    world.deliver_due()
    ndb.delete_multi(LaneTask.query().fetch(keys_only=True))
    world.settle()
    assert LaneState.query().fetch() == []

    DESK.before = lambda run: None
    assert once.call(world.clients, "ada", Note("1"))
    world.settle()
    assert DESK.texts() == [("1",)]


def test_a_call_costs_a_write_and_its_deletion_and_a_window_two(world: World) -> None:
    for number in (1, 20):
        before = world.clients.meter.cost()
        for text in range(number):
            sync.call(world.clients, "ada", Note(str(text)))
        world.settle()
        cost = world.clients.meter.cost() - before
        assert cost.writes == 2 * number + 2
        assert cost.tasks == 1
