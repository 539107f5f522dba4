"""Throttled and unique calls: how often a key runs, and what a call during a run causes."""

from __future__ import annotations

import pytest

from rollforward.datastore import transact
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.runtime.process.current import use_clients
from rollforward.tasks.errors import Retry
from tests.infra.world import World
from tests.rollforward.lanes.gathered.mailroom import (
    DESK,
    EVERY_S,
    SWEEP,
    MailRun,
    Note,
    once,
    reindex,
    sync,
)


def test_a_throttled_key_runs_at_once_and_then_with_all_calls_since(world: World) -> None:
    began_s = world.clock.time_s
    for text in ("0", "1", "2", "3"):
        assert reindex.call(world.clients, "ada", Note(text))
        world.deliver_due()
        world.clock.sleep(10)
    world.settle()
    assert DESK.texts() == [("0",), ("1", "2", "3")]
    assert DESK.done[0].at_s == pytest.approx(began_s, abs=1)
    assert DESK.done[1].at_s == pytest.approx(began_s + EVERY_S, abs=1)
    assert LaneTask.query().fetch() == []


def test_a_throttled_key_runs_at_once_again_after_a_rest(world: World) -> None:
    for text in ("0", "1"):
        reindex.call(world.clients, "ada", Note(text))
        world.deliver_due()
        world.clock.sleep(EVERY_S + 1)
    assert DESK.texts() == [("0",), ("1",)]


def test_calls_that_wait_for_their_time_cost_no_hint_each(world: World) -> None:
    reindex.call(world.clients, "ada", Note("0"))
    world.deliver_due()
    for number in range(20):
        reindex.call(world.clients, "ada", Note(str(number)))
        world.deliver_due()
    assert len(world.live_tasks("default")) == 1


def test_a_throttled_key_keeps_nothing_after_some_days(world: World) -> None:
    reindex.call(world.clients, "ada", Note("0"))
    world.settle()
    assert len(LaneState.query().fetch()) == 1
    world.clock.sleep(3 * 24 * 3600)
    world.registry.patterns["lanes"].delete_expired(world.clients)
    assert LaneState.query().fetch() == []


def test_the_sweep_leaves_a_throttled_key_alone_until_its_time(world: World) -> None:
    for text in ("0", "1"):
        reindex.call(world.clients, "ada", Note(text))
        world.deliver_due()
    world.engine.purge_queue(world.engine.place.queue_name("default"))
    world.clock.sleep(40)
    world.sweep(SWEEP)
    assert world.live_tasks("default") == []
    world.clock.sleep(EVERY_S)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.texts() == [("0",), ("1",)]


def test_calls_join_the_run_that_is_queued(world: World) -> None:
    for text in ("0", "1", "2"):
        assert sync.call(world.clients, "ada", Note(text))
        assert once.call(world.clients, "bob", Note(text))
    world.settle()
    assert DESK.texts("ada") == DESK.texts("bob") == [("0", "1", "2")]
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_calls_during_a_run_cause_one_more(world: World) -> None:
    def call_twice(run: MailRun) -> None:
        if len(DESK.begun) == 1:
            assert [sync.call("ada", Note(text)) for text in ("1", "2")] == [True, True]

    DESK.before = call_twice
    sync.call(world.clients, "ada", Note("0"))
    world.settle()
    assert DESK.texts() == [("0",), ("1", "2")]


def test_a_call_during_a_run_is_dropped_and_the_caller_is_told(world: World) -> None:
    answers: list[bool] = []

    def call_in_both_ways(run: MailRun) -> None:
        answers.append(once.call("ada", Note("alone")))
        answers.append(transact(lambda: once.call("ada", Note("in a transaction"))))
        answers.append(once.call("bob", Note("another key")))

    DESK.before = lambda run: call_in_both_ways(run) if run.person == "ada" else None
    assert once.call(world.clients, "ada", Note("0"))
    world.settle()
    assert answers == [False, False, True]
    assert DESK.texts() == [("0",)]
    assert DESK.texts("bob") == [("another key",)]
    assert once.call(world.clients, "ada", Note("after it"))
    world.settle()
    assert DESK.texts() == [("0",), ("after it",)]


def test_a_run_that_waits_is_no_error_in_the_log_and_one_that_fails_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever reads the log is to see failures alone."""
    errors = iter([Retry("not yet", after_s=1), ValueError("broken")])

    def fail(run: object) -> None:
        if (error := next(errors, None)) is not None:
            raise error

    world.fails_fast, DESK.before = False, fail
    sync.call(world.clients, "ada", Note("0"))
    world.settle()
    assert DESK.texts() == [("0",)]
    failures = [record.exc_text for record in caplog.records if record.exc_info]
    assert [text.splitlines()[-1] for text in failures if text] == ["ValueError: broken"]


def test_a_run_that_waits_for_its_retry_is_at_work(world: World) -> None:
    def wait_once(run: MailRun) -> None:
        if len(DESK.begun) == 1:
            raise Retry("not yet", after_s=50)

    DESK.before = wait_once
    once.call(world.clients, "ada", Note("0"))
    world.deliver_due()
    assert not once.call(world.clients, "ada", Note("1"))
    world.settle()
    assert DESK.texts() == [("0",)]


def test_a_call_that_meets_the_begin_of_a_run_is_in_one_run_or_dropped(world: World) -> None:
    """The call reads the state of its key in its transaction, so it knows of the run."""
    if world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the delivery would wait for the call, which waits for it")
    once.call(world.clients, "ada", Note("0"))
    answers: list[bool] = []

    def body() -> None:
        answers.append(once.call("ada", Note("1")))
        if len(answers) == 1:
            world.deliver_due()

    with use_clients(world.clients):
        transact(body)
    world.settle()
    # Its first attempt lost the race against the claim, or against the end of the run.
    assert len(answers) == 2
    assert [text for texts in DESK.texts() for text in texts] == ["0"] + ["1"] * answers[-1]
