"""Counters that another version of the code keeps in another way. Invariant E8."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rollforward.counters import Counter
from rollforward.counters.entities import CounterTotal
from rollforward.counters.resize import Resizer
from rollforward.counters.shard_maps import ShardMaps
from rollforward.datastore import lookup
from rollforward.testing.injection import REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.counters.counts import (
    BESIDE,
    HITS,
    LIKES,
    WAYS,
    add,
    another_process,
    config,
    resize,
    stored,
    total,
)
from tests.rollforward.datastore.counters import break_call

pytestmark = WAYS

# What another version of the app has declared under the same name as HITS.
EXACT_HITS = Counter("hits", queue="default")
VERSIONS = (HITS, EXACT_HITS)


def gathered_rows(world: World) -> dict[str, int]:
    """Return the gathered totals that are stored, by the key of their counter."""
    with world.context():
        names = [(row.key.id().split("|", 2), row.count) for row in CounterTotal.query()]
    return {key: count for (_, name, key), count in names if name not in BESIDE and key != "a2"}


def move(world: World, counter: Counter) -> None:
    """Let a process that keeps the counter in this way move its count there."""
    add(world, "a", 0, counter=counter, clients=another_process(world))
    world.settle()


def test_a_counter_that_becomes_gathered_keeps_its_total(world: World) -> None:
    """E8: before its first fold, and after it; what other counters have stays where it is."""
    add(world, "a", 5, counter=EXACT_HITS)
    add(world, "b", 3, counter=EXACT_HITS)
    add(world, "a", 1, counter=LIKES)
    resize(world, "a", 3, counter=EXACT_HITS)
    total_before = total(world, "a", HITS)

    add(world, "a", 2, counter=HITS)
    world.settle()

    assert total_before == 5
    assert (total(world, "a", HITS), total(world, "b", HITS)) == (7, 3)
    assert gathered_rows(world) == {"a": 7}
    assert config(world, "a", EXACT_HITS) is None
    assert (total(world, "a", LIKES), total(world, "never", HITS)) == (1, 0)


def test_a_counter_that_becomes_gathered_amid_a_drain_keeps_its_total(world: World) -> None:
    """E8: shards that are read and not written to any more are moved, too."""
    resize(world, "a", 4, counter=EXACT_HITS)
    for _ in range(8):
        add(world, "a", counter=EXACT_HITS)
    resize(world, "a", 1, counter=EXACT_HITS)
    world.engine.reset()  # The task that drains them is lost.
    row = config(world, "a", EXACT_HITS)
    assert (row.shards, row.read_shards) == (1, 4)

    add(world, "a", 2, counter=HITS)
    world.settle()

    assert gathered_rows(world) == {"a": 10}
    assert stored(world, "a") == {}


def test_a_counter_that_becomes_exact_keeps_its_total(world: World) -> None:
    """E8: before its first increment, and after it."""
    for key, delta in (("a", 5), ("b", 3)):
        add(world, key, delta, counter=HITS)
    world.settle()
    total_before = total(world, "a", EXACT_HITS)

    add(world, "a", 2, counter=EXACT_HITS)

    assert total_before == 5
    assert (total(world, "a", EXACT_HITS), total(world, "b", EXACT_HITS)) == (7, 3)
    assert gathered_rows(world) == {"b": 3}
    assert total(world, "never", EXACT_HITS) == 0


@pytest.mark.parametrize("seed", range(3))
def test_versions_that_keep_a_counter_in_two_ways_count_together(world: World, seed: int) -> None:
    """E8: both serve side by side, each moves the count, and each reads what both have counted."""
    plan = random.Random(seed)
    processes = [another_process(world), another_process(world)]
    counted = 0
    for _ in range(12):
        counter, delta = plan.choice(VERSIONS), plan.randrange(-5, 9)
        add(world, "a", delta, counter=counter, clients=plan.choice(processes))
        counted += delta
        if counter is HITS:
            world.settle()
        assert [total(world, "a", reader) for reader in VERSIONS] == [counted, counted]
        assert len(gathered_rows(world)) + (config(world, "a", EXACT_HITS) is not None) == 1


@pytest.mark.parametrize(("writer", "before"), [(HITS, EXACT_HITS), (EXACT_HITS, HITS)])
def test_a_count_is_moved_once_although_the_reply_is_lost(
    world: World, writer: Counter, before: Counter
) -> None:
    """E8: the commit that moves it took effect, and its caller does not know."""
    add(world, "a", 5, counter=before)
    world.settle()
    if writer is HITS:
        add(world, "a", 2, counter=HITS)
    break_call(world, "Commit", REPLY_LOST)

    with world.plan.watched():
        if writer is EXACT_HITS:
            add(world, "a", 2, counter=EXACT_HITS)
        world.settle()

    assert world.plan.fired
    assert [total(world, "a", reader) for reader in VERSIONS] == [7, 7]


def test_a_total_that_moves_while_it_is_read_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: the reader finds nothing in one place, then the count goes there from the other."""
    add(world, "a", 5, counter=EXACT_HITS)
    look_up, moves = lookup.lookup, [HITS, EXACT_HITS]

    def moving(client: Any, keys: Any, **options: Any) -> Any:
        answer = look_up(client, keys, **options)
        if moves:
            in_threads(lambda: move(world, moves.pop(0)))
        return answer

    monkeypatch.setattr(lookup, "lookup", moving)

    assert total(world, "a", HITS) == 5
    assert moves == []


def test_a_count_that_moves_between_the_parts_of_a_lookup_is_not_read_as_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: neither part finds it, where the service has no snapshots."""
    add(world, "a", 5, counter=EXACT_HITS)
    look_up, moves = lookup.lookup, [HITS]

    def in_parts(client: Any, keys: Any, **options: Any) -> lookup.Lookup:
        if not moves or len(keys) < 2:
            return look_up(client, keys, **options)
        counter, first = moves.pop(), look_up(client, keys[:1])
        in_threads(lambda: move(world, counter))
        return lookup.Lookup(
            [*first.results, *look_up(client, keys[1:]).results], None, is_one_moment=False
        )

    monkeypatch.setattr(lookup, "lookup", in_parts)

    assert total(world, "a", HITS) == 5
    assert moves == []


def test_a_process_that_knows_shards_that_are_gone_goes_on(world: World) -> None:
    """E8: it cannot grow them; its next increment finds where to write."""
    add(world, "a", 5, counter=EXACT_HITS)
    shard_maps = ShardMaps.of(world.clients, EXACT_HITS._settings)
    with world.context():
        shard_map = shard_maps.get(world.clients, ["a"])["a"]
    add(world, "a", 1, counter=HITS)
    world.settle()

    with world.context(), pytest.raises(Exception, match="no shards any more"):
        Resizer(shard_maps).grow(world.clients, shard_map, is_rush=False)
    with world.context():
        assert not Resizer(shard_maps).settle(world.clients, "a")
    add(world, "a", 1, counter=EXACT_HITS)

    assert total(world, "a", EXACT_HITS) == 7
    assert sum(stored(world, "a").values()) == 7
