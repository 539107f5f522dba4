"""Loads of clicks: what is accepted is counted, in each way that loses nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from models.counters import ClickWriter, loads_key
from pipelines.counters import counters, load
from pipelines.counters.load import ClickLoad, ClickStep
from pipelines.loads import GIVEN_UP_AFTER_S, LoadGoesOnError
from rollforward.testing.injection import CRASH_AFTER, REPLY_LOST
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World

LOAD, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32
EXACT = ["one-row", "sharded", "gathered"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step of a writer be slow: it would make fewer clicks before the load's end.

    The load's clock is that of the test, and a step's time that of the machine, which may be busy.
    """
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: 1.0))


def load_of(world: World, id_: str = LOAD, **rest: Any) -> ClickLoad:
    """Return a load of 2 writers for each way, with 20 clicks together."""
    started_ms = round(world.clock.time_s * 1000)
    fields = {"ways": EXACT, "rate": 20, "seconds": 1, **rest}
    return ClickLoad(id_, started_ms=started_ms, **fields)


def start(world: World, wanted: ClickLoad) -> bool:
    with world.clients.context():
        return load.start(world.clients, wanted)


def books(world: World) -> dict[str, tuple[int, int]]:
    """Return what was accepted and what is counted, by way."""
    with world.context():
        counters.IN_MEMORY.flush(world.clients)
        status, sums = load.status(world.clients), counters.sums(world.clients)
    return {way: (status.accepted(way), sums.by_way[way]) for way in counters.WAYS}


def test_a_load_is_counted_in_each_way(world: World) -> None:
    """Twenty clicks each, at their time; the load is over when all are made."""
    assert start(world, load_of(world, ways=list(counters.WAYS)))
    world.settle()
    books(world)
    world.settle()

    assert books(world) == dict.fromkeys(counters.WAYS, (20, 20))
    with world.context():
        status = load.status(world.clients)
    assert not status.is_moving
    assert status.ways["sharded"].p95_ms is not None
    assert sum(clicks for clicks, _ in status.ways["sharded"].seconds.values()) == 20


@pytest.mark.parametrize("seed", range(2))
def test_a_load_counts_once_with_every_task_delivered_twice(world: World, seed: int) -> None:
    """In a shuffled order."""
    world.doubles, world.order = True, random.Random(seed)
    start(world, load_of(world))
    world.settle()

    assert {way: books(world)[way] for way in EXACT} == dict.fromkeys(EXACT, (20, 20))


class ClickScenario:
    """A load of clicks, to be played under faults; each begins where the one before ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.expected = 0
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        id_ = f"{int(tag[1:]):032x}"
        if tag not in self.begun:
            self.begun.add(tag)
            self.expected += 20
        load.start(self.world.clients, load_of(self.world, id_, ways=["sharded", "gathered"]))

    def is_done(self, tag: str) -> bool:
        is_moving = load.status(self.world.clients).is_moving
        sums = counters.sums(self.world.clients).by_way
        status = load.status(self.world.clients)
        return not is_moving and sums["gathered"] >= status.accepted("gathered")

    def check(self, tag: str, fault: str) -> None:
        status, sums = load.status(self.world.clients), counters.sums(self.world.clients)
        for way in ("sharded", "gathered"):
            assert sums.by_way[way] == status.accepted(way), f"{way}: {fault}"


@pytest.mark.parametrize("kind", [REPLY_LOST, CRASH_AFTER])
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_what_is_accepted_is_counted_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """A step that comes again after the load is over finishes what it had begun."""
    scenario = ClickScenario(world)

    assert Explorer(world, scenario).explore([kind])


def test_there_is_one_load_at_a_time(world: World) -> None:
    """A second one is refused until the first is over; the same one is begun once."""
    assert start(world, load_of(world))
    assert not start(world, load_of(world))
    with pytest.raises(LoadGoesOnError):
        start(world, load_of(world, OTHER))
    world.settle()

    assert start(world, load_of(world, OTHER))
    world.settle()
    assert books(world)["sharded"] == (40, 40)


def test_a_load_whose_writers_died_may_be_replaced(world: World) -> None:
    """What a late writer counts is accepted all the same; and rows do not pile up."""
    start(world, load_of(world))
    world.deliver_due()
    world.clock.sleep(1 + GIVEN_UP_AFTER_S + 1)
    assert start(world, load_of(world, OTHER))
    world.settle()
    assert start(world, load_of(world, THIRD))
    world.settle()

    found = books(world)
    assert all(found[way][0] == found[way][1] for way in EXACT)
    with world.context():
        ids = {row.key.id().split("|")[0] for row in ClickWriter.query()}
        assert LOAD not in ids
        assert loads_key().get().past["id"] == OTHER


def test_a_step_of_another_way_does_nothing(world: World) -> None:
    """A way that this version does not know."""
    with world.clients.context():
        load.click.work(world.clients, ClickStep(load_of(world), "by-heart", 0))

    assert books(world)["sharded"] == (0, 0)


def test_clicks_of_a_step_that_comes_after_the_next_load_began_are_accepted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step counts its clicks and is killed; its retry comes when the next load is under way."""
    start(world, load_of(world))
    record = load._record

    def dies(*args: Any) -> None:
        raise RuntimeError("its clicks are counted, and not recorded")

    monkeypatch.setattr(load, "_record", dies)
    world.deliver_due()
    monkeypatch.setattr(load, "_record", record)
    world.clock.sleep(1 + GIVEN_UP_AFTER_S + 1)
    assert start(world, load_of(world, OTHER))
    world.settle()

    for way, (accepted, counted) in books(world).items():
        assert accepted == counted, way
