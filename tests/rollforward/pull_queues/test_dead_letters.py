"""Dead letters: what nobody can do is out of the way, until somebody replays it."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.pull_queues import OLDEST, PullQueue
from rollforward.pull_queues.entities import PullItem
from rollforward.pull_queues.items import ItemId
from rollforward.pull_queues.listing import letters_of
from rollforward.pull_queues.pattern import PullQueues
from rollforward.tasks.runs import LetterQuery, TimeRange
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, add, lease, put_items, waiting


def test_an_item_that_nobody_can_do_becomes_a_dead_letter(world: World) -> None:
    """After `max_deliveries` leases it is out of the others' way, and can be replayed."""
    add(world, "poison")
    for _ in range(3):
        assert len(lease(world, lease_s=1)) == 1
        world.clock.sleep(2)

    assert lease(world) == []
    [dead] = WORK.dead_letters()
    assert (dead.payload, dead.deliveries) == ("poison", 3)

    assert WORK.replay(world.clients, dead.id)
    assert not WORK.replay(world.clients, dead.id)
    assert WORK.dead_letters() == []
    assert lease(world)[0].deliveries == 1


@pytest.mark.parametrize("used_up", [1, 45])
@pytest.mark.parametrize("tag", [None, OLDEST])
def test_what_nobody_can_do_hides_nothing(world: World, used_up: int, tag: Any) -> None:
    """P3: items whose deliveries are used up stand before those that can be leased."""
    one = PullQueue("one", max_deliveries=1, partitions=1)
    for _ in range(used_up):
        one.add(world.clients, "poison", tag="bad")
    assert len(one.lease(world.clients, limit=100, lease_s=1)) == used_up
    world.clock.sleep(2)
    for number in range(5):
        one.add(world.clients, f"good {number}")
    world.clock.sleep(1)

    leases = [one.lease(world.clients, tag=tag) for _ in range(6)]

    assert [len(leased) for leased in leases] == [1, 1, 1, 1, 1, 0]
    assert len({leased.id for some in leases for leased in some}) == 5
    assert len(one.dead_letters()) == used_up


@pytest.mark.parametrize("tag", [None, "t", OLDEST])
def test_a_worker_gets_no_more_than_its_limit_behind_dead_letters(world: World, tag: Any) -> None:
    """P3: an earlier partition has given it some, whichever comes first."""
    for round_ in range(10):
        queue = PullQueue(f"limited-{round_}", max_deliveries=1, partitions=2)
        put_items(world, queue, 0, used_up=0, good=1)
        put_items(world, queue, 1, used_up=6, good=7)

        leases = [queue.lease(world.clients, limit=4, tag=tag) for _ in range(3)]

        assert [len(leased) for leased in leases] == [4, 4, 0]
        assert len({leased.id for some in leases for leased in some}) == 8
        assert len(queue.dead_letters()) == 6


def test_dead_letters_are_passed_by_many_at_a_time(world: World) -> None:
    """P3: a lease of one item behind forty of them is two commits, not forty-one."""
    queue = PullQueue("one", max_deliveries=1, partitions=1)
    put_items(world, queue, 0, used_up=40, good=1)
    world.plan.reset()
    with world.plan.watched():
        leases = queue.lease(world.clients)

    assert len(leases) == 1
    assert world.plan.calls.count("Commit") == 2


@pytest.mark.parametrize("is_acked", [False, True])
def test_a_replay_whose_reply_was_lost_says_that_it_took_effect(
    world: World, is_acked: bool
) -> None:
    """Also when a worker was done with the item before the body ran again."""
    add(world, "a")
    for _ in range(4):
        lease(world, lease_s=1)
        world.clock.sleep(2)
    [dead] = WORK.dead_letters()

    def work() -> None:
        with world.clients.context():
            assert WORK.ack(world.clients, lease(world)) == []

    world.plan.reset("reply-lost", next_call="Commit", more={3: "overlap"})
    world.plan.on_fire = lambda: in_threads(*[work] * is_acked)
    with world.plan.watched():
        assert WORK.replay(world.clients, dead.id)

    assert "then overlap" in world.plan.fired
    assert waiting() == (0 if is_acked else 1)
    assert not WORK.replay(world.clients, dead.id)


def test_a_discard_whose_reply_was_lost_says_that_it_took_effect(world: World) -> None:
    """And a second one that there was nothing more to discard; the letter beside it stays."""
    add(world, "a", "b")
    for _ in range(4):
        lease(world, lease_s=1)
        world.clock.sleep(2)
    dead, beside = WORK.dead_letters()

    world.plan.reset("reply-lost", next_call="Commit")
    with world.plan.watched():
        assert WORK.discard(world.clients, dead.id)

    assert world.plan.fired
    assert not WORK.discard(world.clients, dead.id)
    assert WORK.dead_letters() == [beside]


@pytest.mark.parametrize("act", [WORK.replay, WORK.discard])
def test_nothing_took_effect_on_a_letter_that_never_was(world: World, act: Any) -> None:
    """Also if the reply to its commit was lost: what is not there was not there before."""
    add(world, "waits")
    [living] = PullItem.query(PullItem.ready >= "work|", PullItem.ready < "work}").fetch()
    for id_ in ("none", living.key.id().partition("|")[2]):
        world.plan.reset("reply-lost", next_call="Commit")
        with world.plan.watched():
            assert not act(world.clients, ItemId(id_))
        assert world.plan.fired

    assert waiting() == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_letters_that_died_in_one_commit_are_on_one_page_after_the_other(
    world: World, limit: int
) -> None:
    """By their ids, and behind those that died before."""
    queue = PullQueue("one", max_deliveries=1, partitions=1)
    for count in (1, 3):
        for number in range(count):
            queue.add(world.clients, f"{count}-{number}")
        queue.lease(world.clients, limit=count, lease_s=1)
        world.clock.sleep(2)
        assert queue.lease(world.clients) == []
    pages, cursor = list[list[str]](), ""
    while not pages or (cursor and len(pages) < 5):
        page = letters_of(queue, LetterQuery(cursor=cursor, limit=limit))
        pages.append([letter.id for letter in page.letters])
        cursor = page.next_cursor

    ids = [letter.id for letter in queue.dead_letters()]
    assert pages == [ids[start : start + limit] for start in range(0, 4, limit)]


def test_dead_letters_go_after_a_month(world: World) -> None:
    add(world, "poison")
    for _ in range(4):
        lease(world, lease_s=1)
        world.clock.sleep(2)
    assert PullQueues().sweep(world.clients, [WORK]) == {"dead_letters_deleted": 0}
    world.clock.sleep(31 * 24 * 3600)

    assert PullQueues().sweep(world.clients, [WORK]) == {"dead_letters_deleted": 1}
    assert WORK.dead_letters() == []


def test_a_dead_letter_that_is_replayed_as_it_is_to_go_stays(world: World) -> None:
    """P1: the sweep found it old enough; since then it waits again: deleting it would lose it."""
    add(world, "a")
    for _ in range(4):
        lease(world, lease_s=1)
        world.clock.sleep(2)
    [dead] = WORK.dead_letters()
    world.clock.sleep(31 * 24 * 3600)
    world.plan.reset("overlap", next_call="BeginTransaction")
    world.plan.on_fire = lambda: WORK.replay(world.clients, dead.id)

    with world.plan.watched():
        swept = PullQueues().sweep(world.clients, [WORK])

    assert world.plan.fired
    assert swept == {"dead_letters_deleted": 0}
    assert waiting() == 1


def test_letters_since_a_time_are_those_that_died_at_it_or_later(world: World) -> None:
    """An operator's list of an hour begins with its first letter."""
    one = PullQueue("since", max_deliveries=1, partitions=1)
    for payload in ("before", "at", "after"):
        one.add(world.clients, payload)
        one.lease(world.clients, lease_s=1)
        world.clock.sleep(2)
        assert one.lease(world.clients) == []
    _, at, after = letters_of(one, LetterQuery(limit=9)).letters

    listed = letters_of(one, LetterQuery(limit=9, died=TimeRange(since=at.died)))
    assert [letter.id for letter in listed.letters] == [at.id, after.id]
