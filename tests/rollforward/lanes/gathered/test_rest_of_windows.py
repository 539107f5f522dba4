"""Windows of more calls than a run takes, a clock that was ahead, and a run that froze before."""

from __future__ import annotations

import itertools
import time
from unittest import mock

import pytest
from google.cloud import ndb

from rollforward.lanes import Gathered
from rollforward.lanes.gathered import claiming
from rollforward.lanes.rows.entities import LaneState, resting_states, state_key
from rollforward.tasks.errors import MAX_DELAY_S, Retry
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.lanes.gathered.mailroom import (
    DESK,
    EVERY_S,
    SWEEP,
    Note,
    digest,
    once,
    reindex,
    sync,
)


def call(world: World, text: str) -> None:
    reindex.call(world.clients, "ada", Note(text))


def test_a_throttle_rests_although_more_calls_come_than_a_run_takes(world: World) -> None:
    """R5: the rest of a window ends where the window ended."""
    for text in "0123456":
        call(world, text)

    def call_four_times(run: object) -> None:
        if len(DESK.begun) <= 6:
            for text in "abcd":
                call(world, text)

    DESK.before = call_four_times
    with mock.patch.object(claiming, "MAX_CALLS", 3):
        world.settle()
    times = [run.at_s for run in DESK.done]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 50
    assert sum(len(run.texts) for run in DESK.done) == 7 + 4 * 6


def test_a_clock_that_was_ahead_does_not_hold_up_a_throttled_key(world: World) -> None:
    """The run that it has noted is of the future."""
    world.clock.sleep(3600)
    call(world, "0")
    world.settle()
    world.clock.sleep(EVERY_S)
    state: LaneState = state_key("test-reindex|ada").get()
    ahead_ms = round((world.clock.time_s + 3600) * 1000)
    state.gathered = {**state.gathered, "began_ms": ahead_ms}
    state.put()
    call(world, "1")
    world.deliver_due()
    assert DESK.texts() == [("0",), ("1",)]


@pytest.mark.parametrize("lane", [digest, sync, once], ids=lambda lane: lane.name)
def test_keys_that_have_run_leave_the_store_as_it_was(world: World, lane: Gathered[Note]) -> None:
    """K10: so however many there were, nothing costs more than without them."""
    before = set(ndb.Query().fetch(keys_only=True))
    for number in range(20):
        for text in "ab":
            lane.call(world.clients, f"key-{number}", Note(text))
    world.settle()
    assert sum(len(run.texts) for run in DESK.done) == 40
    assert set(ndb.Query().fetch(keys_only=True)) == before


@one_emulator
def test_a_run_may_wait_for_as_long_as_a_task_can_ask(world: World) -> None:
    """R10: thirty days, which is longer than a mark in memcached can stay."""

    def wait_once(run: object) -> None:
        if len(DESK.begun) == 1:
            raise Retry("not yet", after_s=MAX_DELAY_S)

    DESK.before = wait_once
    call(world, "0")
    world.settle()
    call(world, "1")
    world.settle()
    assert len(DESK.begun) == 1
    world.clock.sleep(MAX_DELAY_S + 60)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.texts() == [("0",), ("1",)]


def test_a_run_that_froze_behind_its_claim_does_not_begin(world: World) -> None:
    """Another delivery may have taken the claim away; this one asks before it runs."""
    take = claiming.take

    def frozen(*args: object, **options: object) -> object:
        claimed = take(*args, **options)  # type: ignore[arg-type]
        state: LaneState = state_key("test-reindex|ada").get()
        state.set_claims([])
        state.put()
        return mock.Mock(wraps=claimed, **{**vars(claimed), "asked_s": time.monotonic() - 20})

    call(world, "0")
    with mock.patch("rollforward.lanes.gathered.running.take", frozen):
        world.deliver(world.engine.due()[0].task_name)
    assert DESK.begun == []


def test_a_window_at_work_is_not_listed_as_resting(world: World) -> None:
    """It would hide keys that are paused."""
    seen: list[int] = []

    def look(run: object) -> None:
        seen.append(len(resting_states("test-reindex").fetch()))

    DESK.before = look
    call(world, "0")
    world.settle()
    assert seen == [0]
    reindex.key("ada").pause(world.clients)
    assert len(resting_states("test-reindex").fetch()) == 1
