"""In-memory fan-in: exact unless a process is killed, and then bounded."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.fork_join import Accumulator, BadItemError, fork_join
from rollforward.fork_join import insert as fork_join_insert
from rollforward.fork_join.accumulator import BufferFullError
from rollforward.testing.world import in_threads
from tests.infra.world import Services, World
from tests.rollforward.fork_join.searches.failing_commits import fail_first
from tests.rollforward.fork_join.tally_queue import Mark, packs, tallied, tally

MARKS = fork_join("tallies-in-memory", queue="fork-join", period_s=0)(tally)


def combine(one: Mark, other: Mark) -> Mark:
    """Fold two marks into one that names both."""
    return Mark("+".join(sorted([*one.label.split("+"), *other.label.split("+")])))


@pytest.fixture
def world(services: Services) -> World:
    return World(services, fork_joins=[MARKS])


@pytest.fixture
def fan_in() -> Accumulator[Mark]:
    """A fan-in that flushes when the test says so."""
    return Accumulator("tallies", MARKS, combine, flush_interval_s=3600)


def counted(key: str) -> Counter[str]:
    return Counter(label for mark in tallied(key).elements() for label in mark.split("+"))


def in_context(world: World, act: Callable[[], Any]) -> Any:
    with world.clients.context():
        return act()


def test_items_of_a_key_are_one_work_item(world: World, fan_in: Accumulator[Mark]) -> None:
    """A thousand additions from eight threads: one item, one task, one fold."""

    def add(thread: int) -> None:
        for i in range(125):
            fan_in.add(world.clients, "t", Mark(f"{thread}.{i}"))

    in_threads(*[lambda n=n: add(n) for n in range(8)])
    assert fan_in.waiting(world.clients) == 1
    in_context(world, lambda: fan_in.flush(world.clients))
    assert fan_in.waiting(world.clients) == 0
    world.settle()

    with world.context():
        assert len(tallied("t")) == 1
        assert counted("t") == Counter(f"{n}.{i}" for n in range(8) for i in range(125))


def test_what_was_taken_is_stored_within_the_window(world: World) -> None:
    """By a thread of its own, which ends when there is nothing left."""
    quick = Accumulator("quick", MARKS, combine, flush_interval_s=0.01)
    quick.add(world.clients, "t", Mark("a"))
    until(lambda: quick.waiting(world.clients) == 0)
    quick.add(world.clients, "t", Mark("b"))
    until(lambda: quick.waiting(world.clients) == 0)
    world.settle()

    with world.context():
        assert counted("t") == Counter("ab")


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_flush_that_fails_is_made_again_and_counts_once(
    world: World, fan_in: Accumulator[Mark], monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """D1: also when it was committed and its reply, and the look for it, were lost."""
    sound = fork_join_insert.insert_rows

    def lost(client: Any, entities: Any) -> None:
        if is_committed:
            with contextlib.suppress(rpc_errors.AlreadyExists):
                sound(client, entities)
        raise rpc_errors.ServiceUnavailable("made by a test")

    fan_in.add(world.clients, "t", Mark("a"))
    with monkeypatch.context() as patch:
        patch.setattr(fork_join_insert, "insert_rows", lost)
        patch.setattr(fork_join_insert._Group, "resolve", doubt)
        patch.setattr(fork_join_insert._Group, "lookup", nothing)
        in_context(world, lambda: fan_in.flush(world.clients))
    assert fan_in.waiting(world.clients) == 1
    fan_in.add(world.clients, "t", Mark("b"))
    in_context(world, lambda: fan_in.flush(world.clients))
    assert fan_in.waiting(world.clients) == 0
    world.settle()

    with world.context():
        assert counted("t") == Counter("ab")
        assert packs() == []


def away(*args: Any) -> None:
    raise rpc_errors.ServiceUnavailable("made by a test")


def test_a_flush_that_failed_is_made_again_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another item or flush the next window stores it."""
    error = rpc_errors.ServiceUnavailable("made by a test")
    coming = fail_first(monkeypatch, *[error] * fork_join_insert.MAX_ATTEMPTS)
    quick = Accumulator("quick", MARKS, combine, flush_interval_s=0.01)
    quick.add(world.clients, "t", Mark("a"))
    until(lambda: quick.waiting(world.clients) == 0)
    world.settle()

    assert coming == []
    with world.context():
        assert counted("t") == Counter("a")


def nothing(group: Any) -> None:
    """Find nothing out, as when the service is away."""


def doubt(group: Any, attempt: Any, error: Exception) -> None:
    """Leave it in doubt, as when the service is away."""
    group.guarded_in_doubt.append(attempt)


def test_a_process_that_is_told_to_end_stores_everything(
    world: World, fan_in: Accumulator[Mark]
) -> None:
    """SIGTERM flushes, also items that come during it."""
    fan_in.add(world.clients, "t", Mark("a"))
    world.clients.process_state.shutdown()
    assert fan_in.waiting(world.clients) == 0
    fan_in.add(world.clients, "t", Mark("b"))
    until(lambda: fan_in.waiting(world.clients) == 0)
    world.settle()

    with world.context():
        assert counted("t") == Counter("ab")


def test_one_that_the_queue_would_not_take_is_refused_alone(
    world: World, fan_in: Accumulator[Mark]
) -> None:
    """Accepted items can be stored: no bad one gets into their flush."""
    fan_in.add(world.clients, "t", Mark("a"))
    for key, mark in (("", Mark("b")), ("k" * 2_000, Mark("b")), ("t", Mark("\ud800"))):
        with pytest.raises(BadItemError):
            fan_in.add(world.clients, key, mark)
    in_context(world, lambda: fan_in.flush(world.clients))
    world.settle()

    with world.context():
        assert counted("t") == Counter("a")


def test_a_sum_that_is_no_item_any_more_is_stored_in_parts(
    world: World, fan_in: Accumulator[Mark]
) -> None:
    """Two that are too large together go one by one."""
    for letter in "abc":
        fan_in.add(world.clients, "t", Mark(letter * 30_000))
    in_context(world, lambda: fan_in.flush(world.clients))
    assert fan_in.waiting(world.clients) == 0
    world.settle()

    with world.context():
        assert counted("t") == Counter(letter * 30_000 for letter in "abc")


def test_an_item_that_its_caller_changes_counts_as_it_was(
    world: World, fan_in: Accumulator[Mark]
) -> None:
    """As an item that is made once, and added for many keys."""
    item = Mark("x")
    fan_in.add(world.clients, "t", item)
    object.__setattr__(item, "label", "y")
    fan_in.add(world.clients, "t", item)
    object.__setattr__(item, "label", "z")
    in_context(world, lambda: fan_in.flush(world.clients))
    world.settle()

    with world.context():
        assert counted("t") == Counter("xy")


def test_memory_is_bounded(
    world: World, fan_in: Accumulator[Mark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no room for another key it says so, and takes nothing of it."""
    monkeypatch.setattr("rollforward.fork_join.accumulator.MAX_KEYS", 3)
    for key in ("a", "b", "c"):
        fan_in.add(world.clients, key, Mark("x"))
    with pytest.raises(BufferFullError):
        fan_in.add(world.clients, "d", Mark("x"))
    fan_in.add(world.clients, "a", Mark("y"))
    in_context(world, lambda: fan_in.flush(world.clients))
    fan_in.add(world.clients, "d", Mark("x"))

    assert fan_in.waiting(world.clients) == 1


def test_one_key_takes_no_more_room_than_many(
    world: World, fan_in: Accumulator[Mark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Datastore takes nothing, sums of one key that are full are bounded, too."""
    monkeypatch.setattr("rollforward.fork_join.accumulator.MAX_KEYS", 3)
    for letter in "abc":
        fan_in.add(world.clients, "t", Mark(letter * 30_000))
    with pytest.raises(BufferFullError):
        fan_in.add(world.clients, "t", Mark("d" * 30_000))
    assert fan_in.waiting(world.clients) == 3
    in_context(world, lambda: fan_in.flush(world.clients))
    world.settle()

    with world.context():
        assert counted("t") == Counter(letter * 30_000 for letter in "abc")


def test_what_comes_beside_the_last_flush_is_stored_without_another_addition(
    world: World, fan_in: Accumulator[Mark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM an item came after the flush and before the end of its thread."""
    sound, late = fork_join_insert.insert_rows, iter([Mark("late")])

    def insert_rows(client: Any, entities: Any) -> None:
        sound(client, entities)
        for mark in late:
            fan_in.add(world.clients, "t", mark)

    world.clients.process_state.shutdown()
    flusher = fan_in._buffer(world.clients).flusher
    flusher._has_ended = True
    monkeypatch.setattr(fork_join_insert, "insert_rows", insert_rows)
    fan_in.add(world.clients, "t", Mark("a"))
    until(lambda: not flusher._is_awake)
    world.settle()

    assert fan_in.waiting(world.clients) == 0
    with world.context():
        assert counted("t") == Counter(["a", "late"])


def until(claim: Callable[[], bool]) -> None:
    """Wait for another thread; how long that takes is no part of the test."""
    ends_at = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("interval_s", [0, -1.0, float("nan"), float("inf"), 1e18])
def test_an_interval_that_no_thread_can_wait_for_is_refused(interval_s: float) -> None:
    """The thread that flushes would end at its first wait, and nothing would be stored by it."""
    with pytest.raises(ValueError, match="flush_interval_s must be above 0"):
        Accumulator("tallies", MARKS, combine, flush_interval_s=interval_s)
