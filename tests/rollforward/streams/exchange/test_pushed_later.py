"""Records that transactions push: each comes in once, however late and often its task comes."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from rollforward.datastore.transactions import transact
from rollforward.local.cloudtasks.protocol.messages import FULL
from rollforward.outbox.entities import OutboxTask
from rollforward.streams import FOREVER, Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.pushes import push_task
from rollforward.streams.storage.remote_calls import (
    Commit,
    Key,
    Pause,
    Read,
    RepeatedError,
    StoredRow,
)
from rollforward.streams.storage.schema import OUTBOX
from rollforward.tasks.errors import OtherVersionError
from rollforward.testing.injection import KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.faults.partly_done import run_again
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import (
    WEBLOG,
    Hits,
    Minutes,
    is_drained,
    stream_world,
    windows,
)
from tests.rollforward.streams.scenarios.sink_pipeline import OutletNote
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import Collect, Rekey, Schedule, Windows, found
from tests.rollforward.streams.simulator.store import Steps, Violation

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
SCHEDULES = 5_000 if IS_SOAK else 100
DAY_S = 86_400


@pytest.fixture
def world(services: Services) -> World:
    return stream_world(services)


def pushed_twice(world: World) -> None:
    """Push two records by one transaction."""

    def body() -> None:
        for at in (1_000, 2_000):
            WEBLOG.push_in_transaction(world.clients, "requests", {"path": "/t"}, at)

    transact(body)


def test_what_a_transaction_pushed_counts_once_although_its_tasks_come_again_days_later(
    world: World,
) -> None:
    """G17: a queue stopped, or a reply was lost, for longer than ids are known."""
    task = push_task(WEBLOG)
    with world.context():
        pushed_twice(world)
    names = [live.name for live in world.live_tasks(task.queue)]
    tasks = [world.engine.get_task(name, FULL) for name in names]
    deliveries = [task.read(stored.http_request.body) for stored in tasks]
    assert len(deliveries) == 2
    world.settle()
    with world.context():
        assert OutboxTask.query().get(keys_only=True) is None

    world.clock.sleep(3 * DAY_S)
    with world.context():
        for args in deliveries:
            task.work(world.clients, args)
    world.settle()
    with world.context():
        WEBLOG.close(world.clients, "requests")
    world.settle()

    assert windows(world) == {"0": [["/t", 2]]}


@one_emulator
def test_what_a_transaction_pushed_is_there_although_its_tasks_were_purged(world: World) -> None:
    """G17: the row stays until the record is in, and the sweep asks for its task again."""
    with world.context():
        pushed_twice(world)
    world.engine.purge_queue(world.engine.place.queue_name(push_task(WEBLOG).queue))
    world.clock.sleep(600)
    world.sweep()
    world.settle()
    with world.context():
        assert WEBLOG.status(world.clients).sources["requests"].records == 2


@one_emulator
def test_a_transaction_pushes_each_value_that_a_push_takes(world: World) -> None:
    """Half a character is JSON, and no argument of a task; the record comes in as pushed."""
    value = {"path": "/", "note": "\ud800 \U0001f600"}
    with world.context():
        transact(lambda: WEBLOG.push_in_transaction(world.clients, "requests", value, 1_000))
    [live] = world.live_tasks(push_task(WEBLOG).queue)
    stored = world.engine.get_task(live.name, FULL)
    args = push_task(WEBLOG).read(stored.http_request.body)
    assert json.loads(args.value) == value

    world.settle()
    with world.context():
        assert WEBLOG.state(world.clients, "hits", "/") == {"windows": {"0": 1}}


class Alarms(Computation):
    inputs: ClassVar = {"alarms": lambda alarm: "all"}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("alarms").add()


@one_emulator
def test_what_a_transaction_pushes_to_a_computation_on_standby_waits_for_it(
    services: Services,
) -> None:
    """G17, G15: it has not failed: the record is durable, and comes in when one is attached."""
    pipeline = Pipeline("standing-by", Hits, standby=[Alarms], intervals=1)
    world = stream_world(services, pipeline)
    with world.context():
        transact(lambda: pipeline.push_in_transaction(world.clients, "alarms", {}, 1_000))
    [live] = world.live_tasks(push_task(pipeline).queue)
    args = push_task(pipeline).read(world.engine.get_task(live.name, FULL).http_request.body)
    with world.context(), pytest.raises(OtherVersionError, match="no computation reads alarms"):
        push_task(pipeline).work(world.clients, args)

    with world.context():
        pipeline.attach(world.clients, "alarms")
    world.settle()
    with world.context():
        assert pipeline.state(world.clients, "alarms", "all") == {"alarms": 1}


class PushesLater:
    """A transaction pushes two records, of a source that knows no ids."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, tag: str) -> None:
        def body() -> None:
            if OutletNote.get_by_id(tag) is None:
                OutletNote(id=tag).put()
                for at in (1_000, 2_000):
                    UNNAMED.push_in_transaction(self.world.clients, "requests", {"path": tag}, at)

        transact(body)

    def is_done(self, tag: str) -> bool:
        return is_drained() and OutboxTask.query().get(keys_only=True) is None

    def check(self, tag: str, fault: str) -> None:
        state = UNNAMED.state(self.world.clients, "hits", tag)
        assert list(state["windows"].values()) == [2], (fault, state)


UNNAMED = Pipeline(
    "unnamed", Hits, Minutes, intervals=1,
    sources=[PushSource("requests", dedup=timedelta(0))],
)  # fmt: skip


@one_emulator
def test_what_a_transaction_pushed_counts_once_with_a_fault_at_any_call(
    services: Services,
) -> None:
    """G17: without any id, and when deliveries overlap."""
    world = stream_world(services, UNNAMED)
    Explorer(world, PushesLater(world)).explore([*KINDS, OVERLAP], at_most=1)


# In the simulator


class Later(Schedule):
    """Records that transactions have pushed, each with a receipt; tasks are redelivered late."""

    has_refused = False

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(seed, chances)
        chance = random.Random(f"later {seed}")
        simulation = self.simulation
        simulation.pipeline = Pipeline(
            "sim", Rekey, Windows, Collect, intervals=2,
            sources=[PushSource("in", dedup=timedelta(0))],
        )  # fmt: skip
        self.judge = Judge(simulation)
        self.clients.clear()
        self.receipts = [Key(OUTBOX, record["id"]) for record in self.records]
        for receipt in self.receipts:
            simulation.store.rows[receipt] = StoredRow(None, 1)
        simulation.users[:] = [
            partial(self._deliver, number, chance.choice((0, 1, 20, 600)))
            for number in range(len(self.records))
            for _ in range(chance.randint(1, 3))
        ]
        simulation.users.append(self._close)

    def _deliver(self, number: int, wait_ms: int) -> Steps:
        environment = self.simulation.environment(self.simulation.machines[number % 2])
        record = self.records[number]
        yield Pause(wait_ms / 1_000)
        pushed = inbound_record(environment, "in", record, record["at"], record["id"])
        try:
            yield from ingest(
                environment, IngestRequest("in", "", [pushed], receipt=self.receipts[number])
            )
        except RepeatedError:
            return

    def _close(self) -> Steps:
        environment = self.simulation.environment(self.simulation.machines[0])
        while any((yield Read(self.receipts))):
            yield Pause(0.05)
        yield from ingest(environment, IngestRequest("in", "", [], FOREVER))


def receipt_is_kept(schedule: Later, patch: pytest.MonkeyPatch) -> None:
    """The commit that lets a record in leaves its receipt; a later one deletes it."""
    real = ingest

    def ingest_then_forget(environment: Any, request: IngestRequest) -> Steps:
        result = yield from real(environment, replace(request, receipt=None))
        if request.receipt is not None:
            [row] = yield Read([request.receipt])
            if row is not None:
                yield Commit(deletes=[(request.receipt, row.version)])
        return result

    patch.setattr(sys.modules[__name__], "ingest", ingest_then_forget)


def test_what_transactions_push_counts_once_in_any_schedule() -> None:
    """G17: without any id, through every failure, however late a task is redelivered."""
    for seed in BUDGET.drawn(range(SCHEDULES)):
        if BUDGET.is_over():
            break
        try:
            Later(seed).run()
        except Violation as violation:
            raise AssertionError(f"Later({seed}): {violation}") from violation
        BUDGET.played()


def test_a_receipt_that_is_not_a_part_of_the_commit_is_noticed() -> None:
    """G17: deleted by a later commit, it is there still when a crash comes between the two."""
    assert found(Later, receipt_is_kept, range(200)) is not None


@one_emulator
def test_a_second_run_that_finds_a_part_done_pushes_the_rest_once(world: World) -> None:
    """G17, B6: each record is in the stream once."""

    def push(path: str) -> Callable[[], None]:
        value = {"path": path}
        return partial(WEBLOG.push_in_transaction, world.clients, "requests", value, 1_000)

    with world.context():
        run_again(world, *map(push, ("/a", "/b", "/c", "/c")))
    world.settle()
    with world.context():
        WEBLOG.close(world.clients, "requests")
    world.settle()
    assert {tuple(row) for row in windows(world)["0"]} == {("/a", 1), ("/b", 1), ("/c", 2)}
