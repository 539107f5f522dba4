"""Numbers of shards at their bounds, without a store: when they grow, wait and shrink."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.counters import resize
from rollforward.counters.entities import (
    CounterConfig,
    CounterShard,
    config_key,
    due_text,
    shard_key,
)
from rollforward.counters.resize import MAX_CALM_S, Resizer
from rollforward.counters.shard_maps import ShardMap, ShardMaps, ShardSettings
from tests.infra.memory_datastore import Memory, offline

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.
SETTINGS = ShardSettings("likes", min_shards=3, max_shards=16, calm_s=30.0)
CLIENTS: Any = SimpleNamespace(
    clock=SimpleNamespace(now=lambda: NOON.replace(tzinfo=datetime.UTC)), random=random.Random(1)
)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(resize, "transact", lambda body: body())
    with offline(), Memory():
        yield


def after(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def due(seconds: float) -> str:
    return due_text("likes", after(seconds))


def put_config(shards: int, read_shards: int | None = None, **values: Any) -> ShardMap:
    """Store a counter with a one in each of its shards; return its map."""
    read_shards = read_shards or shards
    given = {"generation": 7, "calm_s": 30.0, **values}
    row = CounterConfig(
        key=config_key("likes", "a"), shards=shards, read_shards=read_shards, **given
    )
    row.put()
    for number in range(read_shards):
        CounterShard(key=shard_key("likes", "a", number), count=1).put()
    return ShardMaps(SETTINGS).learn(CLIENTS, "a", row)


def config() -> Any:
    return config_key("likes", "a").get()


def counts() -> list[int]:
    """Return what the shards hold that are to be read."""
    shards = [shard_key("likes", "a", number).get() for number in range(config().read_shards)]
    return [shard.count for shard in shards]


@pytest.mark.parametrize(
    ("shards", "is_rush", "grown"),
    [(3, False, 6), (3, True, 12), (8, False, 16), (9, False, 16), (5, True, 16), (16, True, 16)],
)
def test_shards_double_or_quadruple_up_to_their_maximum(
    shards: int, is_rush: bool, grown: int
) -> None:
    """E2: new ones are empty, and each change has a generation of its own."""
    shard_map = put_config(shards)
    Resizer(ShardMaps(SETTINGS)).grow(CLIENTS, shard_map, is_rush=is_rush)

    assert (config().shards, config().read_shards) == (grown, grown)
    assert counts() == [1] * shards + [0] * (grown - shards)
    assert config().generation == (7 if grown == shards else 8)
    assert config().due == due(30)


@pytest.mark.parametrize("values", [{"generation": 6}, {"generation": 8}, {"is_pinned": True}])
def test_a_counter_that_has_changed_meanwhile_neither_grows_nor_waits(
    values: dict[str, Any],
) -> None:
    """E2: by another process, or by hand."""
    shard_map = put_config(4, due=due(1))
    put_config(4, due=due(1), **values)
    resizer = Resizer(ShardMaps(SETTINGS))
    resizer.grow(CLIENTS, shard_map, is_rush=False)
    if "generation" in values:
        resizer.keep(CLIENTS, shard_map)

    assert (config().shards, config().due) == (4, due(1))


@pytest.mark.parametrize(
    ("calm_s", "shrunk_s", "then_s", "is_soon"),
    [
        *((30, -59.9, 60, True), (30, -60, 30, False), (MAX_CALM_S, 0, MAX_CALM_S, True)),
        (MAX_CALM_S / 2 + 1, 0, MAX_CALM_S, True),
    ],
)
def test_who_grows_soon_after_shrinking_waits_twice_as_long_and_at_most_an_hour(
    calm_s: float, shrunk_s: float, then_s: float, is_soon: bool
) -> None:
    """E2: soon is within twice the time that it was calm for."""
    shard_map = put_config(3, calm_s=calm_s, shrunk_at=after(shrunk_s))
    Resizer(ShardMaps(SETTINGS)).grow(CLIENTS, shard_map, is_rush=False)

    assert (config().calm_s, config().due) == (then_s, due(then_s))
    assert (config().shrunk_at is None) == is_soon


@pytest.mark.parametrize(
    ("due_s", "read_shards", "then_s"), [(14.9, 4, 30), (15, 4, 15), (-1, 4, 30), (1, 5, 1)]
)
def test_shrinking_is_put_off_when_half_of_its_time_has_passed(
    due_s: float, read_shards: int, then_s: float
) -> None:
    """E2: not while shards are drained, which is due at once."""
    shard_map = put_config(4, read_shards, due=due(due_s))
    Resizer(ShardMaps(SETTINGS)).keep(CLIENTS, shard_map)

    assert config().due == due(then_s)


@pytest.mark.parametrize(
    ("shards", "values", "then"),
    [
        (8, {"due": due(0)}, 4),
        (8, {"due": due(0.001)}, 8),
        (8, {"due": due(0), "is_pinned": True}, 8),
        (8, {"due": None}, 8),
        (5, {"due": due(0)}, 3),
        (3, {"due": due(0)}, 3),
    ],
)
def test_a_counter_that_is_due_has_half_its_shards_down_to_its_minimum(
    shards: int, values: dict[str, Any], then: int
) -> None:
    """E2: the others are drained by the same task, and their counts are kept."""
    put_config(shards, **values)

    assert not Resizer(ShardMaps(SETTINGS)).settle(CLIENTS, "a")

    assert (config().shards, config().read_shards, sum(counts())) == (then, then, shards)
    assert (config().shrunk_at == NOON) == (then < shards)
    if then < shards:
        assert config().due == (due(30) if then > 3 else None)


@pytest.mark.parametrize(
    ("calm_s", "shrunk_at", "then_s"), [(240, NOON, 120), (240, None, 240), (40, NOON, 30)]
)
def test_a_second_shrinking_halves_the_time_down_to_the_declared_one(
    calm_s: float, shrunk_at: datetime.datetime | None, then_s: float
) -> None:
    """E2: the one before was right."""
    put_config(8, due=due(0), calm_s=calm_s, shrunk_at=shrunk_at)
    Resizer(ShardMaps(SETTINGS)).settle(CLIENTS, "a")

    assert config().calm_s == then_s


@pytest.mark.parametrize(("extra", "left"), [(2, [2, 2, 1, 1]), (3, [1, 2, 2, 1, 1])])
def test_a_task_drains_so_many_shards_and_says_if_any_is_left(
    monkeypatch: pytest.MonkeyPatch, extra: int, left: list[int]
) -> None:
    """E2: the highest first, spread over those that remain."""
    monkeypatch.setattr(resize, "MAX_DRAINED", 2)
    put_config(4, 4 + extra, due=due(0))

    assert Resizer(ShardMaps(SETTINGS)).settle(CLIENTS, "a") == (len(left) > 4)
    assert counts() == left
