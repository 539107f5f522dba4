"""Streams on the services, with a fault at each remote call, and deliveries in every disorder."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.runtime import Clients
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushedRecord,
    Record,
    Timer,
)
from rollforward.streams import entities as streams
from rollforward.streams.driver import Engine
from rollforward.streams.operators.fused import Fused
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import DeadRow, InboxRecord
from rollforward.tasks import Retry, Unavailable
from rollforward.testing.injection import KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import (
    REQUESTS,
    WEBLOG,
    Hits,
    Minutes,
    dead,
    delete_rows,
    hits,
    is_drained,
    stream_world,
    windows,
    windows_here,
)

FIRST = hits(("a", "/", 1_000), ("b", "/x", 2_000), ("c", "/", 50_000))
POISON = hits(("p", "/", 51_000), poison=1)
LAST = hits(("d", "/", 61_000))
TRUTH = {"0": [["/", 2], ["/x", 1]], "60000": [["/", 1]]}


class WebLog:
    """Records that come twice, one that is poison, and the end of the log."""

    def __init__(self, world: World, pipeline: Pipeline = WEBLOG) -> None:
        self.world, self.pipeline = world, pipeline
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.begun:
            self.begun.add(tag)
            forget(self.world)
        for records in ([*FIRST, *POISON], [*FIRST[1:], *LAST]):
            self.push(records)
        self.push([], is_over=True)

    def push(self, records: list[PushedRecord], *, is_over: bool = False) -> None:
        try:
            if is_over:
                self.pipeline.close(self.world.clients, "requests")
            else:
                self.pipeline.push(self.world.clients, "requests", records)
        except (Retry, Unavailable) as error:
            raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]

    def is_done(self, tag: str) -> bool:
        return is_drained() and windows_here(self.world.clients, self.pipeline) == TRUTH

    def check(self, tag: str, fault: str) -> None:
        status = self.pipeline.status(self.world.clients).computations["hits"]
        assert (status.records, status.dead, status.late, dead()) == (4, 1, 0, 1), fault
        assert status.timers == 3, fault


def forget(world: World) -> None:
    """Begin with nothing."""
    with world.plan.unwatched():
        delete_rows(streams)


class Clean(Computation):
    """Hands requests on, and counts them."""

    inputs: ClassVar = {"requests": lambda request: request["path"]}
    outputs = ("clean",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce("clean", record.value)


class CleanHits(Hits):
    inputs: ClassVar = {"clean": lambda request: request["path"]}


FUSED = Pipeline(
    "fused-minutes", Fused("hits", Clean, CleanHits), Minutes, intervals=1, sources=[REQUESTS]
)


class Waits(Computation):
    """Keeps what comes until a second has passed by the clock."""

    inputs: ClassVar = {"log": lambda value: value["key"]}
    outputs = ("told",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("waiting").append(record.value["id"])
        ctx.set_timer("tell", ctx.now_ms + 1_000, processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        waiting = ctx.state.list("waiting")
        ctx.produce("told", {"key": ctx.key, "ids": list(waiting.get())})
        waiting.clear()


class Tells(Computation):
    inputs: ClassVar = {"told": lambda value: value["key"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("ids").set([*ctx.state.list("ids").get(), *record.value["ids"]])


def read_log(clients: Clients, position: Any, limit: int) -> Pulled:
    """Read five records, three at a time."""
    first = position or 0
    records = [({"key": f"k{n % 2}", "id": n}, n) for n in range(first, min(first + 3, 5))]
    return Pulled(records, first + len(records), is_over=first + len(records) == 5)


REMINDERS = Pipeline("reminders", Waits, Tells, sources=[PullSource("log", read_log)], intervals=1)


class Reminders(WebLog):
    """A log that is pulled, a dead record that is replayed, and timers of the clock."""

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        if tag not in self.begun:
            self.begun.add(tag)
            forget(self.world)
            self._bury()
        try:
            REMINDERS.pull(clients, "log")
            REMINDERS.replay(clients, "waits:x")
        except (Retry, Unavailable) as error:
            raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]

    def _bury(self) -> None:
        letter = InboxRecord("k0", 7, "log", "", '{"key":"k0","id":"x"}')
        with self.world.plan.unwatched():
            engine = Engine(self.world.clients, REMINDERS)
            key = engine.environment.names.dead("waits", "x")
            row = DeadRow("waits", "k0", "poison", 0, letter)
            engine.run(step for step in [Commit(inserts=[(key, row)])])

    def is_done(self, tag: str) -> bool:
        return is_drained() and sum(map(len, self._told().values())) == 6

    def check(self, tag: str, fault: str) -> None:
        told = {key: sorted(map(str, ids)) for key, ids in self._told().items()}
        assert told == {"k0": ["0", "2", "4", "x"], "k1": ["1", "3"]}, fault
        assert dead() == 0, fault
        assert REMINDERS.status(self.world.clients).sources["log"].records == 5, fault

    def _told(self) -> dict[str, Any]:
        states = REMINDERS.states(self.world.clients, "tells")
        return {key: state["ids"] for key, state in states}


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


@pytest.mark.parametrize("kind", [*KINDS, OVERLAP])
def test_what_is_fused_is_exact_with_a_fault_at_any_call(services: Services, kind: str) -> None:
    """G16: the parts have one commit, so what one has done is never there without the others'."""
    world = stream_world(services, FUSED)
    Explorer(world, WebLog(world, FUSED)).explore([kind])
    with world.context():
        states = dict(FUSED.states(world.clients, "hits"))
    assert {path: state["clean"] for path, state in states.items()} == {
        "/": {"seen": 3}, "/x": {"seen": 1},
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_reminders_are_exact_with_a_fault_at_any_call(services: Services, kind: str) -> None:
    """G1, G4: what is pulled is there once, a replay works on its record once, timers fire once.

    A crash may take the task of a timer with it: then the sweep finds the timer.
    """
    world = stream_world(services, REMINDERS)
    Explorer(world, Reminders(world), most_sweeps=dict.fromkeys(KINDS, 1)).explore([kind])
