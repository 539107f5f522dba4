"""Acks: of all leases of an item one is told that it acked it, whatever goes wrong."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import transact
from rollforward.pull_queues import Lease, leasing
from rollforward.pull_queues.entities import PullReceipt
from rollforward.pull_queues.pattern import PullQueues
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, Ahead, add, lease, payloads, waiting


def test_a_late_workers_ack_fails(world: World) -> None:
    """The fence: another worker has the item since, and only that one can ack, renew, release."""
    add(world, "a")
    [late] = lease(world, lease_s=30)
    world.clock.sleep(31)
    [renewed] = lease(world, lease_s=30)

    assert WORK.ack(world.clients, [late]) == [late]
    assert WORK.renew(world.clients, [late]) == []
    WORK.release(world.clients, [late])

    assert lease(world) == []
    assert WORK.ack(world.clients, [renewed]) == []
    assert WORK.ack(world.clients, [late]) == [late]


def test_an_ack_in_a_transaction_is_refused_and_the_item_waits(world: World) -> None:
    """P2: it deleted the items at once, and a rollback of the work beside it lost them."""
    add(world, "a")
    leases = lease(world, lease_s=30)

    with pytest.raises(RuntimeError, match=r"ack of .* commits at once, .*: do it after"):
        transact(lambda: WORK.ack(world.clients, leases))

    assert waiting() == 1
    assert WORK.ack(world.clients, leases) == []


@pytest.mark.parametrize("gather", [list, iter], ids=["list", "iterator"])
def test_one_lost_lease_does_not_keep_the_others_from_their_ack(
    world: World, gather: Callable[[Sequence[Lease]], Any]
) -> None:
    add(world, "a", "b", "c")
    leases = lease(world, lease_s=30)
    world.clock.sleep(31)
    [stolen] = lease(world, 1)

    lost = WORK.ack(world.clients, gather(leases))

    assert [item.id for item in lost] == [stolen.id]
    assert waiting() == 1


def test_a_worker_that_was_late_acks_what_nobody_else_took(world: World) -> None:
    add(world, "a")
    leases = lease(world, lease_s=30)
    world.clock.sleep(60)

    assert WORK.ack(world.clients, leases) == []
    assert lease(world) == []


def test_acking_twice_is_no_error_while_the_lease_lasts(world: World) -> None:
    add(world, "a")
    leases = lease(world)

    assert WORK.ack(world.clients, leases) == WORK.ack(world.clients, leases) == []


def test_an_error_that_stays_is_raised(world: World) -> None:
    """Nothing is acked, and nobody is told that it was."""
    add(world, "a")
    leases = lease(world)
    world.plan.reset(more=dict.fromkeys(range(20), "error:UNAVAILABLE"))
    with world.plan.watched(), pytest.raises(rpc_errors.ServiceUnavailable):
        WORK.ack(world.clients, leases)

    world.plan.reset()
    assert WORK.ack(world.clients, leases) == []
    assert waiting() == 0


def test_an_ack_whose_commits_fail_is_tried_so_often_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads are answered meanwhile, so only the number of tries ends it."""
    add(world, "a")
    leases, tries = lease(world), list[object]()

    def fail(*args: object, **changes: object) -> None:
        tries.append(changes)
        raise rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]

    with monkeypatch.context() as failing:
        failing.setattr(leasing, "commit_if_current", fail)
        with pytest.raises(rpc_errors.ServiceUnavailable):
            WORK.ack(world.clients, leases)

    assert len(tries) == leasing.MAX_ATTEMPTS
    assert WORK.ack(world.clients, leases) == []


def test_a_worker_whose_clock_is_ahead_takes_the_ack_of_another(world: World) -> None:
    """P2: an item is leased by two, and acked by the one who leased it last: only one is told."""
    ahead = replace(world.clients, clock=Ahead(world.clock, datetime.timedelta(minutes=2)))
    add(world, "a")
    own = lease(world, lease_s=60)
    ahead_leases = WORK.lease(ahead, lease_s=60)
    assert payloads(own) == payloads(ahead_leases) == ["a"]

    assert WORK.ack(ahead, ahead_leases) == []
    assert WORK.ack(world.clients, own) == own


def test_an_item_that_was_released_and_done_by_another_is_lost(world: World) -> None:
    """P2: the answer to the release was lost, so the first worker goes on with its lease."""
    add(world, "a")
    released = lease(world, lease_s=60)
    WORK.release(world.clients, released)
    second = lease(world, lease_s=60)

    assert WORK.ack(world.clients, second) == []
    assert WORK.ack(world.clients, released) == released


def test_an_ack_in_doubt_that_outlives_its_lease_is_lost(world: World) -> None:
    """P2: the commit had no effect, and before it is tried again another worker leases and acks."""
    add(world, "a")
    own_leases = lease(world, lease_s=10)
    later_leases: list[Lease] = []

    def overtake() -> None:
        world.clock.sleep(15)
        later_leases.extend(lease(world, lease_s=60))
        assert WORK.ack(world.clients, later_leases) == []

    world.plan.reset(more={0: "error:DEADLINE_EXCEEDED", 1: "overlap"})
    world.plan.on_fire = overtake
    with world.plan.watched():
        lost = WORK.ack(world.clients, own_leases)

    assert payloads(later_leases) == ["a"]
    assert lost == own_leases


def test_an_ack_that_lands_while_its_worker_looks_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: its commit got no reply, and took effect after the worker's first look."""
    add(world, "a", "b")
    leases = lease(world)
    sound, under_way = leasing.commit_if_current, list[dict[str, Any]]()

    def hang(client: object, **changes: Any) -> list[int]:
        monkeypatch.setattr(leasing, "commit_if_current", sound)
        under_way.append(changes)
        raise rpc_errors.DeadlineExceeded("no reply")

    monkeypatch.setattr(leasing, "commit_if_current", hang)
    world.plan.reset("overlap", 1)
    world.plan.on_fire = lambda: sound(world.clients.datastore, **under_way.pop())
    with world.plan.watched():
        assert WORK.ack(world.clients, leases) == []

    assert world.plan.calls[:2] == ["Lookup", "Lookup"]
    assert (under_way, waiting()) == ([], 0)


def test_an_ack_is_known_when_its_reply_was_lost_and_it_is_made_again(world: World) -> None:
    """Also after one of its leases was lost, and in another order; an hour later it is not."""
    add(world, "a", "b", "c")
    leases = lease(world, lease_s=30)
    world.clock.sleep(31)
    stolen = lease(world, 1)
    lost = [item for item in leases if item.id == stolen[0].id]
    world.plan.reset("reply-lost", next_call="Commit")
    with world.plan.watched():
        assert WORK.ack(world.clients, leases) == lost

    assert WORK.ack(world.clients, leases[::-1]) == lost
    assert WORK.ack(world.clients, stolen) == []
    assert waiting() == 0
    world.clock.sleep(3599)
    PullQueues().delete_expired(world.clients)
    assert WORK.ack(world.clients, leases) == lost
    world.clock.sleep(2)
    PullQueues().delete_expired(world.clients)
    assert PullReceipt.query().fetch(keys_only=True) == []
    assert sorted(item.id for item in WORK.ack(world.clients, leases)) == sorted(
        item.id for item in leases
    )


def test_of_two_leases_of_an_item_the_newest_counts(world: World) -> None:
    """In whatever order they are acked: a commit names an item once."""
    for order in (slice(None), slice(None, None, -1)):
        add(world, "a")
        leased = lease(world)
        renewed = WORK.renew(world.clients, leased)

        assert WORK.ack(world.clients, [*leased, *renewed][order]) == leased
        assert waiting() == 0


def test_an_ack_that_loses_race_after_race_says_what_was_lost(world: World) -> None:
    """Of five leases four are taken over one by one, each before the next try: one is acked."""
    add(world, *"abcde")
    leases = lease(world, lease_s=30)
    world.clock.sleep(31)
    stolen: list[Lease] = []

    def overtake() -> None:
        stolen.extend(lease(world, 1, lease_s=600))
        if len(stolen) < 4:
            world.plan.next_call = "Commit"

    world.plan.reset("overlap", next_call="Commit")
    world.plan.on_fire = overtake
    with world.plan.watched():
        lost = WORK.ack(world.clients, leases)

    assert len(stolen) == 4
    assert sorted(item.id for item in lost) == sorted(item.id for item in stolen)
    assert waiting() == 4
