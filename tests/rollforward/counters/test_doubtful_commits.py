"""Commits whose outcome is doubtful, and answers of the service that come late."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.counters import Counted, exact
from rollforward.counters import commits as counter_commits
from rollforward.counters.entities import due_text
from rollforward.counters.increments import increment_request
from rollforward.counters.shard_maps import ShardMaps
from rollforward.runtime import naive_utc
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.rollforward.counters.counts import (
    LIKES,
    ONE_ROUND_TRIP,
    VOTES,
    WAYS,
    add,
    total,
)

pytestmark = [WAYS, pytest.mark.fast]


def test_a_receipt_that_is_read_late_proves_all_of_its_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: the increment beside it has no key, and was not to be counted for good."""
    add(world, "a", idempotency_key="r0")
    lookup, unanswered = exact._Group.lookup, [rpc_errors.ServiceUnavailable("made by a test")]

    def look_up_late(group: Any) -> None:
        if unanswered:
            raise unanswered.pop()
        lookup(group)

    monkeypatch.setattr(exact._Group, "lookup", look_up_late)
    requests = [increment_request({"a": 2}, None), increment_request({"a": 4}, "r1")]
    with world.clients.context(), world.plan.watched():
        commit = LIKES._group_commit(world.clients)._commit
        world.plan.reset(REPLY_LOST, next_call="Commit")
        answers = commit(requests)

    assert world.plan.fired
    assert not unanswered
    assert [type(answer) for answer in answers] == [Counted, Counted]
    assert [answer.is_duplicate for answer in answers] == [False, False]
    assert total(world, "a") == 7


def test_a_counter_that_is_due_is_woken_once(world: World) -> None:
    """E2: whoever counts next need not do it again; the sweep does if the task is lost."""
    add(world, "a", counter=VOTES, idempotency_key="r0")
    with world.context():
        [shard_map] = (
            ShardMaps.of(world.clients, VOTES._settings).get(world.clients, ["a"]).values()
        )
    now_utc = naive_utc(world.clients.clock.now())
    shard_map.due = due_text(VOTES.name, now_utc - datetime.timedelta(seconds=1))

    with world.plan.watched():
        world.plan.reset()
        for number in range(1, 4):
            add(world, "a", counter=VOTES, idempotency_key=f"r{number}")

    assert world.plan.calls.count("CreateTask") == 1
    assert total(world, "a", VOTES) == 4


def test_a_counter_has_a_task_for_each_of_its_times(world: World) -> None:
    """E2: that of an earlier one may have come too early, and found that it was moved on."""
    add(world, "a", counter=VOTES)
    with world.context():
        [shard_map] = (
            ShardMaps.of(world.clients, VOTES._settings).get(world.clients, ["a"]).values()
        )
    now_utc = naive_utc(world.clients.clock.now())
    for seconds in (0, 0, 1):  # The second process that finds it due creates none.
        shard_map.due = due_text(VOTES.name, now_utc + datetime.timedelta(seconds=seconds))
        VOTES._wake(world.clients, shard_map)

    assert len(world.live_tasks(VOTES.settle_task.queue)) == 2


def test_a_probe_without_an_answer_is_made_again(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: the increment that asked reads its shard, those after it do what the service can."""
    probe, unanswered = counter_commits.supports_increments, [rpc_errors.ServiceUnavailable("late")]

    def probe_late(*args: Any) -> bool:
        if unanswered:
            raise unanswered.pop()
        return probe(*args)

    monkeypatch.setattr(counter_commits, "supports_increments", probe_late)
    for number in range(2):
        add(world, "a", idempotency_key=f"r{number}")
    with world.plan.watched():
        world.plan.reset()
        add(world, "a", idempotency_key="r2")

    assert not unanswered
    assert world.plan.calls == (["Commit"] if way == ONE_ROUND_TRIP else ["Lookup", "Commit"])
    assert total(world, "a") == 3
