"""Patterns whose reads are cut short: nothing is lost or doubled, and no sweep is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from rollforward.datastore import queries
from rollforward.fork_join import ForkJoin
from rollforward.pull_queues import OLDEST, PullQueue
from rollforward.pull_queues.entities import items_of
from rollforward.testing.short_answers import shortened
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import (
    GUARDED,
    TALLIES,
    Mark,
    packs,
    put,
    tallied,
    tally_world,
)
from tests.rollforward.streams.harness import WEBLOG, hits, is_drained, stream_world, windows

SEEDS = pytest.mark.parametrize("seed", range(2))
WORK = PullQueue("work", max_deliveries=2, partitions=2)
PAYLOADS = [f"item-{number:02d}" for number in range(60)]


@SEEDS
def test_items_of_a_pull_queue_are_leased_and_acked_once(services: Services, seed: int) -> None:
    """P1: by worker after worker, by tag, and when they are dead letters."""
    world = World(services, pull_queues=[WORK])
    here = world.clients
    with here.context(), shortened(world, seed) as answers:
        for payload in PAYLOADS:
            WORK.add(here, payload, tag=payload[-1])
        [oldest] = WORK.lease(here, tag=OLDEST)
        leases = WORK.lease(here, limit=1000)
        assert sorted(lease.payload for lease in [oldest, *leases]) == PAYLOADS
        assert WORK.has_items("0")
        world.clock.sleep(61)
        assert len(WORK.lease(here, limit=1000)) == len(PAYLOADS)
        world.clock.sleep(61)
        assert WORK.lease(here, limit=1000) == []
        letters = WORK.dead_letters()
        assert sorted(letter.payload for letter in letters) == PAYLOADS
        for letter in letters:
            WORK.replay(here, letter.id)
        assert WORK.ack(here, WORK.lease(here, limit=1000)) == []

        assert items_of("work").fetch(keys_only=True) == []

    assert answers.cut
    assert answers.empty
    assert answers.deferred


@SEEDS
@pytest.mark.parametrize("queue", [TALLIES, GUARDED], ids=["transaction", "guarded"])
def test_items_of_a_fork_join_queue_are_folded_once(
    services: Services, seed: int, queue: ForkJoin[Mark]
) -> None:
    """D1: of many packs under one epoch, by guarded folds as by transactions."""
    world = tally_world(services)
    with shortened(world, seed) as answers:
        put(world, "t", *PAYLOADS, queue=queue)
        world.settle()
        with world.context():
            assert tallied("t") == Counter(PAYLOADS)
            assert packs() == []

    assert answers.cut
    assert answers.empty
    assert answers.deferred


def play_a_stream(services: Services, seed: int, watch: Callable[[World], None]) -> None:
    """Push a burst of records, many chunks of them, and work on all while answers are cut."""
    world = stream_world(services)
    with shortened(world, seed) as answers:
        with world.context():
            for minute in range(8):
                pushed = [(f"{minute}-{i}", "/", minute * 60_000 + i) for i in range(5)]
                WEBLOG.push(world.clients, "requests", hits(*pushed))
            WEBLOG.close(world.clients, "requests")
        world.settle()
    watch(world)
    assert answers.empty


@SEEDS
def test_records_of_a_stream_count_once(services: Services, seed: int) -> None:
    """G1: a watermark passes no chunk that an answer has left out, and late counts nobody."""

    def watch(world: World) -> None:
        assert windows(world) == {str(minute * 60_000): [["/", 5]] for minute in range(8)}
        with world.context():
            assert is_drained()
            assert WEBLOG.status(world.clients).computations["hits"].late == 0

    play_a_stream(services, seed, watch)


def test_a_stream_that_takes_a_part_for_the_whole_is_found(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: nothing found passes for an empty inbox, and its records are lost."""
    monkeypatch.setattr(queries, "NOT_FINISHED", None)

    with pytest.raises(AssertionError):
        test_records_of_a_stream_count_once(services, 0)
