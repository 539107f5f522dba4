"""Resizing while increments continue: none is lost or counted twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters import Counter, NotShardedError, OutcomeUnknownError
from rollforward.counters import resize as counter_resize
from rollforward.counters import shard_maps as counter_shard_maps
from rollforward.counters.entities import config_key
from rollforward.counters.resize import Resizer
from rollforward.counters.shard_maps import ShardMaps
from rollforward.runtime import Clients
from rollforward.testing.injection import REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.counters.counts import (
    HITS,
    LIKES,
    TWO_ROUND_TRIPS,
    VOTES,
    WAYS,
    add,
    another_process,
    config,
    contend,
    resize,
    stored,
    total,
)

pytestmark = WAYS


def test_more_shards_hold_the_same_total(world: World) -> None:
    """E2: and writes spread over them."""
    add(world, "a", 3)
    resize(world, "a", 5)
    for _ in range(10):
        add(world, "a")

    assert total(world, "a") == 13
    assert sorted(stored(world, "a").values()) in ([2, 2, 2, 2, 5], [2, 2, 2, 2, 2 + 3])


@pytest.mark.parametrize("max_shards", [4, 64])
def test_a_counter_gets_the_shards_that_a_later_version_declares(
    world: World, max_shards: int
) -> None:
    """E2: whoever raises min_shards for a busy key, or fixes their number, has them for it, too."""
    resize(world, "b", 2)  # By hand: this one stays.
    add(world, "a", 3)
    assert stored(world, "a") == {0: 3}
    declared = Counter("likes", queue="default", min_shards=4, max_shards=max_shards)
    deployed = another_process(world)
    for _ in range(9):
        add(world, "a", counter=declared, clients=deployed)
        add(world, "b", counter=declared, clients=deployed)

    assert (set(stored(world, "b")), set(stored(world, "a"))) == ({0, 1}, {0, 1, 2, 3})
    assert min(stored(world, "a").values()) == 2
    assert total(world, "a") == 12


def test_fewer_shards_hold_the_same_total(world: World) -> None:
    """E2: before they are drained, after each of them, and when all are."""
    resize(world, "a", 8)
    for i in range(16):
        add(world, "a", i)
    total_before = total(world, "a")
    resize(world, "a", 3)
    amid = total(world, "a")
    world.settle()

    assert (total_before, amid, total(world, "a")) == (120, 120, 120)
    assert set(stored(world, "a")) == {0, 1, 2}


def test_a_writer_that_knows_of_drained_shards_loses_nothing(world: World) -> None:
    """E2, E5: it finds no shard, looks again, and counts once, under the same idempotency key."""
    other = another_process(world)
    resize(world, "a", 20)  # More than a call has attempts.
    for i in range(8):
        add(world, "a", clients=other, idempotency_key=f"before.{i}")
    resize(world, "a", 1)
    world.settle()
    for i in range(8):
        add(world, "a", clients=other, idempotency_key=f"after.{i}")

    assert total(world, "a") == 16
    assert stored(world, "a") == {0: 16}


def test_a_writer_that_knows_of_fewer_shards_is_counted(world: World) -> None:
    """E2: totals read the shards that it writes to, and the unknown ones."""
    other = another_process(world)
    add(world, "a", clients=other)
    resize(world, "a", 4)
    for _ in range(4):
        add(world, "a")
        add(world, "a", clients=other)

    assert total(world, "a") == 9
    with world.clients.context():
        assert LIKES.total(other, "a").value == 9


def test_an_idempotency_key_is_known_on_any_number_of_shards(world: World) -> None:
    """E1, E2: a reply is lost, the shards change, and the client repeats its request."""
    add(world, "a", idempotency_key="r0")
    with world.plan.watched():
        world.plan.reset(REPLY_LOST, next_call="Commit")
        add(world, "a", 5, idempotency_key="r1")
    resize(world, "a", 7)
    grown = add(world, "a", 5, idempotency_key="r1")
    resize(world, "a", 1)
    world.settle()
    shrunk = add(world, "a", 5, idempotency_key="r1", clients=another_process(world))

    assert (grown.is_duplicate, shrunk.is_duplicate) == (True, True)
    assert total(world, "a") == 6


def test_a_process_that_knows_of_fewer_shards_takes_none_away(world: World) -> None:
    """E2, E5: it tries to double its old number, after another process added more."""
    add(world, "a")
    shard_maps = ShardMaps.of(world.clients, LIKES._settings)
    with world.clients.context():
        [shard_map] = shard_maps.get(world.clients, ["a"]).values()
        for shards in (8, None):
            LIKES.resize(another_process(world), "a", shards)
        assert shard_map.shards == 1
        Resizer(shard_maps).grow(world.clients, shard_map, is_rush=False)

    assert (config(world, "a").shards, config(world, "a").read_shards) == (8, 8)
    with world.clients.context():
        assert shard_maps.get(world.clients, ["a"])["a"].shards == 8


def test_a_shard_is_drained_once(world: World) -> None:
    """E2: however many tasks drain it, one after the other or at once."""
    resize(world, "a", 6)
    for i in range(12):
        add(world, "a", i)
    resize(world, "a", 2)
    with world.context():
        LIKES.sweep(world.clients)
        LIKES.sweep(world.clients)
    world.doubles = True
    world.settle()

    assert total(world, "a") == sum(range(12))
    assert set(stored(world, "a")) == {0, 1}


def test_a_drain_leaves_shards_alone_that_are_written_to_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2, E5: the counter grows between the two transactions of the task that drains it.

    The counter of another declaration with the same key keeps its total and its shards.
    """
    resize(world, "a", 3, VOTES)
    add(world, "a", 7, counter=VOTES)
    resize(world, "a", 3)
    for _ in range(6):
        add(world, "a")
    resize(world, "a", 1)

    def grow_after(body: Callable[[], Any]) -> Any:
        result = counter_shard_maps.transact(body)
        monkeypatch.setattr(counter_resize, "transact", counter_shard_maps.transact)
        LIKES.resize(world.clients, "a", 3)
        return result

    resizer = Resizer(ShardMaps.of(world.clients, LIKES._settings))
    monkeypatch.setattr(counter_resize, "transact", grow_after)
    with world.clients.context():
        is_left = resizer.settle(world.clients, "a")

    assert not is_left
    assert (total(world, "a"), set(stored(world, "a"))) == (6, {0, 1, 2})
    assert (total(world, "a", VOTES), config(world, "a", VOTES).read_shards) == (7, 3)


def test_shards_that_are_being_drained_may_be_written_to_again(world: World) -> None:
    """E2: growing during a drain recreates drained shards, and keeps the others."""
    resize(world, "a", 8)
    for _ in range(16):
        add(world, "a")
    resize(world, "a", 2)
    resizer = Resizer(ShardMaps.of(world.clients, LIKES._settings))
    with world.clients.context():
        for shard in (7, 6, 5):
            counter_shard_maps.transact(lambda s=shard: resizer._drain(world.clients, "a", s))
    resize(world, "a", 7)
    world.settle()
    for _ in range(7):
        add(world, "a")

    assert total(world, "a") == 23
    assert set(stored(world, "a")) == set(range(7))


def until_done(act: Callable[..., object], *args: object, **options: object) -> None:
    """Do what lost its races again, as a client or the queue does."""
    for _ in range(50):
        try:
            act(*args, **options)
        except (OutcomeUnknownError, rpc_errors.Aborted):
            continue
        return
    raise AssertionError("it never comes through")


def test_totals_are_exact_while_writers_and_resizes_race(world: World, way: str) -> None:
    """E1, E2, E3: three processes count, another changes the shards, a reader reads throughout.

    A total is at least what had returned before it was read, and at most what had begun by then.
    """
    lock = threading.Lock()
    # A rival's transaction makes one on the locking emulator wait for two seconds.
    is_slow = way == TWO_ROUND_TRIPS and world.services.datastore_kind == "firestore"
    many, numbers = (3, (2, 1)) if is_slow else (20, (3, 7, 2, 5, 1, 4))
    begun = done = 0
    is_over = threading.Event()
    seen: list[tuple[int, int, int]] = []
    add(world, "a", 0)

    def count(clients: Clients, number: int) -> None:
        nonlocal begun, done
        for i in range(many):
            with lock:
                begun += 1
            once = f"{number}.{i}"
            until_done(add, world, "a", clients=clients, idempotency_key=once)
            with lock:
                done += 1

    def change() -> None:
        clients = another_process(world)
        with world.clients.context():
            for shards in numbers:
                until_done(LIKES.resize, clients, "a", shards)
                resizer = Resizer(ShardMaps.of(clients, LIKES._settings))
                until_done(resizer.settle, clients, "a")

    def read() -> None:
        clients = another_process(world)
        with world.clients.context():
            while not is_over.is_set():
                with lock:
                    low = done
                value = LIKES.total(clients, "a").value
                with lock:
                    seen.append((low, value, begun))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        writers: list[Callable[[], None]] = [
            lambda n=n: count(another_process(world), n) for n in range(3)
        ]
        in_threads(*writers, change)
    finally:
        is_over.set()
        reader.join()

    assert total(world, "a") == 3 * many == sum(stored(world, "a").values())
    assert seen
    assert [reading for reading in seen if not reading[0] <= reading[1] <= reading[2]] == []
    row = config(world, "a")
    assert set(stored(world, "a")) == set(range(row.read_shards))


def test_threads_of_a_process_that_meet_a_new_counter_make_it_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their transactions would hold each other's locks, and none of them could write."""
    shard_maps = ShardMaps.of(world.clients, LIKES._settings)
    made: list[str] = []
    make, all_have_looked, looks = shard_maps._make, threading.Barrier(4), threading.local()

    def counted(clients: Clients, keys: Any) -> Any:
        made.extend(keys)
        return make(clients, keys)

    def get_multi(keys: Any) -> Any:
        rows = ndb.get_multi(keys)
        if not hasattr(looks, "first"):
            looks.first = True
            all_have_looked.wait(10)
        return rows

    def meet() -> None:
        with world.clients.context():
            shard_maps.get(world.clients, ["a"])

    monkeypatch.setattr(shard_maps, "_make", counted)
    looking = SimpleNamespace(get_multi=get_multi, put_multi=ndb.put_multi)
    monkeypatch.setattr(counter_shard_maps, "ndb", looking)
    in_threads(*[meet] * 4)

    assert made == ["a"]


def test_a_counter_that_another_thread_is_changing_is_left_be(world: World) -> None:
    """That one's transaction would wait for its locks; afterwards it grows."""
    add(world, "a")
    shard_maps = ShardMaps.of(world.clients, LIKES._settings)
    resizer = Resizer(shard_maps)
    with world.clients.context():
        [shard_map] = shard_maps.get(world.clients, ["a"]).values()
        with shard_maps.changing("a"):
            resizer.grow(world.clients, shard_map, is_rush=False)
        shards_before = config_key(LIKES.name, "a").get().shards
        resizer.grow(world.clients, shard_map, is_rush=False)

    assert (shards_before, config(world, "a").shards) == (1, 2)


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_are_exact_after_each_step(world: World, seed: int) -> None:
    """E1, E2, E5: processes with memories of any age, numbers of shards, drains and repetitions."""
    chance = random.Random(seed)
    processes = [another_process(world) for _ in range(3)]
    counted: dict[str, int] = {}

    def count() -> None:
        key = f"r{chance.randrange(30)}"
        delta = counted.get(key, chance.randint(-9, 9))
        answer = add(world, "a", delta, clients=chance.choice(processes), idempotency_key=key)
        assert answer.is_duplicate == (key in counted)
        counted[key] = delta

    def drain() -> None:
        row = config(world, "a")
        if row is not None and row.read_shards > row.shards:
            clients = chance.choice(processes)
            resizer = Resizer(ShardMaps.of(clients, LIKES._settings))
            shard = chance.choice([row.read_shards - 1, row.shards, row.shards - 1])
            with world.clients.context():
                counter_shard_maps.transact(lambda: resizer._drain(clients, "a", shard))

    def change() -> None:
        with world.clients.context():
            LIKES.resize(chance.choice(processes), "a", chance.randint(1, 6))

    def restart() -> None:
        processes[chance.randrange(3)] = another_process(world)

    for _ in range(35):
        chance.choices([count, drain, change, restart], weights=[6, 4, 2, 1])[0]()
        with world.clients.context():
            for clients in processes:
                assert LIKES.total(clients, "a").value == sum(counted.values())


# By itself


def test_a_counter_grows_when_commits_lose_races_and_shrinks_when_they_do_not(
    world: World,
) -> None:
    """E2: up to the declared maximum, and back to one; the total is exact."""
    contend(world, VOTES, "a", 8)
    grown = config(world, "a", VOTES)
    for _ in range(8):
        world.clock.sleep(61)
        add(world, "a", counter=VOTES)
        world.sweep()
        world.settle()
    shrunk = config(world, "a", VOTES)

    assert (grown.shards, shrunk.shards, shrunk.read_shards) == (16, 1, 1)
    assert shrunk.due is None
    assert total(world, "a", VOTES) == 16


def test_a_counter_that_nobody_increments_is_shrunk_by_the_sweep(world: World) -> None:
    """E2: without a writer only the sweep can notice that it is calm."""
    contend(world, VOTES, "a", 8)
    for _ in range(8):
        world.clock.sleep(61)
        world.sweep()
        world.settle()

    assert config(world, "a", VOTES).read_shards == 1
    assert total(world, "a", VOTES) == 8


def test_a_counter_that_has_to_grow_again_stays_calm_for_longer(world: World) -> None:
    """It was calm because of its shards."""
    contend(world, VOTES, "a", 6)
    world.clock.sleep(31)
    world.sweep()
    world.settle()
    calm_s = config(world, "a", VOTES).calm_s
    world.clients.process_state.clear()
    contend(world, VOTES, "a", 6)

    assert config(world, "a", VOTES).calm_s == 2 * calm_s == 60
    calm: list[float] = []
    for _ in range(3):  # The first shrinking proves nothing yet; with the next one it was right.
        world.clock.sleep(61)
        world.sweep()
        world.settle()
        calm.append(config(world, "a", VOTES).calm_s)
    assert calm == [60, 30, 30]


def test_a_counter_with_a_number_given_by_hand_keeps_it(world: World) -> None:
    """Until it is set to adapt again."""
    resize(world, "a", 2, VOTES)
    contend(world, VOTES, "a", 8)
    pinned = config(world, "a", VOTES)
    resize(world, "a", None, VOTES)
    contend(world, VOTES, "a", 8)

    assert (pinned.shards, pinned.is_pinned, pinned.due) == (2, True, None)
    assert config(world, "a", VOTES).shards == 16


def test_only_exact_counters_have_shards(world: World) -> None:
    """The error says so; and there are not any number of them."""
    with world.clients.context():
        with pytest.raises(NotShardedError):
            HITS.resize(world.clients, "a", 2)
        with pytest.raises(NotShardedError):
            HITS.status(world.clients, "a")
        for shards in (0, 257):
            with pytest.raises(ValueError, match="shards"):
                LIKES.resize(world.clients, "a", shards)
        status = LIKES.status(world.clients, "a")

    assert (status.total, status.shards, status.draining) == (0, 0, 0)
