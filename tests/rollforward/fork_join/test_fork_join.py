"""Fork-join queues: what goes in is folded once, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.fork_join import Batch, ForkJoin, fork_join
from rollforward.fork_join import fold as fork_join_fold
from rollforward.fork_join.batching.epochs import Slot
from rollforward.fork_join.entities import PackId, WorkPack, pack_key
from rollforward.fork_join.insert import insert_group
from rollforward.runtime.advisory_lock import PROGRESS_S, advisory_lock
from rollforward.runtime.process.current import current_clients
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import (
    AT_ONCE,
    GUARDED,
    SHARDED,
    TALLIES,
    Mark,
    batches,
    packs,
    put,
    tallied,
    tally,
    tasks,
)

pytestmark = pytest.mark.fast


def test_a_period_of_items_is_folded_together(world: World) -> None:
    """D1, D5: everything accepted is folded once, by one task, and nothing is left."""
    put(world, "t", "a", "b", "c")
    assert len(tasks(world)) == 1
    world.deliver_due()
    with world.context():
        assert tallied("t") == Counter()

    world.settle()

    with world.context():
        assert tallied("t") == Counter("abc")
        assert batches("t") == [3]
        assert packs() == []


def test_a_fold_whose_transactions_take_time_shows_progress_before_each(
    world: World, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the next joiner of the key waits for it longer than for one that has died."""
    if services.memcached is None:
        pytest.skip("without memcached nobody waits")
    held: list[bytes | None] = []
    sound = fork_join_fold._fold_here

    def fold_here(clients: Any, *args: Any) -> Any:
        held.append(clients.cache.get(Slot(TALLIES.name, "t").fold_mutex))
        clients.clock.sleep(PROGRESS_S)
        return sound(clients, *args)

    monkeypatch.setattr(fork_join_fold, "_fold_here", fold_here)
    monkeypatch.setattr(TALLIES, "max_packs", 1)
    for label in "abc":
        put(world, "t", label)
    world.settle()

    assert len(held) == len({*held} - {None}) == 3
    with world.context():
        assert batches("t") == [1, 1, 1]


def test_a_second_joiner_of_a_batch_that_is_folded_waits_for_nobody(world: World) -> None:
    """A full batch has two: the one that was due later would take a place of the queue."""
    with world.clients.context():
        TALLIES.insert_each(world.clients, [("t", Mark(f"i{i}")) for i in range(20)])
    joiners = [due.task_name for due in world.engine.due()]
    world.deliver_due()
    world.clock.sleep(30)
    with advisory_lock(world.clients, Slot(TALLIES.name, "t").fold_mutex):
        began = world.clients.clock.now()
        for task in tasks(world):
            assert task.name not in joiners
            world.deliver(task.name)
        waited_s = (world.clients.clock.now() - began).total_seconds()

    with world.context():
        assert batches("t") == [20]
    if world.services.memcached is not None:
        assert waited_s == 0


def test_keys_have_batches_of_their_own(world: World) -> None:
    """D1: what is inserted for one key is folded for it alone."""
    put(world, "one", "a")
    put(world, "two", "b", "c")
    world.settle()

    with world.context():
        assert (tallied("one"), tallied("two")) == (Counter("a"), Counter("bc"))


def test_without_a_period_an_item_is_folded_at_once(world: World) -> None:
    """Idle latency is near zero: neither the insert nor the task has anything to wait for."""
    before_s = world.clock.time_s
    put(world, "t", "a", queue=AT_ONCE)
    assert world.clock.time_s == before_s
    world.deliver_due()

    with world.context():
        assert tallied("t") == Counter("a")


def tally_alone(batch: Batch, items: Sequence[Mark]) -> None:
    tally(current_clients(), batch, items)


def test_a_join_may_do_without_the_clients(services: Services) -> None:
    """It gets the batch and its items."""
    queue = fork_join("tallies-alone", queue="fork-join", period_s=0)(tally_alone)
    world = World(services, fork_joins=[queue])
    put(world, "t", "a", queue=queue)
    world.deliver_due()

    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize("count", [19, 20])
def test_a_batch_that_one_commit_fills_does_not_wait(world: World, count: int) -> None:
    """One item less does."""
    with world.clients.context():
        TALLIES.insert_each(world.clients, [("t", Mark(f"i{i}")) for i in range(count)])
    world.deliver_due()

    with world.context():
        assert batches("t") == ([20] if count == 20 else [])


def test_a_full_batch_without_a_period_has_one_joiner(services: Services) -> None:
    """Its own is due already: another one would find nothing."""
    small = fork_join("tallies-small", queue="fork-join", period_s=0, max_batch_size=2)(tally)
    world = World(services, fork_joins=[small])
    with world.clients.context():
        small.insert_each(world.clients, [("t", Mark("a")), ("t", Mark("b"))])

    assert len(tasks(world)) == 1


def test_a_full_batch_does_not_wait_for_its_period(world: World) -> None:
    """Early fire: at 20 items the batch starts; its own task finds nothing left."""
    put(world, "t", *[f"i{i}" for i in range(25)])
    world.deliver_due()
    with world.context():
        assert batches("t") == [20]
    assert len(tasks(world)) == 2  # Its own joiner, and that of the rest.

    world.settle()

    with world.context():
        assert batches("t") == [20, 5]


def test_a_batch_that_is_filled_beyond_its_size_does_not_wait_either(world: World) -> None:
    """The commit that fills it brings more than there was room for."""
    with world.clients.context():
        for part in range(2):
            marks = [("t", Mark(f"{part}.{i}")) for i in range(15)]
            TALLIES.insert_each(world.clients, marks)
    world.deliver_due()

    with world.context():
        assert sum(batches("t")) == 30


def test_a_batch_larger_than_a_transaction_is_folded_in_several(world: World) -> None:
    """D1: 65 items under one epoch, 20 at a time."""
    with world.clients.context():
        TALLIES.insert_each(world.clients, [("t", Mark(f"i{i}")) for i in range(15)])
        for part in range(5):
            marks = [("t", Mark(f"p{part}.{i}")) for i in range(10)]
            TALLIES.insert_each(world.clients, marks)
    world.settle()

    with world.context():
        assert sum(batches("t")) == 65
        assert max(batches("t")) <= 20
        assert set(tallied("t").values()) == {1}


@pytest.mark.parametrize(("count", "folded", "status"), [(3, 3, 204), (4, 3, 409)])
def test_a_joiner_that_cannot_list_its_batch_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int, folded: int, status: int
) -> None:
    """D1: of three packs a look; what is behind them comes with the next one, at once."""
    monkeypatch.setattr(fork_join_fold, "MAX_LISTED", 3)
    put(world, "t", *[f"i{i}" for i in range(count)])
    world.clock.sleep(1.1)

    assert world.deliver(tasks(world)[0].name) == status
    with world.context():
        assert batches("t") == [folded]
    world.settle()
    with world.context():
        assert sum(batches("t")) == count
        assert packs() == []


def test_no_join_gets_more_than_the_largest_batch(world: World) -> None:
    """One commit of 50 items, 20 at a time: each gets its place, and each is folded once."""
    labels = [f"i{i}" for i in range(50)]
    with world.clients.context():
        asked = [TALLIES._codec.insertion("t", Mark(label), keep_result=True) for label in labels]
        accepted: list[Any] = insert_group(world.clients, TALLIES._joiners, asked)
    world.settle()

    with world.context():
        assert sorted(batches("t")) == [10, 20, 20]
        results = [TALLIES.outcome(item).result for item in accepted]
    assert [result.split()[0] for result in results] == labels


def test_a_packs_key_tells_its_size_in_kib(world: World) -> None:
    """So a fold is planned without reading packs; what is begun does not count."""

    def size_of(place: str) -> int:
        return PackId.parse(place).kilobytes

    mark, larger = Mark("x" * (2_047 - len('{"label":""}'))), Mark("x" * 2_048)
    with world.clients.context():
        places = [TALLIES.insert(world.clients, "t", mark_).pack for mark_ in (mark, larger)]
        alone = transact(
            lambda: TALLIES.insert_in_transaction(
                world.clients, "t", Mark(mark.label.removesuffix("xx"))
            )
        )

    assert [size_of(place) for place in (*places, alone)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("packs", "sizes"),
    [
        ([(0, 0)] * (fork_join_fold.MAX_PACKS + 1), [fork_join_fold.MAX_PACKS, 1]),
        ([(10, 0), (10, 0), (1, 0)], [2, 1]),
        ([(1, fork_join_fold.MAX_KILOBYTES - 1), (1, 1), (1, 1)], [2, 1]),
        ([(50, 0), (1, 0)], [1, 1]),
    ],
    ids=["packs", "items", "kilobytes", "one that is larger"],
)
def test_what_one_fold_takes_is_bounded(packs: list[tuple[int, int]], sizes: list[int]) -> None:
    """D1: in packs, items and kilobytes; a pack that is too large is folded alone."""
    ids = [PackId("q", "e", items, kilobytes, "id") for items, kilobytes in packs]

    parts = list(fork_join_fold._parts(ids, 20, fork_join_fold.MAX_PACKS))

    assert [len(part) for part in parts] == sizes
    assert [pack for part in parts for pack in part] == ids


def test_packs_are_put_together_up_to_what_a_transaction_takes(world: World) -> None:
    """Three packs of 15 under one epoch, 20 at a time: each is folded alone."""

    def body() -> None:
        for pack in "abc":
            marks = [Mark(f"{pack}{i}") for i in range(15)]
            TALLIES.insert_in_transaction(world.clients, "t", *marks)

    with world.clients.context():
        transact(body)
    world.settle()

    with world.context():
        assert batches("t") == [15, 15, 15]


@pytest.mark.parametrize("queue", [TALLIES, GUARDED], ids=lambda queue: queue.name)
def test_two_keys_in_one_epoch_are_folded_each_for_itself(
    world: World, queue: ForkJoin[Mark]
) -> None:
    """Their hashes are equal, once in four thousand million."""
    put(world, "t", "a", queue=queue)
    with world.context():
        [mine] = packs()
        pack = replace(PackId.parse(mine.key.id()), id="b" * 16)
        WorkPack(key=pack_key(pack.text), batch_key="u", items='[{"label": "b"}]').put()
    world.settle()

    with world.context():
        assert (tallied("t"), tallied("u")) == (Counter("a"), Counter("b"))


def test_a_hot_key_may_have_several_batches_open(world: World) -> None:
    """D1: sharded epochs; each is folded, one after the other."""
    put(world, "t", *[f"i{i}" for i in range(30)], queue=SHARDED)
    assert len(tasks(world)) == 3
    world.settle()

    with world.context():
        assert sum(batches("t")) == 30
        assert len(batches("t")) == 3


def test_what_is_committed_together_goes_into_one_batch(world: World) -> None:
    """One entity a commit, whichever of a hot key's batches it lands in."""
    with world.clients.context():
        SHARDED.insert_each(world.clients, [("t", Mark(f"i{i}")) for i in range(30)])
    with world.context():
        assert len(packs()) == 1
    world.settle()

    with world.context():
        assert batches("t") == [30]


LIMITS: list[tuple[str, Any, Any]] = [
    ("period_s", [0, 3_600], [-0.001, 3_600.001]),
    ("max_batch_size", [1, 10_000], [0, 10_001]),
    ("shards", [1, 100], [0, 101]),
    ("target_latency_s", [0.001, None], [0, -1, float("nan")]),
]


@pytest.mark.parametrize(("option", "good", "bad"), LIMITS)
def test_a_queue_that_cannot_be_is_refused(option: str, good: Any, bad: Any) -> None:
    """When it is declared; what is as much as it may be is taken."""

    def declare(name: str = "ok", **options: Any) -> ForkJoin[Mark]:
        return ForkJoin(name, Mark, tally, queue="fork-join", **{"period_s": 1.0, **options})

    for value in good:
        declare(**{option: value})
    for value in bad:
        with pytest.raises(ValueError, match=option):
            declare(**{option: value})
    for name in ("", "x", "Upper", "1st", "a|b", "x" * 62):
        with pytest.raises(ValueError, match="name"):
            declare(name)
    assert declare("x" * 61).name == "x" * 61


@pytest.mark.parametrize(("queue", "most"), [(TALLIES, 5), (GUARDED, 4)])
def test_a_fold_takes_as_many_round_trips_as_the_documents_say(
    world: World, queue: ForkJoin[Mark], most: int
) -> None:
    """A guarded one needs no transaction (docs/concepts/fork-join.md)."""
    put(world, "t", "a", "b", queue=queue)
    world.clock.sleep(1.1)
    before = world.clients.meter.total()
    world.deliver(tasks(world)[0].name)
    spent = world.clients.meter.total() - before

    # The delivery is an operation of the queue.
    assert 3 <= spent.round_trips - spent.task_operations <= most
