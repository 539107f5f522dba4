"""Weak productions on the services, with a fault at each remote call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.outbox import entities as outbox
from rollforward.streams import entities as streams
from rollforward.streams.model.errors import BackpressureError
from rollforward.tasks import Retry, Unavailable
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import dead, delete_rows, stream_world
from tests.rollforward.streams.scenarios.weak_sources import (
    ACTED,
    COLOURS,
    acted,
    colours,
    heard,
    is_drained,
)

IDS = ("a", "b", "c")


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    ACTED.clear()
    yield stream_world(services, COLOURS)
    ACTED.clear()


class Coloured:
    """Three records, some of them twice, one that is poison, and one that comes to nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.begun:
            self.begun.add(tag)
            with self.world.plan.unwatched():
                delete_rows(streams, outbox)
            ACTED.clear()
        bad, nothing = colours("p", colour="poison"), colours("n", colour="")
        for records in ([*colours(*IDS[:2]), *bad], [*colours(*IDS[1:]), *bad, *nothing]):
            try:
                COLOURS.push(self.world.clients, "in", records)
            except (Retry, Unavailable, BackpressureError) as error:
                raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]

    def is_done(self, tag: str) -> bool:
        return is_drained() and heard(self.world.clients).total() == 2 * len(IDS) and dead() == 1

    def check(self, tag: str, fault: str) -> None:
        assert heard(self.world.clients) == {1: 2, 2: 2, 3: 2}, fault
        assert dead() == 1, fault
        assert set(acted()) == set(IDS), fault
        assert all(len(names) == 1 for names in acted().values()), fault
        assert len({name for names in acted().values() for name in names}) == len(IDS), fault
        assert COLOURS.status(self.world.clients).computations["total"].records == len(IDS), fault


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_doubled_behind_weak_stages_with_a_fault_at_any_call(
    world: World, kind: str
) -> None:
    """G14: strong stages count once, in front and behind; the sink acts at least once."""
    Explorer(world, Coloured(world)).explore([kind])
