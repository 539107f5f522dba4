"""Calls that change a batch: what they return when the reply of their commit is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollforward.batches.adding import populate
from rollforward.datastore.transactions import transact
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.rollforward.batches.harness import NOTES, notes


def losing_a_reply(world: World, act: Callable[[], Any]) -> Any:
    with world.clients.context():
        world.plan.reset(REPLY_LOST, next_call="Commit")
        with world.plan.watched():
            answer = act()
        assert world.plan.fired
        world.plan.reset()
    return answer


def test_a_batch_is_run_again_once(world: World) -> None:
    """F1: and its caller learns of how many members."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("bad1", "bad2"), seal=True)
    world.settle()

    assert losing_a_reply(world, lambda: NOTES.run_again(world.clients, "b")) == 2
    with world.context():
        assert NOTES.progress("b").generation == 2
        assert NOTES.run_again(world.clients, "b") == 0


def test_a_batch_is_cancelled_once(world: World) -> None:
    """F1: and its caller learns that it was running."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"), seal=True)

    assert losing_a_reply(world, lambda: NOTES.cancel(world.clients, "b"))
    with world.context():
        assert NOTES.progress("b").outcome == "cancelled"
        assert not NOTES.cancel(world.clients, "b")


@pytest.mark.parametrize("seal", [False, True])
def test_members_are_added_once(world: World, seal: bool) -> None:
    """F4: and their caller learns how many are new; the same call made again adds none."""

    def add() -> int:
        return NOTES.populate(world.clients, "b", notes("a", "b", "c"), seal=seal)

    assert losing_a_reply(world, add) == 3
    with world.context():
        assert NOTES.progress("b").members == 3
        assert add() == 0


def test_members_on_several_pages_are_added_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: their caller learns of all of them, when the commit that counts them has no reply."""
    store = populate._store

    def stored(*args: Any) -> None:
        with world.plan.unwatched():
            store(*args)

    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 2)
    monkeypatch.setattr(populate, "_store", stored)

    added = losing_a_reply(world, lambda: NOTES.populate(world.clients, "b", notes(*"abcde")))

    assert added == 5
    with world.context():
        assert NOTES.progress("b").members == 5


def test_members_of_two_additions_are_added_once(world: World) -> None:
    """F4: in one transaction, whose body runs again."""

    def body() -> list[int]:
        add = NOTES.populate_in_transaction
        return [
            add(world.clients, "b", notes("a", "b")),
            add(world.clients, "b", notes("c"), idempotency_key="more"),
            add(world.clients, "b", notes("c"), idempotency_key="more"),
        ]

    assert losing_a_reply(world, lambda: transact(body)) == [2, 1, 0]
    with world.context():
        assert NOTES.progress("b").members == 3
        assert transact(body) == [0, 0, 0]
