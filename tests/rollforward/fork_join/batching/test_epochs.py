"""Epochs: the open batch, even if memcached lies or forgets."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.fork_join.batching.epochs import (
    CLOSED,
    FORGOTTEN_AFTER_S,
    WAIT_FOR_WRITERS_S,
    Epochs,
    OpenEpoch,
    Shape,
    Slot,
    _lock,
    close,
    find_open_epoch,
)
from rollforward.fork_join.entities import PackId, WorkPack, pack_key
from rollforward.runtime.cache import NoCache
from rollforward.runtime.process.process_state import ProcessState
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.fork_join.tally_queue import (
    TALLIES,
    Mark,
    batches,
    packs,
    put,
    tallied,
    tasks,
)

pytestmark = pytest.mark.fast


class Hooked(NoCache):
    """memcached, with something done right after a batch is closed."""

    def __init__(self, cache: Any, on_close: Callable[[], Any]) -> None:
        self.cache = cache
        self.on_close = on_close

    def __getattribute__(self, name: str) -> Any:
        if name in ("cache", "on_close", "incr_existing"):
            return object.__getattribute__(self, name)
        return getattr(self.cache, name)

    def incr_existing(self, key: str, delta: int) -> int | None:
        count: int | None = self.cache.incr_existing(key, delta)
        if delta == -CLOSED:
            self.on_close()
            count = self.cache.incr_existing(key, 0)
        return count


def test_a_writer_that_is_refused_holds_no_joiner_up(world: World) -> None:
    """It leaves a closing batch at once, so the joiner does not wait."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    entry = TALLIES._joiners.epochs(clients).enter(clients, slot, 1)
    TALLIES._joiners.epochs(clients).leave(clients, entry)
    answers: list[Any] = []
    cache = Hooked(
        clients.cache,
        lambda: answers.append(TALLIES._joiners.epochs(clients).enter(clients, slot, 1)),
    )
    object.__setattr__(clients, "cache", cache)
    began_s = world.clock.time_s

    assert close(clients, slot, entry.epoch)

    assert world.clock.time_s == began_s
    assert answers[0].epoch != entry.epoch


def test_one_writer_is_told_that_a_batch_is_full(world: World) -> None:
    """Only the writer whose items fill it."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    epochs = TALLIES._joiners.epochs(clients)

    entries = [epochs.enter(clients, slot, items) for items in (12, 7, 1, 1)]
    assert [entry.is_full for entry in entries] == [False, False, True, False]
    assert len({entry.epoch for entry in entries}) == 1


def test_each_writer_that_was_missed_has_a_joiner_of_its_own(world: World) -> None:
    """Two are held up until their batch was folded without them, one for longer: no sweep helps."""
    joiners, held = TALLIES._joiners, []
    for label in ("a", "b"):
        admission = joiners.enter(world.clients, "t", 1)
        joiners.start(world.clients, [admission])
        pack = PackId(TALLIES.name, admission.epoch, 1, 0, label * 16)
        held.append((admission, pack))
    world.settle()

    for admission, pack in held:
        with world.context():
            WorkPack(
                key=pack_key(pack.text), batch_key="t", items=f'[{{"label": "{pack.id[0]}"}}]'
            ).put()
        joiners.leave(world.clients, [(admission, pack)])
        world.settle()

    with world.context():
        assert tallied("t") == Counter("ab")
        assert packs() == []


def test_a_writer_whose_lock_was_forgotten_takes_itself_for_missed(world: World) -> None:
    """Its joiner may have missed it, so another one folds its items, without a sweep."""
    joiners = TALLIES._joiners
    admission = joiners.enter(world.clients, "t", 1)
    joiners.start(world.clients, [admission])
    world.settle()
    world.flush()

    pack = PackId(TALLIES.name, admission.epoch, 1, 0, "a" * 16)
    with world.context():
        WorkPack(key=pack_key(pack.text), batch_key="t", items='[{"label": "a"}]').put()
    joiners.leave(world.clients, [(admission, pack)])
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_batch_is_closed_once_however_many_joiners_it_has(world: World) -> None:
    """D3: the second one finds it closed, and waits for the same writer as the first."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    epochs = TALLIES._joiners.epochs(clients)
    entry = epochs.enter(clients, slot, 1)
    seen: list[bool] = []

    def second() -> None:
        cache.on_close = lambda: None
        seen.append(close(clients, slot, entry.epoch))

    cache = Hooked(clients.cache, second)
    object.__setattr__(clients, "cache", cache)
    before_s = world.clock.time_s

    close(clients, slot, entry.epoch)

    assert seen == [True]
    assert world.clock.time_s - before_s >= WAIT_FOR_WRITERS_S
    assert epochs.leave(clients, entry)


def test_an_epoch_of_one_process_takes_no_item_once_its_joiner_is_due(world: World) -> None:
    """D2: without memcached it cannot learn that it was joined."""
    object.__setattr__(world.clients, "cache", NoCache())
    epochs, slot = TALLIES._joiners.epochs(world.clients), Slot(TALLIES.name, "t")
    entries = []
    for pause_s in (0.0, 0.9, 0.2, 0.0):
        world.clock.sleep(pause_s)
        entries.append(epochs.enter(world.clients, slot, 1))

    opened, same, second, reopened = [entry.epoch for entry in entries]
    assert (same, reopened) == (opened, second)
    assert second != opened
    assert [entry.is_new for entry in entries] == [True, False, True, False]


def test_one_who_looks_on_sees_what_is_announced_and_who_is_inside(world: World) -> None:
    """They see an open batch, and nothing of a closed one."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    epochs = TALLIES._joiners.epochs(clients)
    entries = [epochs.enter(clients, slot, items) for items in (3, 2)]
    epoch = entries[0].epoch
    assert find_open_epoch(clients, slot) == OpenEpoch(epoch, items=5, writers=2)
    for entry in entries:
        epochs.leave(clients, entry)
    assert find_open_epoch(clients, slot) == OpenEpoch(epoch, items=5, writers=0)
    close(clients, slot, epoch)

    assert find_open_epoch(clients, slot) is None
    clients.cache.set(slot.name, epoch.encode(), 60)
    assert find_open_epoch(clients, slot) is None


class Beaten(NoCache):
    """memcached, with something done right before the first epoch is published."""

    def __init__(self, cache: Any, slot: Slot, first: Callable[[], Any]) -> None:
        self.cache = cache
        self.slot = slot
        self.first: Callable[[], Any] | None = first

    def __getattribute__(self, name: str) -> Any:
        if name in ("cache", "slot", "first", "add"):
            return object.__getattribute__(self, name)
        return getattr(self.cache, name)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        if key == self.slot.name and (first := self.first):
            self.first = None
            first()
        is_added: bool = self.cache.add(key, value, ttl_s)
        return is_added


def test_of_two_who_open_a_batch_at_once_one_joins_the_other(world: World) -> None:
    """One batch, and one task for it."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    answers: list[Any] = []
    elsewhere = Epochs(1.0, TALLIES.settings.shape)
    cache = Beaten(clients.cache, slot, lambda: answers.append(elsewhere.enter(clients, slot, 1)))
    object.__setattr__(clients, "cache", cache)

    admission = TALLIES._joiners.epochs(clients).enter(clients, slot, 1)

    (other,) = answers
    assert (admission.epoch, admission.is_new) == (other.epoch, False)
    assert other.is_new


def test_a_batch_of_another_key_is_not_taken_for_ones_own(world: World) -> None:
    """memcached holds an open epoch of another key."""
    put(world, "other", "a")
    with world.context():
        (other,) = packs()
    epoch = PackId.parse(other.key.id()).epoch
    world.clients.cache.set(Slot(TALLIES.name, "t").name, epoch.encode(), 60)
    put(world, "t", "b")

    with world.context():
        epochs = {pack.batch_key: PackId.parse(pack.key.id()).epoch for pack in packs()}
    assert epochs["other"] == epoch
    assert epochs["t"] != epoch


def test_what_stands_in_memcached_is_of_one_queue_key_and_shard() -> None:
    """D2: two that share a lock or a batch would wait for each other's writers."""
    slots = [
        Slot(queue, key, shard) for queue in ("a", "b") for key in ("k", "1:k") for shard in (0, 1)
    ]

    assert len({slot.name for slot in slots}) == len(slots)
    assert len({slot.fold_mutex for slot in slots}) == 4
    assert len({slot.key_hash for slot in slots}) == 4
    assert len({_lock(slot, epoch) for slot in slots for epoch in ("x", "y")}) == 4


def test_a_batch_of_one_process_is_due_when_its_key_wants_it() -> None:
    """Without memcached, too: the queue's period is the longest that it may last."""
    at = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
    clock = SimpleNamespace(now=lambda: at)
    clients: Any = SimpleNamespace(clock=clock, cache=NoCache(), new_id=lambda: "c0ffee012345")
    epochs = Epochs(10.0, lambda clients, key: Shape(0.25, 20))

    entered, reentered = (epochs.enter(clients, Slot("q", "k"), 1) for _ in range(2))

    assert entered.due - at.replace(tzinfo=None) == datetime.timedelta(seconds=0.25)
    assert (entered.is_new, reentered.is_new, reentered.due) == (True, False, entered.due)


def test_nobody_joins_a_batch_of_a_clock_far_ahead(world: World) -> None:
    """Its joiner is due in an hour; who has the right time has not to wait for it."""
    wrong = replace(ahead(world.clients, 3600), process_state=ProcessState())
    with world.clients.context():
        TALLIES.insert(wrong, "t", Mark("a"))
    put(world, "t", "b")
    world.clock.sleep(2)
    world.deliver_due()

    with world.context():
        assert tallied("t") == Counter("b")


def test_without_memcached_each_process_makes_its_own_batches(world: World) -> None:
    """D2: smaller batches, the same totals."""
    object.__setattr__(world.clients, "cache", NoCache())
    put(world, "t", "a", "b", "c")
    world.clients.process_state.clear()  # Another process.
    put(world, "t", "d")
    assert len(tasks(world)) == 2
    world.settle()

    with world.context():
        assert tallied("t") == Counter("abcd")
        assert sorted(batches("t")) == [1, 3]


class Liar(NoCache):
    """A memcached that confirms every write and returns invented values."""

    def __init__(self, cached: bytes) -> None:
        self.told = cached

    def get(self, key: str) -> bytes | None:
        return self.told

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return True

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return True

    def delete(self, key: str) -> bool:
        return True

    def incr_existing(self, key: str, delta: int) -> int | None:
        return int(self.told[:30]) if self.told.isdigit() else 2**16 + 5


LIES = [
    b"",
    b"\xff\x00",
    b"0",
    b"65536",
    b"65537",
    b"32768",
    b"99999999999999999999",
    b"9" * 5_000,
    b"c0ffee012345.20300501T120000000000.1a2b3c4d",
    b"c0ffee012345.00000501T120000000000.1a2b3c4d",
]


@pytest.mark.parametrize("cached", LIES)
def test_whatever_memcached_says_the_totals_are_exact(world: World, cached: bytes) -> None:
    """D2, D3: nonsense, numbers, epochs of others: only batches differ."""
    object.__setattr__(world.clients, "cache", Liar(cached))
    put(world, "t", "a", "b", "c")
    world.heal(lambda: not packs(), rounds=3)

    with world.context():
        assert tallied("t") == Counter("abc")


class Forgetful(NoCache):
    """memcached that answers some and stays silent to others."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.is_silent = False

    def get(self, key: str) -> bytes | None:
        return None if self.is_silent else self.cache.get(key)

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return not self.is_silent and self.cache.set(key, value, ttl_s)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return not self.is_silent and self.cache.add(key, value, ttl_s)

    def delete(self, key: str) -> bool:
        return not self.is_silent and self.cache.delete(key)

    def incr_existing(self, key: str, delta: int) -> int | None:
        return None if self.is_silent else self.cache.incr_existing(key, delta)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_joiner_that_could_not_close_its_batch_comes_again(world: World, is_empty: bool) -> None:
    """D3: writers that still think it open are folded seconds later, before any sweep.

    Also if the joiner found nothing: the commit of its first writer may have failed.
    """
    cache = Forgetful(world.clients.cache)
    object.__setattr__(world.clients, "cache", cache)
    put(world, "t", "a")
    if is_empty:
        with world.context():
            ndb.delete_multi([pack.key for pack in packs()])
    world.clock.sleep(1.1)
    cache.is_silent = True
    world.deliver(tasks(world)[0].name)
    [again] = tasks(world)
    assert again.schedule_time.seconds >= world.clock.time_s + FORGOTTEN_AFTER_S - 2
    cache.is_silent = False
    put(world, "t", "b")
    with world.context():
        assert [PackId.parse(pack.key.id()).items for pack in packs()] == [1]
    world.settle()

    with world.context():
        assert tallied("t") == Counter("b" if is_empty else "ab")
        assert packs() == []
