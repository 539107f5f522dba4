"""Debounced calls: one run a window, with all of its calls, and no later than the longest wait."""

from __future__ import annotations

import pytest

from rollforward.datastore import transact
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.runtime.process.current import use_clients
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject
from tests.infra.world import World
from tests.rollforward.lanes.gathered.mailroom import (
    DESK,
    MAX_S,
    SWEEP,
    WAIT_S,
    MailRun,
    Note,
    digest,
)


def call(world: World, *texts: object, every_s: float = 0, person: str = "ada") -> None:
    """Call for each text, and let time pass and tasks be delivered after each."""
    for text in texts:
        assert digest.call(world.clients, person, Note(str(text)))
        if every_s:
            world.clock.sleep(every_s)
            world.deliver_due()


def test_calls_run_together_when_their_key_was_quiet(world: World) -> None:
    began_s = world.clock.time_s
    call(world, 0, 1, 2, every_s=20)
    call(world, "other", person="bob")
    world.settle()
    assert DESK.texts() == [("0", "1", "2")]
    assert DESK.texts("bob") == [("other",)]
    assert DESK.done[0].at_s == pytest.approx(began_s + 40 + WAIT_S, abs=1)
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_the_longest_wait_holds_although_calls_keep_coming(world: World) -> None:
    began_s = world.clock.time_s
    call(world, *range(30), every_s=10)
    world.settle()
    assert [text for texts in DESK.texts() for text in texts] == [str(n) for n in range(30)]
    first, second = DESK.done[0], DESK.done[1]
    assert first.at_s == pytest.approx(began_s + MAX_S, abs=2)
    assert len(first.texts) in (10, 11)
    assert second.at_s == pytest.approx(first.at_s + MAX_S, abs=12)


def test_a_call_during_a_run_belongs_to_the_next_window(world: World) -> None:
    def call_once(run: MailRun) -> None:
        if len(DESK.begun) == 1:
            digest.call("ada", Note("during"))

    DESK.before = call_once
    call(world, 0)
    world.settle()
    assert DESK.texts() == [("0",), ("during",)]
    assert DESK.done[1].at_s - DESK.done[0].at_s == pytest.approx(WAIT_S, abs=1)


def test_a_run_that_fails_runs_again_with_the_same_calls(world: World) -> None:
    world.fails_fast = False

    def fail_twice(run: MailRun) -> None:
        if len(DESK.begun) <= 2:
            digest.call("ada", Note(f"during {len(DESK.begun)}"))
            raise ValueError("broken")

    DESK.before = fail_twice
    call(world, 0, 1)
    world.settle()
    assert DESK.texts() == [("0", "1"), ("during 1", "during 2")]
    assert [run.ids for run in DESK.begun[:3]] == [DESK.begun[0].ids] * 3
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_a_window_that_can_never_work_becomes_one_dead_task_and_can_be_replayed(
    world: World,
) -> None:
    def refuse(run: MailRun) -> None:
        raise Reject("no such address")

    DESK.before = refuse
    call(world, *range(5))
    world.settle()
    [dead] = open_dead_tasks().fetch()
    assert dead.reason == "Reject: no such address"
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []

    DESK.before = lambda run: None
    replay = world.registry.tasks["/tasks/dead/replay"]
    replay.enqueue(world.clients, replay.args(dead.key.id()))
    world.settle()
    assert DESK.texts() == [("0", "1", "2", "3", "4")]
    assert open_dead_tasks().fetch() == []


def test_errors_are_counted_until_the_window_is_given_up(world: World) -> None:
    world.fails_fast = False

    def fail(run: MailRun) -> None:
        raise ValueError("broken")

    DESK.before = fail
    call(world, 0, 1)
    world.settle()
    assert [run.texts for run in DESK.begun] == [("0", "1")] * 4
    [dead] = open_dead_tasks().fetch()
    assert "gave up after 4 failures" in dead.reason


def test_a_call_joins_the_commit_of_its_transaction(world: World) -> None:
    def body(*, fails: bool) -> None:
        for text in ("0", "1"):
            assert digest.call("ada", Note(text))
        if fails:
            raise ValueError("rolled back")

    with use_clients(world.clients):
        with pytest.raises(ValueError, match="rolled back"):
            transact(lambda: body(fails=True))
        assert LaneTask.query().fetch() == []
        transact(lambda: body(fails=False))
    world.settle()
    assert DESK.texts() == [("0", "1")]


def test_hints_that_are_lost_are_made_good_by_the_sweep(world: World) -> None:
    call(world, 0, 1)
    world.engine.purge_queue(world.engine.place.queue_name("default"))
    world.clock.sleep(WAIT_S + 61)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.texts() == [("0", "1")]
