"""Acks: of all leases of an item one is told that it acked it, whatever goes wrong."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.pull_queues import Lease, leasing
from rollforward.pull_queues.entities import PullReceipt
from rollforward.pull_queues.pattern import PullQueues
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, Ahead, add, lease, payloads, waiting


def test_a_late_workers_ack_fails(here: World) -> None:
    """The fence: another worker has the item since, and only that one can ack, renew, release."""
    add(here, "a")
    [late] = lease(here, lease_s=30)
    here.clock.sleep(31)
    [new] = lease(here, lease_s=30)

    assert WORK.ack(here.clients, [late]) == [late]
    assert WORK.renew(here.clients, [late]) == []
    WORK.release(here.clients, [late])

    assert lease(here) == []
    assert WORK.ack(here.clients, [new]) == []
    assert WORK.ack(here.clients, [late]) == [late]


def test_one_lost_lease_does_not_keep_the_others_from_their_ack(here: World) -> None:
    add(here, "a", "b", "c")
    leases = lease(here, lease_s=30)
    here.clock.sleep(31)
    [taken] = lease(here, 1)

    lost = WORK.ack(here.clients, leases)

    assert [each.id for each in lost] == [taken.id]
    assert waiting() == 1


def test_a_worker_that_was_late_acks_what_nobody_else_took(here: World) -> None:
    add(here, "a")
    leases = lease(here, lease_s=30)
    here.clock.sleep(60)

    assert WORK.ack(here.clients, leases) == []
    assert lease(here) == []


def test_acking_twice_is_no_error_while_the_lease_lasts(here: World) -> None:
    add(here, "a")
    leases = lease(here)

    assert WORK.ack(here.clients, leases) == WORK.ack(here.clients, leases) == []


def test_an_error_that_stays_is_raised(here: World) -> None:
    """Nothing is acked, and nobody is told that it was."""
    add(here, "a")
    leases = lease(here)
    here.plan.reset(more=dict.fromkeys(range(20), "error:UNAVAILABLE"))
    with here.plan.watched(), pytest.raises(rpc_errors.ServiceUnavailable):
        WORK.ack(here.clients, leases)

    here.plan.reset()
    assert WORK.ack(here.clients, leases) == []
    assert waiting() == 0


def test_a_worker_whose_clock_is_ahead_takes_the_ack_of_another(here: World) -> None:
    """P2: an item is leased by two, and acked by the one who leased it last: only one is told."""
    ahead = replace(here.clients, clock=Ahead(here.clock, datetime.timedelta(minutes=2)))
    add(here, "a")
    mine = lease(here, lease_s=60)
    others = WORK.lease(ahead, lease_s=60)
    assert payloads(mine) == payloads(others) == ["a"]

    assert WORK.ack(ahead, others) == []
    assert WORK.ack(here.clients, mine) == mine


def test_an_item_that_was_released_and_done_by_another_is_lost(here: World) -> None:
    """P2: the answer to the release was lost, so the first worker goes on with its lease."""
    add(here, "a")
    first = lease(here, lease_s=60)
    WORK.release(here.clients, first)
    second = lease(here, lease_s=60)

    assert WORK.ack(here.clients, second) == []
    assert WORK.ack(here.clients, first) == first


def test_an_ack_in_doubt_that_outlives_its_lease_is_lost(here: World) -> None:
    """P2: the commit had no effect, and before it is tried again another worker leases and acks."""
    add(here, "a")
    mine = lease(here, lease_s=10)
    others: list[Lease] = []

    def overtake() -> None:
        here.clock.sleep(15)
        others.extend(lease(here, lease_s=60))
        assert WORK.ack(here.clients, others) == []

    here.plan.reset(more={0: "error:DEADLINE_EXCEEDED", 1: "overlap"})
    here.plan.on_fire = overtake
    with here.plan.watched():
        lost = WORK.ack(here.clients, mine)

    assert payloads(others) == ["a"]
    assert lost == mine


def test_an_ack_that_lands_while_its_worker_looks_is_known(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: its commit got no reply, and took effect after the worker's first look."""
    add(here, "a", "b")
    leases = lease(here)
    sound, under_way = leasing.commit_unchanged, list[dict[str, Any]]()

    def hang(client: object, **changes: Any) -> list[int]:
        monkeypatch.setattr(leasing, "commit_unchanged", sound)
        under_way.append(changes)
        raise rpc_errors.DeadlineExceeded("no reply")

    monkeypatch.setattr(leasing, "commit_unchanged", hang)
    here.plan.reset("overlap", 1)
    here.plan.on_fire = lambda: sound(here.clients.datastore, **under_way.pop())
    with here.plan.watched():
        assert WORK.ack(here.clients, leases) == []

    assert here.plan.calls[:2] == ["Lookup", "Lookup"]
    assert (under_way, waiting()) == ([], 0)


def test_an_ack_is_known_when_its_reply_was_lost_and_it_is_made_again(here: World) -> None:
    """Also after one of its leases was lost, and in another order; an hour later it is not."""
    add(here, "a", "b", "c")
    leases = lease(here, lease_s=30)
    here.clock.sleep(31)
    taken = lease(here, 1)
    lost = [each for each in leases if each.id == taken[0].id]
    here.plan.reset("reply-lost", next_call="Commit")
    with here.plan.watched():
        assert WORK.ack(here.clients, leases) == lost

    assert WORK.ack(here.clients, leases[::-1]) == lost
    assert WORK.ack(here.clients, taken) == []
    assert waiting() == 0
    here.clock.sleep(3599)
    PullQueues().delete_expired(here.clients)
    assert WORK.ack(here.clients, leases) == lost
    here.clock.sleep(2)
    PullQueues().delete_expired(here.clients)
    assert PullReceipt.query().fetch(keys_only=True) == []
    assert sorted(each.id for each in WORK.ack(here.clients, leases)) == sorted(
        each.id for each in leases
    )


def test_of_two_leases_of_an_item_the_newest_counts(here: World) -> None:
    """In whatever order they are acked: a commit names an item once."""
    for order in (slice(None), slice(None, None, -1)):
        add(here, "a")
        old = lease(here)
        new = WORK.renew(here.clients, old)

        assert WORK.ack(here.clients, [*old, *new][order]) == old
        assert waiting() == 0


def test_an_ack_that_loses_race_after_race_says_what_was_lost(here: World) -> None:
    """Of five leases four are taken over one by one, each before the next try: one is acked."""
    add(here, *"abcde")
    leases = lease(here, lease_s=30)
    here.clock.sleep(31)
    taken: list[Lease] = []

    def overtake() -> None:
        taken.extend(lease(here, 1, lease_s=600))
        if len(taken) < 4:
            here.plan.next_call = "Commit"

    here.plan.reset("overlap", next_call="Commit")
    here.plan.on_fire = overtake
    with here.plan.watched():
        lost = WORK.ack(here.clients, leases)

    assert len(taken) == 4
    assert sorted(each.id for each in lost) == sorted(each.id for each in taken)
    assert waiting() == 4
