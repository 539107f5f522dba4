"""Loads in tests: how one is made, started and played, and both sides of its sum."""

from __future__ import annotations

from typing import Any

from pipelines.sums import load
from pipelines.sums.load import Load
from pipelines.sums.reconciliation import reconcile
from pipelines.sums.sums import Count
from pipelines.sums.tally_buffer import tally_buffer
from tests.infra.world import World

LOAD, OTHER = "a" * 32, "b" * 32


def load_of(world: World, name: str = "s", id_: str = LOAD, **rest: Any) -> Load:
    """Return a load of 3 writers with 5 items each."""
    fields = {"rate": 15, "writers": 3, "seconds": 1, "is_random": True, **rest}
    return Load(id_, name, started_ms=round(world.clock.time_s * 1000), **fields)


def start_load(world: World, wanted: Load) -> bool:
    with world.clients.context():
        return load.start(world.clients, wanted)


def both_sides(world: World, name: str = "s") -> tuple[Count, Count, int]:
    """Return what was accepted, what is folded, and how much waits."""
    with world.context():
        tally_buffer(world.clients).flusher.flush()
        found = reconcile(world.clients, name)
    return found.accepted, found.status.folded, found.status.waiting


class LoadScenario:
    """Two writers with two items each, to be played under faults."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, tag: str) -> None:
        load.start(self.world.clients, load_of(self.world, tag, rate=4, writers=2))

    def is_done(self, tag: str) -> bool:
        found = reconcile(self.world.clients, tag)
        return found.load.is_over and found.status.waiting == 0

    def check(self, tag: str, fault: str) -> None:
        found = reconcile(self.world.clients, tag)
        assert found.load.load is not None
        assert found.accepted == found.load.load.expected, fault
        assert found.status.folded == found.load.load.expected, fault
