"""The outbox: what a transaction enqueues, how it is relayed, and what the sweep mends."""

from __future__ import annotations

import datetime
import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from devserver.cloudtasks import messages
from models.dead_tasks import DeadTask
from models.outbox import (
    PARTITIONS,
    OutboxTask,
    RowId,
    lease_key,
    rows_of_topic,
    rows_of_topics,
)
from models.transactions import NoTransactionError, current_transaction, transact
from pipelines import outbox
from pipelines.clients import Clients, open_cloud_tasks
from pipelines.clock import Clock, naive
from pipelines.dead_tasks import Replay, replay_task
from pipelines.outbox import GATHER_S, Behind, Drain, drain, sweep
from pipelines.tasks import (
    MOST_BODY_BYTES,
    BadArgumentsError,
    CloudTaskQueue,
    Message,
    TaskQueue,
    TooLargeError,
    hashed_name,
)
from tests.faults import ERROR, KINDS, REPLY_LOST, Crash
from tests.models.test_transactions import break_call, no_pause
from tests.pipelines.orders import (
    STEPS,
    TASKS,
    Order,
    Settle,
    Step,
    dying,
    place,
    ran,
    rows_here,
    settle,
    step,
    waiting,
)
from tests.world import LOCATION, PROJECT, Services, World, in_threads

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@dataclass
class Gate:
    """Cloud Tasks behind a gate that the test opens; notes the size of each call."""

    tasks: TaskQueue
    is_open: threading.Event = field(default_factory=threading.Event)
    was_asked: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def create_each(self, messages: Sequence[Message]) -> list[bool | Exception]:
        self.sizes.append(len(messages))
        self.was_asked.set()
        assert self.is_open.wait(20)
        if self.errors:
            raise self.errors.pop()
        return self.tasks.create_each(messages)


@pytest.fixture
def world(services: Services) -> World:
    """A world whose app knows the steps of an order."""
    return World(services, tasks=TASKS)


@pytest.fixture
def here(world: World) -> Iterator[World]:
    """The same, in a context that is open and with its calls counted."""
    with world.clients.context(), world.plan.watched():
        yield world


def enqueue(clients: Clients, *steps: str, order: str = "o") -> None:
    """Enqueue some steps in a transaction."""

    def body() -> None:
        Order(id=order).put()
        for what in steps:
            outbox.enqueue(clients, step, Step(order, what))

    transact(body, pause=no_pause)


@dataclass(frozen=True)
class Ahead:
    """A clock that is wrong."""

    clock: Clock
    seconds: float

    def now(self) -> datetime.datetime:
        return self.clock.now() + datetime.timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


def ahead(clients: Clients, seconds: float) -> Clients:
    return replace(clients, clock=Ahead(clients.clock, seconds))


def strand(world: World, count: int, **changes: Any) -> None:
    """Store rows that nobody relays, as many processes would leave them."""
    with world.context():
        now = naive(world.clock.now())
        Order(id="o").put()
        rows = [
            _row(RowId(uuid.uuid4().hex[:24], now, 0, held=False), i, changes) for i in range(count)
        ]
        for i in range(0, count, 500):
            ndb.put_multi(rows[i : i + 500])


def _row(row: RowId, number: int, changes: dict[str, Any]) -> OutboxTask:
    body = json.dumps({"order": "o", "what": f"s{number}"})
    values = {"path": step.path, "queue": step.queue, "body": body, **changes}
    return OutboxTask(id=row.text, **values)


def sent(world: World, queue: str = "default") -> list[Any]:
    """Return the arguments of the tasks that wait in a queue."""
    [lane] = [lane for lane in world.engine.lanes() if lane.name.endswith(f"/{queue}")]
    specs = [messages.Task.FromString(task.spec) for task in lane.tasks.values()]
    return [json.loads(spec.http_request.body) for spec in specs]


def steps_sent(world: World) -> list[str]:
    return sorted(args["what"] for args in sent(world))


def away(world: World) -> CloudTaskQueue:
    """Return Cloud Tasks at an address where nobody listens."""
    client = open_cloud_tasks(emulator="127.0.0.1:9")
    return CloudTaskQueue(client, PROJECT, LOCATION, world.settings.target)


# Enqueue


def test_what_a_transaction_enqueues_is_delivered_and_its_rows_go(world: World) -> None:
    """B1, B3: each task runs once, after what was committed with it."""
    with world.context():
        transact(lambda: place(world.clients, "o"))
    world.settle()

    assert ran(world, "o") == Counter(STEPS)
    assert waiting(world) == []


def test_the_task_is_created_after_the_commit_and_the_row_deleted_after_that(here: World) -> None:
    """B3, B4: one commit, one call for all tasks, one commit that deletes the rows."""
    enqueue(here.clients, "pack", "print")

    assert here.plan.calls[:4] == ["BeginTransaction", "Commit", "BatchCreateTasks", "Commit"]
    assert steps_sent(here) == ["pack", "print"]
    assert rows_here() == []


def test_a_task_of_the_outbox_is_the_task_that_enqueue_creates(world: World) -> None:
    """Address, body, queue, time and token are the same; so is a name of one's own."""
    at = world.clock.now() + datetime.timedelta(hours=1)
    with world.context():
        step.enqueue(world.clients, Step("o", "a"), name=("direct",), at=at)
        transact(
            lambda: outbox.enqueue(
                world.clients, step, Step("o", "a"), name=("in a transaction",), at=at
            )
        )

    [lane] = [lane for lane in world.engine.lanes() if lane.name.endswith("/default")]
    direct, relayed = [messages.Task.FromString(task.spec) for task in lane.tasks.values()]
    assert relayed.http_request == direct.http_request
    assert relayed.schedule_time == direct.schedule_time
    assert relayed.name.endswith(hashed_name(step.path, "in a transaction"))


@one_emulator
def test_a_name_that_exists_is_an_answer(world: World) -> None:
    """B4: somebody enqueued it before: there is one task, and no row is left."""
    with world.context():
        step.enqueue(world.clients, Step("o", "first"), name=("x",))
        transact(lambda: outbox.enqueue(world.clients, step, Step("o", "second"), name=("x",)))

    assert steps_sent(world) == ["first"]
    assert waiting(world) == []


@one_emulator
def test_enqueue_outside_of_a_transaction_is_refused(here: World) -> None:
    """It would be a task without its data: the caller learns of it at once."""
    with pytest.raises(NoTransactionError):
        outbox.enqueue(here.clients, step, Step("o", "pack"))
    with pytest.raises(NoTransactionError):
        outbox.hold(here.clients, settle, lambda row: Settle("o", row), topic="t")

    assert here.plan.calls == []


@one_emulator
@pytest.mark.parametrize(
    ("args", "error"),
    [
        (Step(5, "pack"), BadArgumentsError),  # type: ignore[arg-type]
        (Settle("o", "row"), BadArgumentsError),
        (Step("o", "x" * MOST_BODY_BYTES), TooLargeError),
    ],
    ids=["type", "class", "size"],
)
def test_bad_arguments_stop_the_transaction(here: World, args: Any, error: type[Exception]) -> None:
    """B2: what no delivery could read is refused in the body: neither data nor tasks are there."""

    def body() -> None:
        Order(id="o").put()
        outbox.enqueue(here.clients, step, Step("o", "pack"))
        outbox.enqueue(here.clients, step, args)

    with pytest.raises(error):
        transact(body)

    assert (Order.get_by_id("o"), rows_here(), sent(here)) == (None, [], [])


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), rpc_errors.Aborted("lost the race")], ids=["bug", "aborted"]
)
def test_what_an_aborted_transaction_enqueued_is_never_delivered(
    world: World, error: Exception
) -> None:
    """B2: a body that raises after it enqueued, once or on every try, leaves nothing."""

    def body() -> None:
        place(world.clients, "o")
        raise error

    with world.context(), pytest.raises(type(error)):
        transact(body, pause=no_pause)
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter()
    assert waiting(world) == []


def test_tasks_of_a_try_that_was_not_committed_are_not_delivered(here: World) -> None:
    """B2: the first commit fails, and the second run decides otherwise."""
    break_call(here, "Commit", ERROR)
    steps = iter(["pack", "print"])

    transact(lambda: outbox.enqueue(here.clients, step, Step("o", next(steps))), pause=no_pause)

    assert here.plan.fired
    assert steps_sent(here) == ["print"]


# Bodies that run again


def test_a_body_that_runs_again_writes_the_same_rows(here: World) -> None:
    """B6: the answer to the first commit is lost; the rows of both runs are the same."""
    break_call(here, "Commit", REPLY_LOST)
    runs: list[set[str]] = []

    def body() -> None:
        place(dying(here), "o")
        runs.append({row.key.id() for row in current_rows()})

    transact(body, pause=no_pause)

    assert here.plan.fired
    assert len(runs) == 2
    assert runs[0] == runs[1] == {row.key.id() for row in rows_here()}
    assert len(runs[0]) == len(STEPS)


def current_rows() -> list[OutboxTask]:
    """Return the rows of the transaction under way."""
    outgoing: Any = current_transaction().listeners["outbox"]
    rows: list[OutboxTask] = outgoing.rows
    return rows


def test_rows_in_doubt_are_relayed_at_once(here: World) -> None:
    """B1: the second run finds its proof and enqueues nothing; nobody waits for the sweep."""
    break_call(here, "Commit", REPLY_LOST)

    def body() -> None:
        if Order.get_by_id("o") is None:
            Order(id="o").put()
            outbox.enqueue(here.clients, step, Step("o", "pack"))

    transact(body, pause=no_pause)

    assert here.plan.fired
    assert steps_sent(here) == ["pack"]
    assert rows_here() == []


@pytest.mark.parametrize("held", [False, True])
def test_a_second_run_takes_nothing_from_the_first(here: World, held: bool) -> None:
    """B1: both tries are committed, each with a task of its own: both are delivered.

    The first answer is lost, somebody else writes, and the second run sees another world.
    """
    break_call(here, "Commit", REPLY_LOST)
    orders = iter(["one", "two"])

    def body() -> None:
        order = next(orders)
        Order(id=order).put()
        if held:
            outbox.hold(here.clients, settle, lambda row: Settle(order, row), topic="t")
        else:
            outbox.enqueue(here.clients, step, Step(order, "pack"))

    transact(body, pause=no_pause)

    assert here.plan.fired
    found = sent(here, "fan-out" if held else "default")
    assert sorted(args["order"] for args in found) == ["one", "two"]


# Relay


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
@pytest.mark.parametrize("call", ["BatchCreateTasks", "Commit"])
def test_a_relay_that_fails_is_none_of_the_callers_business(
    here: World, call: str, kind: str
) -> None:
    """B1: the transaction is committed, so nothing is raised and the body does not run again."""
    runs: list[int] = []

    def body() -> None:
        runs.append(1)
        Order(id="o").put()
        outbox.enqueue(here.clients, step, Step("o", "pack"))
        outbox.enqueue(here.clients, step, Step("o", "print"))
        break_call(here, "-", kind)
        here.plan.at = {"BatchCreateTasks": 1, "Commit": 2}[call]

    transact(body)

    assert here.plan.fired
    assert call in here.plan.fired
    assert len(runs) == 1
    assert Order.get_by_id("o") is not None


def test_a_commit_stands_while_cloud_tasks_is_away(world: World) -> None:
    """B1, B4: nobody answers at all: the rows wait, and the sweep delivers them."""
    runs: list[int] = []
    clients = replace(world.clients, tasks=away(world))

    def body() -> None:
        runs.append(1)
        place(clients, "o")

    with world.context():
        transact(body)
    left = len(waiting(world))
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert len(runs) == 1
    assert left == len(STEPS)
    assert ran(world, "o") == Counter(STEPS)


def test_a_row_goes_only_when_its_task_is_known_to_exist(world: World) -> None:
    """B4: the call's answer is lost, so the row stays; asked again, the task exists."""
    strand(world, 1)
    rows = waiting(world)
    world.plan.kind, world.plan.at = REPLY_LOST, 0

    with world.clients.context(), world.plan.watched():
        first = outbox.relay(world.clients, rows)
        left = len(rows_here())
        second = outbox.relay(world.clients, rows)

    assert world.plan.fired == "reply-lost at call 0 (CreateTask)"
    assert (first.created, left) == (0, 1)
    assert (second.created, waiting(world)) == (1, [])
    assert steps_sent(world) == ["s0"]


# The relay behind the answer


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    gate = Gate(world.clients.tasks)
    yield gate
    gate.is_open.set()


def behind(world: World, gate: Gate) -> Clients:
    return replace(world.clients, tasks=gate, relay=Behind())  # type: ignore[arg-type]


def finish(clients: Clients) -> None:
    """Wait until the thread has done what it was given."""
    clients.relay._thread.submit(lambda: None).result(20)  # type: ignore[attr-defined]


def test_the_answer_does_not_wait_for_cloud_tasks(world: World, gate: Gate) -> None:
    """The transaction returns while the call that creates its task is still under way."""
    clients = behind(world, gate)

    with world.context():
        enqueue(clients, "pack")
    assert gate.was_asked.wait(20)
    assert len(waiting(world)) == 1
    gate.is_open.set()
    finish(clients)

    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []


def test_what_comes_together_goes_out_together(world: World, gate: Gate) -> None:
    """Tasks of five transactions that came while a call was under way go out by one call."""
    clients = behind(world, gate)

    with world.context():
        enqueue(clients, "s0")
        assert gate.was_asked.wait(20)
        for i in range(1, 6):
            enqueue(clients, f"s{i}")
    gate.is_open.set()
    finish(clients)

    assert gate.sizes == [1, 5]
    assert steps_sent(world) == [f"s{i}" for i in range(6)]


def test_what_comes_just_behind_a_call_goes_out_together(world: World, gate: Gate) -> None:
    """A lone row waits for nobody; behind its call the relay gathers what comes for a moment."""
    pauses: list[float] = []
    paused, go_on = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        paused.set()
        assert go_on.wait(20)

    gate.is_open.set()
    clients = replace(behind(world, gate), relay=Behind(pause))

    with world.context():
        enqueue(clients, "s0")
        assert paused.wait(20)
        enqueue(clients, "s1")
        enqueue(clients, "s2")
    go_on.set()
    finish(clients)

    assert gate.sizes == [1, 2]
    assert pauses == [GATHER_S, GATHER_S]
    assert waiting(world) == []


def test_the_relay_survives_an_error(world: World, gate: Gate) -> None:
    """What one call could not create is left to the sweep, and the next call is made."""
    clients = behind(world, gate)
    gate.errors = [RuntimeError("a bug")]
    gate.is_open.set()

    with world.context():
        enqueue(clients, "lost")
        finish(clients)
        enqueue(clients, "found")
        finish(clients)
    assert steps_sent(world) == ["found"]
    world.clock.sleep(60)
    world.sweep()

    assert steps_sent(world) == ["found", "lost"]
    assert waiting(world) == []


def test_the_relay_keeps_no_more_than_it_may(
    world: World, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: what is above the limit is not kept in memory; its rows are, and the sweep finds them."""
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    clients = behind(world, gate)

    with world.context():
        enqueue(clients, "s0")
        assert gate.was_asked.wait(20)
        enqueue(clients, *[f"s{i}" for i in range(1, 6)])
        enqueue(clients, "s6")
    gate.is_open.set()
    finish(clients)
    assert steps_sent(world) == ["s0", "s1", "s2", "s3"]
    world.clock.sleep(60)
    world.sweep()

    assert steps_sent(world) == [f"s{i}" for i in range(7)]


def test_transactions_on_many_threads_lose_no_task(world: World) -> None:
    """B1: eight threads enqueue through one relay; every task is there once."""
    clients = replace(world.clients, relay=Behind())

    def enqueue_some(thread: int) -> None:
        with clients.context():
            for i in range(5):
                enqueue(clients, f"{thread}-{i}", order=f"o{thread}-{i}")

    in_threads(*[lambda thread=t: enqueue_some(thread) for t in range(8)])
    finish(clients)

    assert steps_sent(world) == sorted(f"{t}-{i}" for t in range(8) for i in range(5))
    assert waiting(world) == []


# One bad row


@pytest.fixture
def missing_queue(world: World) -> Iterator[str]:
    """A queue that a deployment forgot; the test may make up for it."""
    name = f"forgotten-{uuid.uuid4().hex[:8]}"
    yield name
    full = world.engine.place.queue_name(name)
    if any(lane.name == full for lane in world.engine.lanes()):
        world.engine.delete_queue(full)


def enqueue_one_bad(world: World, queue: str) -> None:
    def body() -> None:
        Order(id="o").put()
        for what, task in [("a", step), ("bad", replace(step, queue=queue)), ("b", step)]:
            outbox.enqueue(world.clients, task, Step("o", what))

    with world.context():
        transact(body)


def test_one_bad_row_blocks_no_other_and_is_parked_with_its_reason(
    world: World, missing_queue: str
) -> None:
    """B7: its neighbours are delivered at once; after ten minutes it is a dead task."""
    enqueue_one_bad(world, missing_queue)
    assert steps_sent(world) == ["a", "b"]

    world.clock.sleep(590)
    world.sweep()
    early = dead_tasks_of(world)
    world.clock.sleep(60)
    world.sweep()

    assert early == []
    [dead] = dead_tasks_of(world)
    assert (dead.path, dead.queue, json.loads(dead.body)["what"]) == (
        step.path,
        missing_queue,
        "bad",
    )
    assert dead.reason.startswith("Cloud Tasks refuses it. NotFound: ")
    assert waiting(world) == []


def test_a_row_whose_queue_comes_in_time_is_not_parked(world: World, missing_queue: str) -> None:
    """B1: a deployment that brings the code before the queue loses nothing."""
    enqueue_one_bad(world, missing_queue)
    make_queue(world, missing_queue)

    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["a", "b", "bad"])
    assert dead_tasks_of(world) == []


def test_a_row_that_was_parked_can_be_replayed(world: World, missing_queue: str) -> None:
    """B7: once its cause is mended, a replay runs the task with the arguments it had."""
    enqueue_one_bad(world, missing_queue)
    world.clock.sleep(660)
    world.sweep()
    [dead] = dead_tasks_of(world)
    make_queue(world, missing_queue)

    with world.context():
        replay_task({}).enqueue(world.clients, Replay(dead.key.id()))
    world.settle()

    assert ran(world, "o") == Counter(["a", "b", "bad"])
    assert [dead.resolved for dead in dead_tasks_of(world)] == [True]


def test_a_held_row_stays_when_its_task_is_parked(world: World, missing_queue: str) -> None:
    """B7: what it stands for is not done, so it is not taken for done; a replay does it."""
    task = replace(settle, queue=missing_queue)
    with world.context():
        transact(lambda: outbox.hold(world.clients, task, lambda row: Settle("o", row), topic="t"))
        Order(id="o").put()
    for _ in range(100):
        world.clock.sleep(60)
        world.sweep()
    [dead] = dead_tasks_of(world)
    left = len(waiting(world))
    make_queue(world, missing_queue)

    with world.context():
        replay_task({}).enqueue(world.clients, Replay(dead.key.id()))
    world.settle()

    assert left == 1
    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []
    assert [dead.resolved for dead in dead_tasks_of(world)] == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_parking_a_row_is_counted_once_and_loses_nothing_under_faults(
    world: World, kind: str
) -> None:
    """B7: a fault at each call of the sweep that parks; in the end there is one dead task."""
    for at in range(20):
        strand(world, 1, queue=f"nowhere-{at}")
        world.clock.sleep(660)
        plan = world.plan
        plan.calls, plan.fired, plan.kind, plan.at = [], "", kind, at
        with world.clients.context(), plan.watched():
            try:
                sweep(world.clients)
            except (Crash, rpc_errors.GoogleAPIError):
                world.bury()
        plan.at = None
        world.clock.sleep(60)
        world.sweep()

        assert waiting(world) == [], plan.fired
        queues = Counter(dead.queue for dead in dead_tasks_of(world))
        assert queues[f"nowhere-{at}"] == 1, plan.fired
        if not plan.fired:
            return
    raise AssertionError("the sweep makes more calls than this test breaks")


def make_queue(world: World, name: str) -> None:
    place = world.engine.place
    world.engine.create_queue(place.parent, messages.Queue(name=place.queue_name(name)))


def dead_tasks_of(world: World) -> list[Any]:
    with world.context():
        return DeadTask.query().fetch()  # type: ignore[no-any-return]


# The sweep


def spend(world: World) -> Any:
    """Sweep; return what it cost."""
    with world.context():
        before = world.clients.meter.cost()
        sweep(world.clients)
        return world.clients.meter.cost() - before


def test_an_idle_sweep_costs_one_query(world: World) -> None:
    """Called once a minute for ever, it must cost next to nothing."""
    cost = spend(world)

    assert (cost.round_trips, cost.reads, cost.writes, cost.tasks) == (1, 0, 0, 0)


def test_a_young_row_is_left_to_its_process(world: World) -> None:
    """A row that was just committed is not the sweep's: its process is about to relay it."""
    strand(world, 3)

    cost = spend(world)

    assert (cost.round_trips, cost.tasks, cost.writes) == (1, 0, 0)
    assert len(waiting(world)) == 3


def test_a_few_stranded_rows_are_relayed_by_the_sweep_itself(world: World) -> None:
    """B1: up to a hundred rows need no task of their own."""
    strand(world, 100)
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)

    assert (swept.created, swept.partitions) == (100, 0)
    assert len(sent(world)) == 100
    assert waiting(world) == []


def test_many_stranded_rows_are_walked_by_partition(world: World) -> None:
    """B1: above a hundred, each partition gets a task, and those relay the rows."""
    strand(world, 101)
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)
    deliver_drains(world)

    assert (swept.created, swept.partitions) == (0, len(PARTITIONS))
    assert len(sent(world)) == 101
    assert waiting(world) == []
    with world.context():
        assert ndb.get_multi([lease_key(p) for p in PARTITIONS]) == [None] * 16


def deliver_drains(world: World) -> int:
    """Deliver the walks through partitions, and nothing else; return how many there were."""
    queue = world.engine.place.queue_name("outbox")
    count = 0
    while due := world.engine.due(queue):
        assert world.deliver(due[0].task_name) == 204
        count += 1
    return count


def test_two_walks_do_not_do_the_same_work(world: World) -> None:
    """While one walk has a partition, another leaves it alone; it takes over when that is dead."""
    strand(world, 4)
    world.clock.sleep(60)
    [one, *_] = waiting(world)
    partition = one.key.id()[0]

    with world.context():
        outbox._take(world.clients, Drain(partition, "first"))
        drain.work(world.clients, Drain(partition, "second"))
        left_alone = len(sent(world))
        drain.work(world.clients, Drain(partition, "first"))
        by_its_owner = len(sent(world))
    strand_in(world, partition)
    world.clock.sleep(61)
    with world.context():
        outbox._take(world.clients, Drain(partition, "dead"))
        world.clock.sleep(61)
        drain.work(world.clients, Drain(partition, "third"))

    assert left_alone == 0
    assert by_its_owner >= 1
    assert [row for row in waiting(world) if row.key.id()[0] == partition] == []


def strand_in(world: World, partition: str) -> None:
    with world.context():
        row = RowId(partition * 24, naive(world.clock.now()), 0, held=False)
        _row(row, 99, {}).put()


def test_a_lease_of_a_clock_far_ahead_is_taken_over(world: World) -> None:
    """A process whose clock is a day ahead keeps nobody from a partition."""
    strand_in(world, "a")
    world.clock.sleep(60)

    with world.context():
        outbox._take(ahead(world.clients, 86_400), Drain("a", "wrong"))
        drain.work(world.clients, Drain("a", "right"))

    assert waiting(world) == []


@pytest.mark.parametrize("ahead_s", [3_600, 365 * 86_400])
def test_rows_of_a_clock_far_ahead_are_swept(world: World, ahead_s: int) -> None:
    """B5: a process whose clock was wrong delays its tasks by no more than another."""
    clients = ahead(dying(world), ahead_s)

    with world.context():
        enqueue(clients, "pack")
        transact(lambda: hold_one(clients))
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["pack", "settle"])
    assert waiting(world) == []


# Held rows


def hold_one(clients: Clients) -> None:
    Order(id="o").put()
    outbox.hold(clients, settle, lambda row: Settle("o", row), topic="settle/o")


def test_a_held_row_waits_for_its_task_and_goes_with_its_effect(world: World) -> None:
    """The row can be found by its topic until the commit that does the work."""
    with world.context():
        transact(lambda: hold_one(world.clients))
        before = [row.key.id() for row in rows_of_topic("settle/o").fetch()]
        within = rows_of_topics("settle/").fetch()
        elsewhere = rows_of_topics("other/").fetch()
    world.settle()

    assert len(before) == len(within) == 1
    assert elsewhere == []
    assert sent(world, "fan-out") == []
    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def test_a_held_row_is_looked_at_ever_more_rarely(world: World) -> None:
    """A slow queue is not flooded: the sweep asks when a row's age has doubled, and just after."""
    with world.context():
        transact(lambda: hold_one(world.clients))

    asked = []
    for minute in range(1, 100):
        world.clock.sleep(60)
        if spend(world).tasks:
            asked.append(minute)

    assert asked == [1, 2, 3, 4, 5, 6, 10, 11, 20, 21, 40, 41, 80, 81]
    assert len(sent(world, "fan-out")) == 3, "one at first, one from ten minutes on, one an hour"


def test_a_held_row_whose_task_was_purged_is_created_anew(world: World) -> None:
    """B1: somebody purged the queue: ten minutes after the commit there is a task again."""
    with world.context():
        transact(lambda: hold_one(world.clients))
    world.engine.purge_queue(world.engine.place.queue_name("fan-out"))

    for _ in range(10):
        assert sent(world, "fan-out") == []
        world.clock.sleep(60)
        world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def hold_until(clients: Clients, at: datetime.datetime) -> None:
    Order(id="o").put()
    outbox.hold(clients, settle, lambda row: Settle("o", row), topic="settle/o", at=at)


@pytest.mark.parametrize("is_purged", [False, True], ids=["waits", "purged"])
def test_a_held_row_is_woken_once_and_not_before_its_time(world: World, is_purged: bool) -> None:
    """B1: while its task waits for its time there is one of it; lost, it comes again after that."""
    at = world.clock.now() + datetime.timedelta(minutes=25)
    with world.context():
        transact(lambda: hold_until(world.clients, at))
    if is_purged:
        world.engine.purge_queue(world.engine.place.queue_name("fan-out"))

    found = []
    for _ in range(24):
        world.clock.sleep(60)
        world.sweep()
        found.append(len(sent(world, "fan-out")))
    for _ in range(20):
        world.clock.sleep(60)
        world.sweep()
        world.deliver_due()

    assert set(found) == {0 if is_purged else 1}
    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def test_a_held_row_that_has_its_task_is_not_counted_as_swept(world: World) -> None:
    """The sweep asks again whether the task exists; that nothing was created, it says."""
    world.flush()
    with world.context():
        transact(lambda: hold_one(world.clients))
        world.clock.sleep(60)
        swept = sweep(world.clients)
        world.clock.sleep(60)
        told = outbox.depth(world.clients)

    assert swept.created == 0
    assert (told.waiting, told.relayed_per_s) == (1, 0)


def test_a_held_row_whose_task_was_never_created_is_swept(world: World) -> None:
    """B1, B5: the process died after its commit."""
    with world.context():
        transact(lambda: hold_one(dying(world)))

    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])


# Many


@pytest.mark.timeout(300)
def test_five_thousand_stranded_rows_are_drained_while_orders_come_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B5: after an outage each of them gets its task, once, and new ones do not wait."""
    monkeypatch.setattr(outbox, "MOST_PER_DRAIN", 150)  # So that walks hand over to a next task.
    strand(world, 5_000)
    world.clock.sleep(60)
    with world.context():
        assert sweep(world.clients).partitions == len(PARTITIONS)

    walks = 0
    queue = world.engine.place.queue_name("outbox")
    while due := world.engine.due(queue):
        walks += 1
        with world.context():
            enqueue(world.clients, f"new{walks}", order=f"new{walks}")
            assert f"new{walks}" in {args["what"] for args in sent(world)[-1:]}
        assert world.deliver(due[0].task_name) == 204

    assert walks > 2 * len(PARTITIONS)
    expected = [f"s{i}" for i in range(5_000)] + [f"new{i + 1}" for i in range(walks)]
    assert steps_sent(world) == sorted(expected)
    assert waiting(world) == []


# What people see


def test_the_depth_tells_how_much_waits_and_for_how_long(world: World) -> None:
    """Rows, the oldest one's age, and the rate of the last full minute."""
    world.flush()  # The rate is counted for the app as a whole.
    with world.context():
        idle = outbox.depth(world.clients)
    strand(world, 3)
    world.clock.sleep(90)
    strand(world, 2)

    with world.context():
        busy = outbox.depth(world.clients)
        sweep(world.clients)
        world.clock.sleep(60)
        after = outbox.depth(world.clients)

    assert (idle.waiting, idle.is_more, idle.oldest_s, idle.relayed_per_s) == (0, False, 0, 0)
    assert (busy.waiting, busy.is_more, busy.oldest_s) == (5, False, pytest.approx(90, abs=1))
    assert (after.waiting, after.oldest_s) == (2, pytest.approx(60, abs=1))
    assert after.relayed_per_s == (3 / 60 if world.services.memcached else 0)


def test_held_rows_have_an_age_of_their_own(world: World) -> None:
    """A row that waits for its task is no sign that the relay is stuck."""
    with world.context():
        transact(lambda: hold_one(world.clients))
    world.clock.sleep(500)
    strand(world, 1)
    world.clock.sleep(40)

    with world.context():
        depth = outbox.depth(world.clients)

    assert depth.waiting == 2
    assert depth.oldest_s == pytest.approx(40, abs=1)
    assert depth.held_oldest_s == pytest.approx(540, abs=1)


def test_the_depth_of_very_many_is_not_counted_to_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks every few seconds must not read a backlog as a whole."""
    monkeypatch.setattr(outbox, "MOST_COUNTED", 5)
    strand(world, 7)

    with world.context():
        depth = outbox.depth(world.clients)

    assert (depth.waiting, depth.is_more) == (5, True)
