"""The outbox: what a transaction enqueues, how it is relayed, and what the sweep mends."""

from __future__ import annotations

import datetime
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
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
from pipelines.outbox import outbox
from pipelines.outbox.outbox import LINGER_S, BackgroundRelay, Drain, by_timer, drain, sweep
from pipelines.runtime import Clients, Clock, naive_utc, open_cloud_tasks
from pipelines.runtime.messages import Message, TaskQueue
from pipelines.tasks.cloud_tasks import CloudTaskQueue
from pipelines.tasks.dead_tasks import Replay, replay_task
from pipelines.tasks.declaration import MAX_BODY_BYTES, hashed_name
from pipelines.tasks.errors import BadArgumentsError, TooLargeError
from tests.faults import ERROR, KINDS, REPLY_LOST, UNKNOWN_OUTCOMES, Crash
from tests.models.counters import break_call, no_pause
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
    answers: list[Exception] = field(default_factory=list)

    def create_each(self, messages: Sequence[Message]) -> list[bool | Exception]:
        self.sizes.append(len(messages))
        self.was_asked.set()
        assert self.is_open.wait(20)
        if self.errors:
            raise self.errors.pop()
        if self.answers:
            return [self.answers.pop()] * len(messages)
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

    transact(body, sleep=no_pause)


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
        now = naive_utc(world.clock.now())
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
        outbox.enqueue_with_ack(here.clients, settle, lambda row: Settle("o", row), tag="t")

    assert here.plan.calls == []


@one_emulator
@pytest.mark.parametrize(
    ("args", "error"),
    [
        (Step(5, "pack"), BadArgumentsError),  # type: ignore[arg-type]
        (Settle("o", "row"), BadArgumentsError),
        (Step("o", "x" * MAX_BODY_BYTES), TooLargeError),
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
        transact(body, sleep=no_pause)
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter()
    assert waiting(world) == []


def test_tasks_of_a_try_that_was_not_committed_are_not_delivered(here: World) -> None:
    """B2: the first commit fails, and the second run decides otherwise."""
    break_call(here, "Commit", ERROR)
    steps = iter(["pack", "print"])

    transact(lambda: outbox.enqueue(here.clients, step, Step("o", next(steps))), sleep=no_pause)

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

    transact(body, sleep=no_pause)

    assert here.plan.fired
    assert len(runs) == 2
    assert runs[0] == runs[1] == {row.key.id() for row in rows_here()}
    assert len(runs[0]) == len(STEPS)


def current_rows() -> list[OutboxTask]:
    """Return the rows of the transaction under way."""
    outgoing: Any = current_transaction().hooks["outbox"]
    rows: list[OutboxTask] = outgoing.rows
    return rows


def test_rows_in_doubt_are_relayed_at_once(here: World) -> None:
    """B1: the second run finds its proof and enqueues nothing; nobody waits for the sweep."""
    break_call(here, "Commit", REPLY_LOST)

    def body() -> None:
        if Order.get_by_id("o") is None:
            Order(id="o").put()
            outbox.enqueue(here.clients, step, Step("o", "pack"))

    transact(body, sleep=no_pause)

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
            outbox.enqueue_with_ack(here.clients, settle, lambda row: Settle(order, row), tag="t")
        else:
            outbox.enqueue(here.clients, step, Step(order, "pack"))

    transact(body, sleep=no_pause)

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


# The relay after the response


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    gate = Gate(world.clients.tasks)
    yield gate
    gate.is_open.set()


@dataclass
class Later:
    """Seconds that pass when the test says so."""

    acts: list[Callable[[], None]] = field(default_factory=list)

    def __call__(self, seconds: float, act: Callable[[], None]) -> None:
        assert seconds == 1
        self.acts.append(act)

    def pass_one(self) -> None:
        acts, self.acts = self.acts, []
        for act in acts:
            act()


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def behind(world: World, gate: Gate, later: Later) -> Clients:
    """Clients whose relay works after the response, and whose Cloud Tasks is behind a gate."""
    return replace(world.clients, tasks=gate, relay=BackgroundRelay(later=later))  # type: ignore[arg-type]


def finish(clients: Clients) -> None:
    """Wait until the thread has done what it was given."""
    clients.relay._thread.submit(lambda: None).result(20)  # type: ignore[attr-defined]


def test_the_answer_does_not_wait_for_cloud_tasks(
    world: World, gate: Gate, behind: Clients
) -> None:
    """The transaction returns while the call that creates its task is still under way."""
    clients = behind

    with world.context():
        enqueue(clients, "pack")
    assert gate.was_asked.wait(20)
    assert len(waiting(world)) == 1
    gate.is_open.set()
    finish(clients)

    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []


def test_what_comes_together_goes_out_together(world: World, gate: Gate, behind: Clients) -> None:
    """Tasks of five transactions that came while a call was under way go out by one call."""
    clients = behind

    with world.context():
        enqueue(clients, "s0")
        assert gate.was_asked.wait(20)
        for i in range(1, 6):
            enqueue(clients, f"s{i}")
    gate.is_open.set()
    finish(clients)

    assert gate.sizes == [1, 5]
    assert steps_sent(world) == [f"s{i}" for i in range(6)]


def test_what_comes_just_behind_a_call_goes_out_together(
    world: World, gate: Gate, behind: Clients
) -> None:
    """A lone row waits for nobody; behind its call the relay gathers what comes for a moment."""
    pauses: list[float] = []
    paused, go_on = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        paused.set()
        assert go_on.wait(20)

    gate.is_open.set()
    clients = replace(behind, relay=BackgroundRelay(pause))

    with world.context():
        enqueue(clients, "s0")
        assert paused.wait(20)
        enqueue(clients, "s1")
        enqueue(clients, "s2")
    go_on.set()
    finish(clients)

    assert gate.sizes == [1, 2]
    assert pauses == [LINGER_S, LINGER_S]
    assert waiting(world) == []


def test_the_relay_survives_an_error(
    world: World, gate: Gate, behind: Clients, later: Later
) -> None:
    """What one call could not create goes out a second later, and the next call is made at once."""
    gate.errors = [RuntimeError("a bug")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "lost")
        finish(behind)
        enqueue(behind, "found")
        finish(behind)
    assert steps_sent(world) == ["found"]
    later.pass_one()
    finish(behind)

    assert steps_sent(world) == ["found", "lost"]
    assert waiting(world) == []
    assert later.acts == []


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_call_that_nobody_answered_is_made_again_after_one_four_and_nine_seconds(
    world: World, gate: Gate, behind: Clients, later: Later, failures: int
) -> None:
    """B1, B5: while Cloud Tasks is away for a moment nobody waits for the sweep."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")] * failures
    gate.is_open.set()

    with world.context():
        enqueue(behind, "pack")
    made_at = [0] if gate.sizes else []
    for second in range(12):
        finish(behind)
        made_at += [second] * (len(gate.sizes) - len(made_at))
        later.pass_one()

    assert made_at == [0, 1, 4, 9][: failures + 1]
    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []


def test_a_call_that_is_never_answered_is_left_to_the_sweep(
    world: World, gate: Gate, behind: Clients, later: Later
) -> None:
    """A process does not ask for ever, and keeps nothing in memory for it."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")] * 4
    gate.is_open.set()

    with world.context():
        enqueue(behind, "pack")
    for _ in range(12):
        finish(behind)
        later.pass_one()

    assert gate.sizes == [1] * 4
    assert later.acts == []
    assert len(waiting(world)) == 1


def test_what_is_refused_is_not_asked_for_again_at_once(
    world: World, gate: Gate, behind: Clients, later: Later
) -> None:
    """B7: a queue that is missing comes with the next minutes, if at all."""
    gate.answers = [rpc_errors.NotFound("no such queue")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "pack")
    finish(behind)

    assert later.acts == []
    assert len(waiting(world)) == 1


@pytest.mark.parametrize("code", UNKNOWN_OUTCOMES, ids=lambda code: code.name)
def test_a_process_finds_out_what_it_does_not_know(
    world: World, gate: Gate, behind: Clients, later: Later, code: grpc.StatusCode
) -> None:
    """B1, B5: committed although the caller was told an error: the process relays by itself."""
    gate.is_open.set()

    with world.context():
        give_up(world, behind, f"{REPLY_LOST}:{code.name}")
    finish(behind)

    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []
    assert later.acts == []


def give_up(world: World, clients: Clients, kind: str) -> None:
    """Enqueue in a transaction whose only try ends with an error."""
    break_call(world, "Commit", kind)

    def body() -> None:
        Order(id="o").put()
        outbox.enqueue(clients, step, Step("o", "pack"))

    with world.plan.watched(), pytest.raises(rpc_errors.GoogleAPICallError):
        transact(body, attempts=1)
    assert world.plan.fired


def test_a_commit_that_lands_late_is_found(
    world: World, gate: Gate, behind: Clients, later: Later
) -> None:
    """B1, B5: the first look finds nothing, and one some seconds later does."""
    gate.is_open.set()

    with world.context():
        give_up(world, behind, ERROR)
        finish(behind)
        looked = len(gate.sizes)
        [_, [errand], *_] = [[], *filter(None, behind.relay._delayed)]  # type: ignore[attr-defined]
        Order(id="o").put()
        errand.row.put()
    for _ in range(2):
        later.pass_one()
        finish(behind)

    assert looked == 0
    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []


def test_a_look_that_fails_is_made_again(
    world: World, gate: Gate, behind: Clients, later: Later
) -> None:
    """B1, B5: Datastore is away a little longer than the transaction tried."""
    gate.is_open.set()
    away = threading.Event()
    sound = world.plan.around

    def around(name: str, effect: Any, error: Any) -> Any:
        if name == "Lookup" and away.is_set():
            raise error(grpc.StatusCode.UNAVAILABLE)
        return sound(name, effect, error)

    world.plan.around = around  # type: ignore[method-assign]
    away.set()
    with world.context():
        give_up(world, behind, REPLY_LOST)
        finish(behind)
    found = steps_sent(world)
    away.clear()
    later.pass_one()
    finish(behind)

    assert found == []
    assert steps_sent(world) == ["pack"]


def test_what_was_never_committed_is_looked_for_a_few_times(
    world: World, gate: Gate, behind: Clients, later: Later
) -> None:
    """B2: nothing is created, and the process does not look for ever."""
    gate.is_open.set()

    with world.context():
        give_up(world, behind, ERROR)
    looked_before = len(world.plan.calls)
    for _ in range(12):
        with world.plan.watched():
            later.pass_one()
            finish(behind)

    assert world.plan.calls[looked_before:] == ["Lookup"] * 3
    assert sent(world) == []
    assert later.acts == []


@pytest.mark.parametrize("error", [ValueError("a bug"), rpc_errors.Aborted("a race")])
def test_what_cannot_be_committed_is_not_looked_for(
    world: World, gate: Gate, behind: Clients, error: Exception
) -> None:
    """A bug or a lost race leaves no doubt, so it costs no look."""
    with world.context(), world.plan.watched():
        with pytest.raises(type(error)):
            transact(lambda: place_and_raise(behind, error), attempts=1)
        finish(behind)

    assert "Lookup" not in world.plan.calls


def place_and_raise(clients: Clients, error: Exception) -> None:
    place(clients, "o")
    raise error


def test_a_timer_acts_on_another_thread_and_holds_no_process_up() -> None:
    """What is to be tried again is tried, unless the process ends before."""
    told: list[tuple[bool, bool]] = []
    done = threading.Event()

    def act() -> None:
        here = threading.current_thread()
        told.append((here.daemon, here is threading.main_thread()))
        done.set()

    by_timer(0, act)

    assert done.wait(20)
    assert told == [(True, False)]


def test_a_process_that_ends_leaves_what_nobody_answered_for_to_the_sweep(
    world: World, gate: Gate
) -> None:
    """B1: the interpreter starts no thread any more; the relay says so and ends well."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")]
    gate.is_open.set()

    def ending(seconds: float, act: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    relay = BackgroundRelay(later=ending)
    clients = replace(world.clients, tasks=gate, relay=relay)  # type: ignore[arg-type]

    with world.context():
        enqueue(clients, "pack")
        finish(clients)
        enqueue(clients, "print")
        finish(clients)

    assert steps_sent(world) == ["print"]
    assert len(waiting(world)) == 1


def test_a_script_finds_out_at_once(here: World) -> None:
    """B1: without a thread behind it the look is made before the caller goes on."""
    give_up(here, here.clients, REPLY_LOST)

    assert steps_sent(here) == ["pack"]
    assert rows_here() == []


def test_the_relay_keeps_no_more_than_it_may(
    world: World, gate: Gate, behind: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: what is above the limit is not kept in memory; its rows are, and the sweep finds them."""
    monkeypatch.setattr(outbox, "MAX_WAITING", 3)
    clients = behind

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


def test_what_is_to_be_tried_again_counts_as_kept(
    world: World, gate: Gate, behind: Clients, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: while Cloud Tasks is away, a process keeps no more rows in memory than it may."""
    monkeypatch.setattr(outbox, "MAX_WAITING", 3)
    gate.answers = [rpc_errors.ServiceUnavailable("away")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "s0", "s1", order="one")
        finish(behind)
        enqueue(behind, "s2", "s3", order="two")
        finish(behind)
    later.pass_one()
    finish(behind)

    assert steps_sent(world) == ["s0", "s1", "s2"]
    assert len(waiting(world)) == 1


def test_transactions_on_many_threads_lose_no_task(world: World) -> None:
    """B1: eight threads enqueue through one relay; every task is there once."""
    clients = replace(world.clients, relay=BackgroundRelay())

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
        transact(
            lambda: outbox.enqueue_with_ack(
                world.clients, task, lambda row: Settle("o", row), tag="t"
            )
        )
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
    """B1: above a hundred, each partition that has more gets a task, and those relay the rows."""
    strand(world, 300)
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)
        left = {row.key.id()[0] for row in rows_here()}
    deliver_drains(world)

    assert (swept.created, swept.partitions) == (100, len(left))
    assert len(sent(world)) == 300
    assert waiting(world) == []
    with world.context():
        assert ndb.get_multi([lease_key(p) for p in PARTITIONS]) == [None] * 16


def test_one_partition_with_more_than_a_sweep_sees_gets_a_walk(world: World) -> None:
    """B5: behind the first hundred rows of a partition there may be more that are due."""
    with world.context():
        now = naive_utc(world.clock.now())
        Order(id="o").put()
        ids = [RowId("a" * 24, now, number, held=False) for number in range(150)]
        ndb.put_multi([_row(id_, number, {}) for number, id_ in enumerate(ids)])
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)
    deliver_drains(world)

    assert (swept.created, swept.partitions) == (100, 1)
    assert len(sent(world)) == 150


def test_a_partition_with_more_than_a_task_drains_is_walked_in_several(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: of three rows a task, also of held ones, which stay; the last task gives it back."""
    monkeypatch.setattr(outbox, "MAX_PER_DRAIN", 3)
    with world.context():
        now = naive_utc(world.clock.now())
        Order(id="o").put()
        ids = [RowId("a" * 24, now, number, held=True) for number in range(8)]
        ndb.put_multi([_row(id_, number, {}) for number, id_ in enumerate(ids)])
    world.clock.sleep(60)

    with world.context():
        drain.work(world.clients, Drain("a", "walk"))
        by_the_first = len(sent(world))
    others = deliver_drains(world)

    assert (by_the_first, others) == (3, 2)
    assert len(sent(world)) == 8
    with world.context():
        assert lease_key("a").get() is None


def test_the_oldest_rows_come_first(world: World) -> None:
    """B5: whatever its partition, a row waits for no younger one."""
    with world.context():
        Order(id="o").put()
        for partition, count in (("f", 60), ("0", 100)):
            now = naive_utc(world.clock.now())
            ids = [RowId(partition * 24, now, number, held=False) for number in range(count)]
            ndb.put_multi([_row(id_, number, {}) for number, id_ in enumerate(ids)])
            world.clock.sleep(30)
        sweep(world.clients)

        left = Counter(row.key.id()[0] for row in rows_here())
    assert left == {"0": 60}


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
        world.clock.sleep(outbox.LEASE_S)
        drain.work(world.clients, Drain(partition, "third"))

    assert left_alone == 0
    assert by_its_owner >= 1
    assert [row for row in waiting(world) if row.key.id()[0] == partition] == []


def strand_in(world: World, partition: str) -> None:
    with world.context():
        row = RowId(partition * 24, naive_utc(world.clock.now()), 0, held=False)
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


# Rows that are not as they should be

ODD_IDS = {
    "of the version before the digest": "c|20200101T000000000000|o|c0ffee|0000",
    "without a time": "c|now|o|c0ffee|0000|1a2b3c4d",
    "without a number": "c|20200101T000000000000|o|c0ffee|many|1a2b3c4d",
    "of another kind of key": "made by hand",
    "behind all partitions": "zzz|20200101T000000000000",
    "between two partitions": "0~",
    "of one letter": "1",
    "a number": 5629499534213120,
}


def put_odd(world: World, odd: str | int, **values: Any) -> None:
    with world.context():
        Order(id="o").put()
        made = {"path": step.path, "queue": step.queue, "body": '{"order": "o", "what": "odd"}'}
        OutboxTask(id=odd, **{**made, **values}).put()


@pytest.mark.parametrize("many", [1, 150], ids=["few", "many"])
@pytest.mark.parametrize("odd", ODD_IDS.values(), ids=ODD_IDS)
def test_a_row_with_an_odd_key_stops_no_other_and_is_delivered(
    world: World, odd: str | int, many: int
) -> None:
    """B7: another version's row, or one made by hand: it is old and due, and named by its key."""
    strand(world, many)
    put_odd(world, odd)
    world.clock.sleep(60)

    with world.context():
        sweep(world.clients)
        told = outbox.depth(world.clients)
    deliver_drains(world)

    assert steps_sent(world) == sorted(["odd", *[f"s{i}" for i in range(many)]])
    assert waiting(world) == []
    assert told.is_truncated is False


def test_a_row_with_an_odd_key_is_shown_while_it_waits(world: World) -> None:
    """Who watches the app sees it, and gets no error page."""
    put_odd(world, "made by hand")

    answer = world.app.test_client().get("/metrics", headers=world.cron_headers())

    assert answer.status_code == 200
    assert b"outbox_waiting 1\n" in answer.data


@pytest.mark.parametrize("lacking", ["path", "queue", "body"])
def test_a_row_that_lacks_a_value_stops_no_other(
    world: World, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: a row that was made by hand and not to the end does no harm, and leaves the outbox."""
    strand(world, 2)
    with monkeypatch.context() as patch:
        patch.setattr(getattr(OutboxTask, lacking), "_required", False)
        put_odd(world, "made by hand", **{lacking: None})
    world.clock.sleep(60)

    world.sweep()

    arrived = [task for queue in ("default", "fan-out") for task in world.live_tasks(queue)]
    assert len(arrived) == (2 if lacking == "queue" else 3)
    assert len(dead_tasks_of(world)) == (1 if lacking == "queue" else 0)
    assert waiting(world) == []


# A row with a time of its own


def test_a_delayed_row_of_a_missing_queue_is_parked_as_any_other(
    world: World, missing_queue: str
) -> None:
    """B7: whoever enqueued it for next week learns today that its queue is missing."""
    with world.context():
        bad = replace(step, queue=missing_queue)
        transact(lambda: outbox.enqueue(world.clients, bad, Step("o", "x"), delay_s=7 * 86_400))

    world.clock.sleep(660)
    world.sweep()

    assert [dead.queue for dead in dead_tasks_of(world)] == [missing_queue]
    assert waiting(world) == []


@pytest.mark.parametrize("held", [False, True], ids=["enqueued", "held"])
def test_a_delayed_row_that_waited_long_gets_its_task_before_its_time(
    world: World, held: bool
) -> None:
    """B5: Cloud Tasks or cron was away for ten minutes: the outbox does not keep it for a week."""
    at = world.clock.now() + datetime.timedelta(days=7)
    clients = dying(world)

    def body() -> None:
        Order(id="o").put()
        if held:
            outbox.enqueue_with_ack(clients, settle, lambda row: Settle("o", row), tag="t", at=at)
        else:
            outbox.enqueue(clients, step, Step("o", "x"), at=at)

    with world.context():
        transact(body)
    world.clock.sleep(700)
    for _ in range(3):
        world.sweep()
        world.clock.sleep(60)

    assert len(sent(world, "fan-out" if held else "default")) == 1
    assert len(waiting(world)) == held


@one_emulator
@pytest.mark.parametrize(
    "at",
    [datetime.datetime(2030, 1, 1), datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)],  # noqa: DTZ001
    ids=["naive", "far"],
)
def test_a_held_row_for_a_time_that_cannot_be_meant_is_refused(
    here: World, at: datetime.datetime
) -> None:
    """Beyond 30 days Cloud Tasks takes no task: whoever holds one learns of it at once."""
    with pytest.raises(BadArgumentsError):
        transact(lambda: hold_until(here.clients, at))

    assert rows_here() == []


# A queue of walks that stands still


def test_a_queue_that_stands_still_does_not_stop_the_sweep(world: World) -> None:
    """B5: while no walk is delivered, each sweep relays a hundred; walks do not pile up."""
    queue = world.engine.place.queue_name("outbox")
    world.engine.pause_queue(queue)
    strand(world, 450)

    try:
        for _ in range(5):
            world.clock.sleep(60)
            with world.context():
                sweep(world.clients)
        walks = len(world.live_tasks("outbox"))
    finally:
        world.engine.resume_queue(queue)

    assert len(sent(world)) == 450
    assert waiting(world) == []
    assert walks <= len(PARTITIONS)


def test_what_a_round_could_not_hand_over_is_due_in_the_next_one(world: World) -> None:
    """B5: walks that an earlier round asked for may be past these rows already."""
    with world.context():
        now = naive_utc(world.clock.now())
        Order(id="o").put()
        ids = [RowId(f"{i % 16:x}{i:023x}", now, 0, held=True).text for i in range(250)]
        made = {"path": settle.path, "queue": settle.queue, "tag": "t"}
        ndb.put_multi(
            [OutboxTask(id=id_, body=json.dumps({"order": "o", "row": id_}), **made) for id_ in ids]
        )
        world.clock.sleep(720)
        ndb.put_multi([outbox._lease(world.clients, Drain(p, "early"), 600) for p in PARTITIONS])

    left = []
    for _ in range(3):
        world.sweep()
        deliver_all(world, "fan-out")
        left.append(len(waiting(world)))
        world.clock.sleep(60)

    assert left == [150, 50, 0]


def deliver_all(world: World, queue: str) -> None:
    name = world.engine.place.queue_name(queue)
    while due := world.engine.due(name):
        assert world.deliver(due[0].task_name) == 204


def test_walks_that_cannot_be_asked_for_are_asked_for_by_the_next_sweep(world: World) -> None:
    """B5: Cloud Tasks refuses the walks once; nobody waits for them any longer than a minute."""
    strand(world, 300)
    world.clock.sleep(60)

    with world.context():
        clients = replace(world.clients, tasks=away(world))
        with pytest.raises(rpc_errors.GoogleAPICallError):
            sweep(clients)
        swept = sweep(world.clients)
    deliver_drains(world)

    assert swept.partitions > 0
    assert len(sent(world)) == 300


def test_rows_that_are_young_get_no_walk(world: World) -> None:
    """However many were just committed: they are their processes' own."""
    strand(world, 3_000)

    with world.context():
        swept = sweep(world.clients)

    assert (swept.created, swept.partitions) == (0, 0)


def test_young_rows_behind_old_ones_get_no_walk(world: World) -> None:
    """The sweep relays the old ones itself; what stands behind a young one is young, too."""
    with world.context():
        Order(id="o").put()
        for count in (40, 80):
            world.clock.sleep(10)
            now = naive_utc(world.clock.now())
            ids = [RowId("a" * 24, now, number, held=False) for number in range(count)]
            ndb.put_multi([_row(id_, number, {}) for number, id_ in enumerate(ids)])
        world.clock.sleep(10)

        swept = sweep(world.clients)

    assert (swept.created, swept.partitions) == (40, 0)


def test_a_sweep_at_the_start_takes_what_a_moment_ago_was_young(world: World) -> None:
    """B5: a worker that starts looks for what its predecessor left, whatever its age."""
    strand(world, 300)
    world.clock.sleep(1)

    with world.context():
        swept = sweep(world.clients, stale_s=0.5)
    deliver_drains(world)

    assert swept.created == 100
    assert len(sent(world)) == 300


# Unacked rows


def hold_one(clients: Clients) -> None:
    Order(id="o").put()
    outbox.enqueue_with_ack(clients, settle, lambda row: Settle("o", row), tag="settle/o")


def test_a_held_row_waits_for_its_task_and_goes_with_its_effect(world: World) -> None:
    """The row can be found by its tag until the commit that does the work."""
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
    """A slow queue is not flooded: each minute for ten, then at 20, 40 and 60, then each hour."""
    with world.context():
        transact(lambda: hold_one(world.clients))

    asked = []
    for minute in range(1, 130):
        world.clock.sleep(60)
        if spend(world).tasks:
            asked.append(minute)

    assert asked == [*range(1, 11), 20, 40, 60, 120]
    assert len(sent(world, "fan-out")) == 4, "one at first, one from ten minutes on, one an hour"


@pytest.mark.parametrize("away_s", [780, 25 * 60, 90 * 60, 24 * 3600])
def test_a_held_row_is_created_by_the_first_sweep_after_a_pause(
    world: World, away_s: float
) -> None:
    """B5: no sweep came for minutes, hours or a day: the first one wakes what waits."""
    with world.context():
        transact(lambda: hold_one(dying(world)))
    spend(world)

    world.clock.sleep(away_s)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def test_a_held_row_is_woken_as_soon_as_cloud_tasks_is_back(world: World) -> None:
    """B5: sweeps that nobody answered do not count as the wakes that were due in them."""
    clients = replace(dying(world), tasks=away(world))
    with world.context():
        transact(lambda: hold_one(clients))
        for _ in range(45):
            world.clock.sleep(60)
            sweep(clients)

    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])


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
    outbox.enqueue_with_ack(clients, settle, lambda row: Settle("o", row), tag="settle/o", at=at)


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
    monkeypatch.setattr(outbox, "MAX_PER_DRAIN", 150)  # So that walks hand over to a next task.
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

    assert idle == outbox.Depth(0, False, oldest_s=0, oldest_unacked_s=0, relayed_per_s=0)
    assert (busy.waiting, busy.is_truncated, busy.oldest_s) == (5, False, pytest.approx(90, abs=1))
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
    assert depth.oldest_unacked_s == pytest.approx(540, abs=1)


def test_the_depth_of_very_many_is_not_counted_to_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks every few seconds must not read a backlog as a whole."""
    monkeypatch.setattr(outbox, "MAX_COUNTED", 5)
    strand(world, 7)

    with world.context():
        depth = outbox.depth(world.clients)

    assert (depth.waiting, depth.is_truncated) == (5, True)
