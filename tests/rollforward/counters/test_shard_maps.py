"""Shard maps in memory: bounded, with their true age, and only hints."""

from __future__ import annotations

import datetime
import random
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.counters import shard_maps as counter_shard_maps
from rollforward.counters.contention import BUSY, CALM, GROW, RUSH, Contention
from rollforward.counters.entities import CounterConfig
from rollforward.counters.shard_maps import ShardMaps, ShardSettings
from rollforward.counters.totals import _groups
from tests.infra.memory_datastore import offline

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def shard_maps() -> ShardMaps:
    return ShardMaps(ShardSettings("likes", 1, 64, 60))


@pytest.fixture
def clients() -> Any:
    return SimpleNamespace(clock=SimpleNamespace(now=lambda: NOON), random=random.Random(1))


def row(shards: int, generation: int = 1, **options: Any) -> CounterConfig:
    return CounterConfig(shards=shards, read_shards=shards, generation=generation, **options)


def test_each_shard_is_written_in_its_turn(shard_maps: ShardMaps, clients: Any) -> None:
    """A process comes back to a shard when it has been at all the others."""
    with offline():
        shard_map = shard_maps.learn(clients, "a", row(5))
        relearned = shard_maps.learn(clients, "a", row(5))
    turns = [shard_map.next_shard() for _ in range(5)] + [relearned.next_shard() for _ in range(5)]

    assert sorted(turns[:5]) == sorted(turns[5:]) == list(range(5))
    assert turns[:5] == turns[5:]


def test_what_was_read_before_does_not_replace_what_was_read_since(
    shard_maps: ShardMaps, clients: Any
) -> None:
    """Of two threads the slower one has read the older row. A recreated row is learned."""
    with offline():
        shard_maps.learn(clients, "a", row(8, generation=3))
        assert shard_maps.learn(clients, "a", row(4, generation=2)).shards == 8
        shard_maps.forget(["a"])
        assert shard_maps.learn(clients, "a", row(1, generation=1)).shards == 1


def test_a_row_with_as_many_shards_is_learned_anew(shard_maps: ShardMaps) -> None:
    """E5: it may be pinned by now and never due, and the map is as old as its last read."""
    now = NOON
    clock = SimpleNamespace(now=lambda: now)
    machine: Any = SimpleNamespace(clock=clock, random=random.Random(1))
    with offline():
        shard_maps.learn(machine, "a", row(4, due="likes|2030"))
        now += datetime.timedelta(minutes=1)
        shard_maps.learn(machine, "a", row(4, is_pinned=True))

    known = shard_maps._known["a"]
    assert (known.is_pinned, known.due, known.read_at) == (True, None, now.replace(tzinfo=None))


def test_one_thread_of_a_process_changes_a_counter_at_a_time(shard_maps: ShardMaps) -> None:
    """Others leave it be, and change another one; it can be changed again afterwards."""
    with (
        shard_maps.changing("a") as is_first,
        shard_maps.changing("a") as second,
        shard_maps.changing("b") as other,
    ):
        pass
    with shard_maps.changing("a") as is_free:
        pass

    assert (is_first, second, other, is_free) == (True, False, True, True)


def test_what_is_remembered_is_bounded(
    shard_maps: ShardMaps, clients: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters that were met longest ago go first."""
    monkeypatch.setattr(counter_shard_maps, "MAX_REMEMBERED", 3)
    with offline():
        for key in "abcd":
            shard_maps.learn(clients, key, row(7))
            shard_maps.note_read(key, 9)

    assert list(shard_maps._known) == list(shard_maps._read) == ["b", "c", "d"]
    assert [shard_maps.expected_shards(key) for key in "abz"] == [1, 9, 1]


def commits(*seconds: float, lost: int = 0) -> str | None:
    """Return the verdict on commits of a given duration, and some that lost their race."""
    contention = Contention()
    for took_s in seconds:
        contention.record(took_s)
    for _ in range(lost):
        contention.record(0.001, is_lost=True)
    return contention.verdict()


def test_verdicts_follow_from_lost_races_and_from_waits() -> None:
    """Too few commits say nothing; a rush is seen in three."""
    quick, slow = [0.004] * 100, [0.9]

    assert commits(*quick[:19]) is None
    assert commits(*quick) == CALM
    assert commits(*quick, lost=2) == BUSY
    assert commits(*quick, lost=5) == GROW
    assert commits(*quick, *slow * 6) == GROW
    assert commits(*quick[:3], *slow * 4) is None
    assert commits(*quick[:3], *slow * 5) == GROW
    assert commits(*quick[:3], lost=3) == RUSH


@pytest.mark.parametrize(
    ("commits", "lost", "waited", "verdict"),
    [
        *((19, 0, 0, None), (20, 0, 0, CALM), (101, 0, 1, CALM), (100, 0, 1, BUSY)),
        *((20, 0, 4, BUSY), (20, 0, 5, GROW), (125, 0, 5, BUSY), (124, 0, 5, GROW)),
        *((20, 2, 0, BUSY), (20, 3, 0, GROW), (75, 3, 0, BUSY), (20, 2, 3, GROW)),
        *((10, 4, 0, GROW), (10, 5, 0, RUSH), (2, 2, 0, None), (3, 3, 0, RUSH)),
    ],
)
def test_a_verdict_changes_at_its_bounds(
    commits: int, lost: int, waited: int, verdict: str | None
) -> None:
    """Of four in a hundred, one in a hundred and two in five none is more than itself."""
    contention = Contention(commits, lost, waited)

    assert contention.verdict() == verdict
    assert (contention.commits == 0) == (verdict is not None)


@pytest.mark.parametrize(("usual_s", "wait_s"), [(0.002, 0.04), (0.008, 0.04), (0.02, 0.1)])
def test_a_wait_is_longer_than_forty_milliseconds_and_than_five_commits(
    usual_s: float, wait_s: float
) -> None:
    """As long as that is none yet."""
    waits = [Contention(usual_s=usual_s).record(wait_s + more_s) for more_s in (0, 0.001)]

    assert waits == [False, True]


def test_a_service_that_is_slow_for_all_is_no_conflict_for_long() -> None:
    """A commit waits when it takes much longer than others do: they all take longer now."""
    contention = Contention()
    seen = []
    for seconds in (0.004, 0.3):
        for _ in range(200):
            contention.record(seconds)
            seen.append(contention.verdict())

    assert seen.count(RUSH) == 0
    assert seen.count(GROW) <= 2
    assert [verdict for verdict in seen if verdict][-1] == CALM


def test_a_clock_that_was_put_back_keeps_no_map_for_longer(
    shard_maps: ShardMaps, clients: Any
) -> None:
    """E5: else a process would write to the old number of shards until its clock is there again."""
    with offline():
        shard_maps.learn(clients, "a", row(1))
    read_at = NOON.replace(tzinfo=None)

    ages_s = (0, 4, 6, -4, -6, -3_600)
    fresh = [shard_maps._is_current("a", read_at + datetime.timedelta(seconds=s)) for s in ages_s]
    assert fresh == [True, True, False, True, False, False]


def test_one_thread_at_a_time_changes_a_counter(shard_maps: ShardMaps) -> None:
    """E5: also after another one has come and left; a second counter does not wait."""
    with shard_maps.changing("a") as is_first, shard_maps.changing("b") as is_beside:
        for _ in range(2):
            with shard_maps.changing("a") as is_second:
                assert (is_first, is_beside, is_second) == (True, True, False)
    with shard_maps.changing("a") as is_first:
        assert is_first


def test_contention_is_noted_anew_with_each_number_of_shards(
    shard_maps: ShardMaps, clients: Any
) -> None:
    """E5: conflicts of one shard say nothing of eight; a second look at a row forgets none."""
    with offline():
        first = shard_maps.learn(clients, "a", row(1))
        again = shard_maps.learn(clients, "a", row(1))
        grown = shard_maps.learn(clients, "a", row(8, generation=2))

    assert again.contention is first.contention
    assert grown.contention is not first.contention


def test_a_lookup_takes_whole_counters_up_to_a_thousand_keys() -> None:
    """E3: a counter has a key for its row and for each shard; one that has more is alone."""
    expected = {"a": 499, "b": 499, "c": 500, "d": 498, "e": 0, "f": 2_000, "g": 1}

    assert [*_groups(expected)] == [["a", "b"], ["c", "d"], ["e"], ["f"], ["g"]]
