"""Streams on the services, with a fault at each remote call, and deliveries in every disorder."""

from __future__ import annotations

import random

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from models import streams
from pipelines.streams import Pushed
from pipelines.tasks import Retry, Unavailable
from tests.explorer import Explorer
from tests.faults import KINDS, OVERLAP
from tests.pipelines.streams.harness import WEBLOG, dead, hits, is_drained, windows, windows_here
from tests.world import World

FIRST = hits(("a", "/", 1_000), ("b", "/x", 2_000), ("c", "/", 50_000))
POISON = hits(("p", "/", 51_000), poison=1)
LAST = hits(("d", "/", 61_000))
TRUTH = {"0": [["/", 2], ["/x", 1]], "60000": [["/", 1]]}


class WebLog:
    """Records that come twice, one that is poison, and the end of the log."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.begun:
            self.begun.add(tag)
            self.forget()
        for records in ([*FIRST, *POISON], [*FIRST[1:], *LAST]):
            self.push(records)
        self.push([], is_over=True)

    def push(self, records: list[Pushed], *, is_over: bool = False) -> None:
        try:
            if is_over:
                WEBLOG.close(self.world.clients, "requests")
            else:
                WEBLOG.push(self.world.clients, "requests", records)
        except (Retry, Unavailable) as error:
            raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]

    def is_done(self, tag: str) -> bool:
        return is_drained() and windows_here(self.world.clients) == TRUTH

    def check(self, tag: str, fault: str) -> None:
        status = WEBLOG.status(self.world.clients).computations["hits"]
        assert (status.records, status.dead, status.late, dead()) == (4, 1, 0, 1), fault
        assert status.timers == 3, fault

    def forget(self) -> None:
        """Begin with nothing."""
        with self.world.plan.unwatched():
            for kind in vars(streams).values():
                if isinstance(kind, type) and issubclass(kind, ndb.Model):
                    ndb.delete_multi(kind.query().fetch(keys_only=True))


@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_exact_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """G1, G2, G7: each record counts once, each window is written once, poison is dead once."""
    Explorer(world, WebLog(world)).explore([kind])


def test_windows_are_exact_when_deliveries_overlap_at_any_call(world: World) -> None:
    """G5: a second worker finds the lease, or takes it, and then the first one writes nothing."""
    Explorer(world, WebLog(world)).explore([OVERLAP])


@pytest.mark.parametrize("seed", range(2))
def test_windows_are_exact_with_every_delivery_doubled_in_any_order(
    world: World, seed: int
) -> None:
    """G1, G2."""
    world.order, world.doubles = random.Random(seed), True
    log = WebLog(world)
    with world.context():
        log.begin("t")
    world.settle()

    assert windows(world) == TRUTH
    with world.context():
        log.check("t", "")
