"""The status of an item for its caller: its result, pending, or parked."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.fork_join import Depth, ForkJoin, ItemStatus
from rollforward.fork_join.entities import PackId, packs_with_tag, packs_with_tag_prefix, unfolded
from rollforward.fork_join.insert import insert_group
from rollforward.runtime import naive_utc
from rollforward.tasks.dead_task_entities import open_dead_tasks
from tests.infra.world import World
from tests.rollforward.fork_join.tally_queue import (
    GUARDED,
    TALLIES,
    Mark,
    batches,
    mended,
    put,
    replay,
    tallied,
)


def test_who_asked_gets_the_joins_result(world: World) -> None:
    """A result an item, kept for an hour; who did not ask costs no write."""
    asked, other = put(world, "t", "a", keep_result=True), put(world, "t", "b")
    with world.context():
        assert not TALLIES.outcome(asked[0]).is_folded
    world.settle()

    with world.context():
        assert TALLIES.outcome(asked[0]).result.startswith("a is number")
        assert TALLIES.outcome(other[0]).is_folded
        assert TALLIES.outcome(other[0]).result is None


def test_a_join_with_too_few_results_gets_its_items_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose the others are is not known."""
    monkeypatch.setattr(TALLIES, "join", lambda clients, batch, items: [items[0].label])
    accepted = put(world, "t", "a", "b", keep_result=True)
    world.settle()

    with world.context():
        assert [TALLIES.outcome(item).result for item in accepted] == ["a", "b"]


def test_a_join_with_too_many_results_has_its_items_parked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the numbers in their dead tasks."""
    monkeypatch.setattr(TALLIES, "join", lambda clients, batch, items: ["a", "b", "c"])
    put(world, "t", "a", "b", keep_result=True)
    world.settle()

    with world.context():
        reasons = [dead.reason for dead in open_dead_tasks().fetch()]
    assert len(reasons) == 2
    assert all("must return 1 results, got 3" in reason for reason in reasons)


@pytest.mark.parametrize("queue", [TALLIES, GUARDED], ids=["transaction", "guarded"])
def test_who_asked_gets_a_result_of_its_own_between_others_that_did_not(
    world: World, queue: ForkJoin[Mark]
) -> None:
    """For any order in which the packs of a batch are folded."""
    asked = {}
    for i in range(6):
        put(world, "t", f"other {i}", queue=queue)
        (asked[f"asked {i}"],) = put(world, "t", f"asked {i}", queue=queue, keep_result=True)
    world.settle()

    with world.context():
        assert batches("t") == [12]
        for label, accepted in asked.items():
            assert queue.outcome(accepted).result.startswith(f"{label} is number")


def test_waiting_for_a_result_ends(world: World) -> None:
    """A caller waits no longer than its timeout, and not for a known result."""
    (accepted,) = put(world, "t", "a", keep_result=True)
    before_s = world.clock.time_s
    with world.context():
        assert not TALLIES.wait(world.clients, accepted, timeout_s=0.5).is_folded
    assert 0.499 < world.clock.time_s - before_s < 0.55
    world.settle()
    before_s = world.clock.time_s
    with world.context():
        assert TALLIES.wait(world.clients, accepted, timeout_s=0.5).is_folded
    assert world.clock.time_s == before_s


def test_who_asked_is_told_that_an_item_was_parked(world: World) -> None:
    """It is not folded, and does not wait: the outcome says so."""
    bad, good = put(world, "t", "bad", "good", keep_result=True)
    with world.context():
        assert TALLIES.outcome(bad) == TALLIES.outcome(good)
    world.settle()

    with world.context():
        assert TALLIES.outcome(bad) == ItemStatus(is_folded=False, is_parked=True)
        before_s = world.clock.time_s
        assert TALLIES.wait(world.clients, bad, timeout_s=60).is_parked
        assert world.clock.time_s == before_s
        assert TALLIES.outcome(good).result == "good is number 1"


def test_each_of_a_pack_that_was_split_gets_its_own_result(world: World) -> None:
    """Three who asked share a pack, and one is poison: the last one's result is the last one's."""
    labels = ["good", "bad", "better"]
    with world.clients.context():
        asked = [TALLIES._codec.insertion("t", Mark(label), keep_result=True) for label in labels]
        accepted: list[Any] = insert_group(world.clients, TALLIES._joiners, asked)
    assert len({one.pack for one in accepted}) == 1
    world.settle()

    with world.context():
        good, bad, better = (TALLIES.outcome(one) for one in accepted)
    assert good.result.startswith("good is number")
    assert bad.is_parked
    assert better.result.startswith("better is number")


def test_the_depth_of_a_key_is_what_waits_and_what_is_parked(world: World) -> None:
    """D7: of this key alone; what is folded is in neither."""
    put(world, "t", "a", "bad", "b")
    (other,) = put(world, "u", "c")
    with world.context():
        assert TALLIES.depth("t") == Depth(waiting=3, parked=[])
        opened_s = (naive_utc(world.clients.clock.now()) - other.opened).total_seconds()
    assert opened_s == pytest.approx(0, abs=0.1)
    world.settle()

    with world.context():
        assert TALLIES.depth("t") == Depth(waiting=0, parked=[Mark("bad")])
        assert TALLIES.depth("u") == Depth(waiting=0, parked=[])


def tagged(world: World) -> list[tuple[str, str]]:
    """Return the packs of the tag: items, and the opening time of their batch."""
    with world.context():
        tagged = [(pack.items, pack.key.id()) for pack in packs_with_tag("tag").fetch()]
        assert [key.id() for key in packs_with_tag_prefix("ta").fetch(keys_only=True)] == [
            key for _, key in tagged
        ]
    return [(items, PackId.parse(key).epoch) for items, key in tagged]


def test_what_is_parked_is_found_under_its_tag_until_it_is_folded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: a reader of the tag sees it throughout: pending, parked, pending again."""

    def body() -> str:
        return TALLIES.insert_in_transaction(world.clients, "t", Mark("bad"), tag="tag")

    with world.clients.context():
        pack = transact(body)
    waiting = tagged(world)
    world.settle()
    assert tagged(world) == waiting
    with world.context():
        assert [row.key.id() for row in unfolded([pack])] == [PackId.parse(pack).parked.text]
    mended(monkeypatch)
    replay(world)
    world.deliver_due()
    assert len(tagged(world)) <= 1
    world.settle()

    assert tagged(world) == []
    with world.context():
        assert unfolded([pack]) == []
        assert tallied("t") == Counter({"good": 1})


def test_an_item_of_a_pack_that_was_split_keeps_its_tag(world: World) -> None:
    """D7: otherwise a reader would take parked items for folded."""

    def body() -> str:
        marks = [Mark("a"), Mark("bad"), Mark("b")]
        return TALLIES.insert_in_transaction(world.clients, "t", *marks, tag="tag")

    with world.clients.context():
        transact(body)
    world.settle()

    assert [json.loads(items) for items, _ in tagged(world)] == [[{"label": "bad"}]]
    with world.context():
        assert tallied("t") == Counter("ab")


def test_what_is_left_of_a_pack_is_found_when_it_was_split(world: World) -> None:
    """D7: by the key that its writer got: whole, in parts, parked."""

    def body() -> str:
        marks = [Mark("a"), Mark("bad"), Mark("b"), Mark("bad too")]
        return TALLIES.insert_in_transaction(world.clients, "t", *marks)

    with world.clients.context():
        pack = transact(body)
        assert [row.key.id() for row in unfolded([pack])] == [pack]
    world.settle()

    with world.context():
        items = [json.loads(row.items) for row in unfolded([pack])]
    assert sorted(items, key=str) == [[{"label": "bad too"}], [{"label": "bad"}]]
