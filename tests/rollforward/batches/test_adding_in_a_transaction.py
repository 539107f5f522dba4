"""Several additions to batches in one transaction: each of them counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.batches import ClosedError
from rollforward.batches.errors import BadWorkError, DifferentWorkError
from rollforward.datastore.transactions import transact
from rollforward.tasks import Task
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    BEST,
    NOTES,
    RAN,
    deliver_all,
    deliver_next,
    notes,
    rows_of,
    told,
)
from tests.rollforward.datastore.counters import no_pause


def add_twice(world: World) -> list[int]:
    add = NOTES.populate_in_transaction
    return [
        add(world.clients, "b", notes("a", "b", "c")),
        add(world.clients, "b", notes("d", "e"), idempotency_key="more", seal=True),
    ]


def test_two_additions_in_one_transaction_both_count(world: World) -> None:
    """F2: the batch waits for the members of both."""
    with world.context():
        assert transact(lambda: add_twice(world)) == [3, 2]
        assert NOTES.progress("b").members == 5
    deliver_all(world, "default")
    for _ in range(2):
        deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    with world.context():
        progress = NOTES.progress("b")
        assert (progress.done, progress.waiting, progress.is_complete) == (2, 3, False)
        assert not told(NOTES, "b")
    world.settle()
    with world.context():
        assert told(NOTES, "b")[0]["done"] == 5
    assert {f"b/{label}": 1 for label in "abcde"} == RAN


@pytest.mark.parametrize("fails", [False, True], ids=["whole", "failing"])
def test_a_body_that_runs_again_adds_all_members_of_an_iterator(
    world: World, *, fails: bool
) -> None:
    """F4: it gives them once, and a sealed batch without members would be complete."""

    def members() -> Iterator[tuple[Task[Any], Any]]:
        yield from notes("a", "b")
        if fails:
            raise rpc_errors.ServiceUnavailable("of a query")  # type: ignore[no-untyped-call]

    iterator, attempts = members(), list[int]()

    def body() -> int:
        attempts.append(1)
        count = NOTES.populate_in_transaction(world.clients, "b", iterator, seal=True)
        if len(attempts) == 1:
            raise rpc_errors.Aborted("a race was lost")  # type: ignore[no-untyped-call]
        return count

    with world.context():
        if fails:
            with pytest.raises(BadWorkError, match="members must be a list"):
                transact(body, sleep=no_pause)
            assert not any(rows_of("notes").values())
        else:
            assert transact(body, sleep=no_pause) == NOTES.progress("b").members == 2


def test_a_body_that_runs_again_adds_once(world: World) -> None:
    """F4: an attempt that lost its race leaves nothing behind for the next one to find."""
    attempts = list[list[int]]()

    def body() -> None:
        attempts.append(add_twice(world))
        if len(attempts) < 3:
            raise rpc_errors.Aborted("made by the test")

    with world.context():
        transact(body)
        assert NOTES.progress("b").members == 5
    assert attempts == [[3, 2]] * 3


def test_the_same_addition_in_one_transaction_adds_nothing(world: World) -> None:
    """F4: other members under its key are refused, and those of a batch that it has sealed."""

    def body() -> None:
        add = NOTES.populate_in_transaction
        assert add(world.clients, "b", notes("a")) == 1
        assert add(world.clients, "b", notes("a")) == 0
        with pytest.raises(DifferentWorkError):
            add(world.clients, "b", notes("b"))
        assert add(world.clients, "b", notes("a"), seal=True) == 0
        with pytest.raises(ClosedError):
            add(world.clients, "b", notes("b"), idempotency_key="more")

    with world.context():
        transact(body)
    world.settle()

    assert RAN == {"b/a": 1}
    with world.context():
        assert told(NOTES, "b")[0]["done"] == 1


def test_two_batches_of_one_transaction_stay_apart(world: World) -> None:
    """F2: also if they have the same id and the same members."""

    def body() -> None:
        NOTES.populate_in_transaction(world.clients, "b", notes("a", "b"), seal=True)
        BEST.populate_in_transaction(world.clients, "b", notes("a"))
        NOTES.populate_in_transaction(world.clients, "c", [], seal=True)

    with world.context():
        transact(body)
        assert [NOTES.progress("b").members, BEST.progress("b").members] == [2, 1]
    world.settle()

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 2
        assert told(NOTES, "c")[0]["members"] == 0
        assert not told(BEST, "b")
        assert rows_of("best:b")["BatchPage"] == 1


def test_a_task_beside_an_addition_that_is_found_done_runs_once(world: World) -> None:
    """B6: the addition enqueues nothing when the body runs again after its commit."""
    sent: list[str] = []
    plain = Task("/tasks/tests/beside-a-batch", "default", str, lambda _, text: sent.append(text))
    world = World(world.services, batches=[NOTES], tasks=[plain])

    def body() -> None:
        NOTES.populate_in_transaction(world.clients, "b", notes("a"), seal=True)
        outbox.enqueue(world.clients, plain, "placed")

    with world.context():
        world.plan.break_next("Commit", "reply-lost", 1)
        transact(body, sleep=no_pause)
    world.settle()
    assert sent == ["placed"]
    assert RAN == {"b/a": 1}
