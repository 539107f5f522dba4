"""Tasks: what is sent, what is refused, and what a name means."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import tasks_v2
from google.rpc import code_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pipelines.runtime import Clients, open_cloud_tasks
from pipelines.runtime.messages import Message
from pipelines.tasks.declaration import (
    MAX_BODY_BYTES,
    MAX_DELAY_S,
    AppEngineTarget,
    BadArgumentsError,
    CloudTaskQueue,
    NotConfirmedError,
    NotTriedError,
    Task,
    TooLargeError,
    UrlTarget,
    hashed_name,
    task,
)
from tests.faults import ERROR, REPLY_LOST
from tests.world import ACCOUNT, BASE_URL, LOCATION, PROJECT, World

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@dataclass(frozen=True)
class Remind:
    """Arguments of the task under test."""

    party_id: str
    days: int = 0


@task("/tasks/tests/remind", queue="default")
def remind(clients: Clients, args: Remind) -> None:
    """Do nothing: these tests look at what is sent."""


def queued(world: World) -> list[Any]:
    """Return the tasks in the queues, as the official client shows them."""
    client = open_cloud_tasks(emulator=world.services.cloud_tasks.grpc_address)
    return [
        found
        for queue in ("default", "imports", "fan-out")
        for found in client.list_tasks(
            request={
                "parent": f"projects/{PROJECT}/locations/{LOCATION}/queues/{queue}",
                "response_view": tasks_v2.Task.View.FULL,
            }
        )
    ]


# Declaring


def test_a_declaration_knows_its_arguments() -> None:
    """The second parameter's type is what the task takes."""
    assert (remind.args, remind.path, remind.queue) == (Remind, "/tasks/tests/remind", "default")


@pytest.mark.parametrize("path", ["/remind", "tasks/remind", "", "http://evil.example/tasks/x"])
def test_a_task_lives_below_tasks(path: str) -> None:
    """S12: a path elsewhere would be a page, or another host."""
    with pytest.raises(ValueError, match="/tasks/"):
        task(path, queue="default")


# What is sent


@one_emulator
def test_a_task_travels_as_json_with_a_token(world: World) -> None:
    """The request goes to the app's own URL with our account's token for our audience."""
    assert remind.enqueue(world.clients, Remind("庭", 3))

    [sent] = queued(world)
    request = sent.http_request
    assert request.url == f"{BASE_URL}/tasks/tests/remind"
    assert request.http_method == tasks_v2.HttpMethod.POST
    assert json.loads(request.body) == {"party_id": "庭", "days": 3}
    assert request.headers["Content-Type"] == "application/json"
    assert request.oidc_token.service_account_email == ACCOUNT
    assert request.oidc_token.audience == BASE_URL
    assert not sent.retry_config


@one_emulator
def test_a_task_for_app_engine_has_a_relative_address(world: World) -> None:
    """On App Engine the request goes to a service of the same app, without a token."""
    client = open_cloud_tasks(emulator=world.services.cloud_tasks.grpc_address)
    queue = CloudTaskQueue(client, PROJECT, LOCATION, AppEngineTarget("worker"))
    clients = replace(world.clients, tasks=queue)

    assert remind.enqueue(clients, Remind("p1"), name=("a",))
    assert not remind.enqueue(clients, Remind("p1"), name=("a",))

    [sent] = queued(world)
    request = sent.app_engine_http_request
    assert request.relative_uri == "/tasks/tests/remind"
    assert request.http_method == tasks_v2.HttpMethod.POST
    assert request.app_engine_routing.service == "worker"
    assert request.headers["Content-Type"] == "application/json"
    assert not sent.http_request.url


@one_emulator
def test_a_delay_and_a_time_say_when(world: World) -> None:
    """`delay_s` counts from now; `at` is a time of any zone."""
    now = world.clock.now()
    tokyo = datetime.timezone(datetime.timedelta(hours=9))

    remind.enqueue(world.clients, Remind("delayed"), delay_s=90)
    remind.enqueue(
        world.clients, Remind("timed"), at=(now + datetime.timedelta(hours=1)).astimezone(tokyo)
    )
    remind.enqueue(world.clients, Remind("at once"))

    times = {json.loads(t.http_request.body)["party_id"]: t.schedule_time for t in queued(world)}
    assert abs(times["delayed"] - now - datetime.timedelta(seconds=90)).total_seconds() < 0.01
    assert abs(times["timed"] - now - datetime.timedelta(hours=1)).total_seconds() < 0.01
    assert [due.task_name for due in world.engine.due()] == [
        t.name for t in queued(world) if json.loads(t.http_request.body)["party_id"] == "at once"
    ]


@one_emulator
def test_a_task_may_be_dropped_after_some_attempts(world: World) -> None:
    """`max_attempts` is handed to Cloud Tasks."""
    remind.enqueue(world.clients, Remind("p1"), max_attempts=2)

    assert queued(world)[0].retry_config.max_attempts == 2


# What is refused


@one_emulator
@pytest.mark.parametrize(
    "options",
    [
        {"at": datetime.datetime(2030, 1, 1)},  # noqa: DTZ001
        {"at": datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)},
        {"delay_s": MAX_DELAY_S + 1},
    ],
    ids=["naive", "far", "long"],
)
def test_a_time_that_cannot_be_meant_is_refused(world: World, options: dict[str, Any]) -> None:
    """A naive time, or one beyond 30 days: refused before anything is sent."""
    with pytest.raises(BadArgumentsError):
        remind.enqueue(world.clients, Remind("p1"), **options)

    assert queued(world) == []


@one_emulator
def test_the_longest_delay_is_taken(world: World) -> None:
    """Up to 30 days, which is what the service allows."""
    assert remind.enqueue(world.clients, Remind("p1"), delay_s=MAX_DELAY_S - 1)


WRONG: list[Any] = [
    Remind(5),  # type: ignore[arg-type]
    Remind("p1", "3"),  # type: ignore[arg-type]
    Remind("p1", 1.5),  # type: ignore[arg-type]
    Remind(None),  # type: ignore[arg-type]
    Remind(["p1"]),  # type: ignore[arg-type]
    Remind("\ud800"),
    {"party_id": "p1"},
    "p1",
    None,
]


@one_emulator
@pytest.mark.parametrize("args", WRONG, ids=repr)
def test_arguments_of_another_type_are_refused(world: World, args: Any) -> None:
    """What no delivery could read is not enqueued: the caller learns of it, not the queue."""
    with pytest.raises(BadArgumentsError):
        remind.enqueue(world.clients, args)

    assert queued(world) == []


@one_emulator
@pytest.mark.parametrize("text", ["x", "庭", "\x00"])
def test_an_oversized_task_is_refused(world: World, text: str) -> None:
    """H5: more than 100 KB of body, counted as it travels, is refused at the caller's."""
    size = len(json.dumps(text, ensure_ascii=False).encode()) - 2
    fits = text * ((MAX_BODY_BYTES - 50) // size)

    assert remind.enqueue(world.clients, Remind(fits))
    with pytest.raises(TooLargeError):
        remind.enqueue(world.clients, Remind(fits + text * 100))

    assert len(queued(world)) == 1


@one_emulator
def test_a_name_of_many_bytes_is_refused(world: World) -> None:
    """A name is made of ids; 2,000 bytes of them are an error of the caller's."""
    with pytest.raises(TooLargeError):
        remind.enqueue(world.clients, Remind("p1"), name=("x" * 2_001,))

    assert queued(world) == []


# Names

parts = st.lists(st.one_of(st.text(max_size=8), st.integers()), max_size=4).map(tuple)


@given(parts, parts)
def test_names_are_equal_exactly_when_their_parts_are(one: tuple[Any, ...], two: Any) -> None:
    """A5: no two things share a name: not ("a", "11") and ("a1", "1"), not 1 and "1"."""
    assert (hashed_name(*one) == hashed_name(*two)) == (one == two)


def test_a_name_is_the_same_in_each_version() -> None:
    """B1: what an earlier version has enqueued, this one finds to exist."""
    assert hashed_name("page", "é", 2) == "f68d8259a525d9eb5d29e5987b07e8761eb68681"
    assert hashed_name("page", "\ud800") != hashed_name("page", "\ud801")


@given(parts)
def test_a_name_is_one_that_cloud_tasks_takes(one: tuple[Any, ...]) -> None:
    """Whatever the parts hold, the id is hex: no user's text gets into an address."""
    name = hashed_name(*one)

    assert len(name) == 40
    assert set(name) <= set("0123456789abcdef")


@one_emulator
def test_a_name_that_exists_is_an_answer(world: World) -> None:
    """A second create says False, also after the task has run: names are remembered."""
    first = remind.enqueue(world.clients, Remind("p1"), name=("p1", 1))
    again = remind.enqueue(world.clients, Remind("other"), name=("p1", 1))
    [due] = world.engine.due()
    world.engine.end_attempt(world.engine.begin_attempt(due.task_name).id, status=204)
    later = remind.enqueue(world.clients, Remind("p1"), name=("p1", 1))

    assert (first, again, later) == (True, False, False)
    assert queued(world) == []


@one_emulator
def test_two_tasks_of_one_name_do_not_meet(world: World) -> None:
    """The path is part of the name: another task may use the same parts."""
    other = replace(remind, path="/tasks/tests/other")

    assert remind.enqueue(world.clients, Remind("p1"), name=("p1",))
    assert other.enqueue(world.clients, Remind("p1"), name=("p1",))


# Many at once


@one_emulator
@pytest.mark.parametrize("count", [0, 1, 2, 100, 101, 250])
def test_many_tasks_go_out_100_a_call(world: World, count: int) -> None:
    """Every one arrives, in as few calls as there can be."""
    many = [Remind(f"p{i}", i) for i in range(count)]

    with world.plan.watched():
        created = remind.enqueue_many(world.clients, many)

    assert created == [True] * count
    bodies = [json.loads(sent.http_request.body)["days"] for sent in queued(world)]
    assert sorted(bodies) == list(range(count))
    calls = [name for name in world.plan.calls if name.endswith(("CreateTask", "CreateTasks"))]
    assert len(calls) == -(-count // 100)


@one_emulator
def test_names_that_exist_are_told_one_by_one(world: World) -> None:
    """In a batch each task has its own answer; those that exist hold up no other."""
    for i in (0, 57, 100, 149):
        remind.enqueue(world.clients, Remind(f"p{i}"), name=(i,))

    many = [Remind(f"p{i}") for i in range(150)]
    created = remind.enqueue_many(world.clients, many, names=[(i,) for i in range(150)])

    assert [i for i, new in enumerate(created) if not new] == [0, 57, 100, 149]
    assert len(queued(world)) == 150


@one_emulator
def test_doing_it_again_creates_nothing(world: World) -> None:
    """A batch whose names all exist is no error."""
    many, names = [Remind("a"), Remind("b")], [("a",), ("b",)]

    first = remind.enqueue_many(world.clients, many, names=names)
    again = remind.enqueue_many(world.clients, many, names=names)

    assert (first, again) == ([True, True], [False, False])
    assert len(queued(world)) == 2


@one_emulator
def test_a_name_twice_in_one_batch_makes_one_task(world: World) -> None:
    """The second of two equal names is told that it exists."""
    many = [Remind("a"), Remind("b"), Remind("c")]

    created = remind.enqueue_many(world.clients, many, names=[("x",), ("x",), ("y",)])

    assert created == [True, False, True]


@one_emulator
@pytest.mark.parametrize("names", [[], [("a",)], [("a",), ("b",), ("c",)]])
def test_as_many_names_as_tasks(world: World, names: list[tuple[str]]) -> None:
    """A list of names of another length is an error, and nothing is sent."""
    with pytest.raises(ValueError, match="zip"):
        remind.enqueue_many(world.clients, [Remind("a"), Remind("b")], names=names)

    assert queued(world) == []


@one_emulator
def test_one_bad_argument_among_many_sends_nothing(world: World) -> None:
    """All are checked before the first is sent."""
    with pytest.raises(BadArgumentsError):
        remind.enqueue_many(world.clients, [Remind("a"), Remind(5)])  # type: ignore[arg-type]

    assert queued(world) == []


def message(queue: str, name: str, at: datetime.datetime | None = None) -> Message:
    return Message("/tasks/tests/remind", queue, b'{"party_id": "p"}', hashed_name(name), at)


@one_emulator
def test_tasks_of_several_queues_keep_their_places(world: World) -> None:
    """A call takes one queue; the answers come back in the order of the messages."""
    world.clients.tasks.create(message("imports", "1"))
    queues = ["default", "imports", "fan-out", "imports", "default", "fan-out"]

    created = world.clients.tasks.create_many(
        [message(queue, str(i)) for i, queue in enumerate(queues)]
    )

    assert created == [True, False, True, True, True, True]
    assert len(queued(world)) == 6


@one_emulator
def test_a_refusal_in_a_batch_rises_and_the_others_are_there(world: World) -> None:
    """B7: one bad member blocks no other, and it is not passed over in silence."""
    far = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)
    messages = [message("default", "a"), message("default", "b", far), message("default", "c")]

    with pytest.raises(rpc_errors.InvalidArgument):
        world.clients.tasks.create_many(messages)

    assert len(queued(world)) == 2
    assert world.clients.tasks.create_many([messages[0], messages[2]]) == [False, False]


@one_emulator
def test_an_unknown_queue_is_an_error(world: World) -> None:
    """A queue that queue.yaml does not declare: the caller learns of it."""
    with pytest.raises(rpc_errors.NotFound):
        world.clients.tasks.create(message("nowhere", "a"))
    with pytest.raises(rpc_errors.NotFound):
        world.clients.tasks.create_many([message("nowhere", "a"), message("nowhere", "b")])


def send_one(clients: Clients) -> None:
    remind.enqueue(clients, Remind("a"), name=("a",))


def send_two(clients: Clients) -> None:
    remind.enqueue_many(clients, [Remind("a"), Remind("b")], names=[("a",), ("b",)])


@one_emulator
@pytest.mark.parametrize("send", [send_one, send_two])
@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
def test_a_failed_call_is_told_and_doing_it_again_is_safe(
    world: World, send: Callable[[Clients], None], kind: str
) -> None:
    """B1: the caller learns that nobody knows; with names, trying again creates each once."""
    world.plan.kind, world.plan.at = kind, 0
    with world.plan.watched(), pytest.raises(rpc_errors.ServiceUnavailable):
        send(world.clients)

    send(world.clients)

    names = [sent.name for sent in queued(world)]
    assert len(names) == len(set(names)) == (1 if send is send_one else 2)


# A batch that does not end well

State = tasks_v2.BatchCreateTasksMetadata.State
SEVERAL = [message("default", str(i)) for i in range(5)]


@dataclass
class Operation:
    """A batch's operation as the client sees it when it looked for the last time."""

    error: Exception | None
    state: Any = None  # None: no metadata at all.
    failed: dict[int, int] = field(default_factory=dict)  # Codes by index.

    def result(self, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        return tasks_v2.BatchCreateTasksResponse()

    @property
    def metadata(self) -> Any:
        if self.state is None:
            return None
        failed = {i: status_pb2.Status(code=code) for i, code in self.failed.items()}
        return tasks_v2.BatchCreateTasksMetadata(state=self.state, failed_requests=failed)


@dataclass
class Service:
    """Cloud Tasks whose batches end as the test says; notes what it was asked for."""

    batch: Callable[[str], Any]  # Given the queue: an operation, or an error to raise.
    alone: Callable[[str], Exception | None] = lambda name: None
    batches: list[tuple[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def batch_create_tasks(self, request: Any, timeout: float) -> Any:
        queue = request.parent.rpartition("/")[2]
        self.batches.append((queue, len(request.requests)))
        outcome = self.batch(queue)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def create_task(self, request: Any, timeout: float) -> Any:
        self.names.append(request.task.name.rpartition("/")[2])
        if error := self.alone(self.names[-1]):
            raise error

    def create_each(self, messages: list[Message]) -> list[bool | Exception]:
        target = UrlTarget(BASE_URL, ACCOUNT, BASE_URL)
        return CloudTaskQueue(self, PROJECT, LOCATION, target).create_each(messages)


EXISTS = {0: code_pb2.ALREADY_EXISTS}
CUT_SHORT = {
    "still running": Operation(TimeoutError("30 s"), State.RUNNING, EXISTS),
    "failed": Operation(rpc_errors.InternalServerError("gave up"), State.FAILED, EXISTS),
    "cancelled": Operation(rpc_errors.Cancelled("cancelled"), State.CANCELLED, EXISTS),
    "said nothing": Operation(rpc_errors.InternalServerError("?"), State.STATE_UNSPECIFIED, EXISTS),
}


@pytest.mark.parametrize("operation", CUT_SHORT.values(), ids=CUT_SHORT)
def test_a_batch_that_is_cut_short_creates_what_it_confirms_and_no_more(
    operation: Operation,
) -> None:
    """B1, B4: not to be among the failed ones means nothing before the batch has ended."""
    answers = Service(lambda queue: operation).create_each(SEVERAL)

    assert answers == [False, *[operation.error] * 4]


NO_METADATA = {
    "timeout": Operation(TimeoutError("30 s")),
    "error": Operation(rpc_errors.ServiceUnavailable("?")),
    "retried": Operation(rpc_errors.RetryError("gave up", cause=ValueError())),
}


@pytest.mark.parametrize("operation", NO_METADATA.values(), ids=NO_METADATA)
def test_an_operation_without_metadata_is_no_answer(operation: Operation) -> None:
    """B4: whoever asked is told the error for each member; nothing raises."""
    assert Service(lambda queue: operation).create_each(SEVERAL) == [operation.error] * 5


def test_an_end_that_tells_nothing_of_its_members_is_no_answer() -> None:
    """B4: an operation that is done but has no metadata confirms none of them."""
    answers = Service(lambda queue: Operation(None)).create_each(SEVERAL)

    assert [type(answer) for answer in answers] == [NotConfirmedError] * 5


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.PARTIALLY_SUCCEEDED])
@pytest.mark.parametrize("error", [None, rpc_errors.ServiceUnavailable("the last look")])
def test_a_batch_that_has_ended_created_what_did_not_fail(
    state: Any, error: Exception | None
) -> None:
    """Its state says that it has ended, also when the look that should tell the result failed."""
    operation = Operation(error, state, EXISTS)

    assert Service(lambda queue: operation).create_each(SEVERAL) == [False, True, True, True, True]


@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.MethodNotImplemented("no batches here"),
        rpc_errors.InvalidArgument("one is bad"),
        rpc_errors.NotFound("no such queue"),
        rpc_errors.FailedPrecondition("disabled"),
        rpc_errors.OutOfRange("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_batch_that_is_refused_goes_out_one_by_one(error: Exception) -> None:
    """B7: where batches are refused, or unknown, each task gets its own answer."""
    service = Service(
        lambda queue: error,
        alone=lambda name: rpc_errors.AlreadyExists("x") if name == SEVERAL[1].name else None,
    )

    assert service.create_each(SEVERAL) == [True, False, True, True, True]
    assert service.names == [message.name for message in SEVERAL]


def test_a_member_that_the_service_could_not_create_is_not_asked_for_again() -> None:
    """A member that failed for the service's own trouble waits for the next relay."""
    failed = {0: code_pb2.UNAVAILABLE, 1: code_pb2.INVALID_ARGUMENT, 2: code_pb2.ALREADY_EXISTS}
    service = Service(lambda queue: Operation(None, State.PARTIALLY_SUCCEEDED, failed))

    answers = service.create_each(SEVERAL)

    assert isinstance(answers[0], rpc_errors.ServiceUnavailable)
    assert answers[1:] == [True, False, True, True]
    assert service.names == [SEVERAL[1].name]


def test_one_task_that_fails_does_not_hold_up_the_next_hundred() -> None:
    """B7: a part counts as unanswered only when each of its members met the service's trouble."""
    failed = {0: code_pb2.UNAVAILABLE}
    service = Service(lambda queue: Operation(None, State.PARTIALLY_SUCCEEDED, failed))

    answers = service.create_each([message("default", str(i)) for i in range(101)])

    assert [i for i, answer in enumerate(answers) if answer is not True] == [0]


UNANSWERED = [
    TimeoutError("30 s"),
    rpc_errors.Aborted("contention"),
    rpc_errors.Cancelled("?"),
    rpc_errors.DataLoss("?"),
    rpc_errors.DeadlineExceeded("late"),
    rpc_errors.InternalServerError("sick"),
    rpc_errors.ResourceExhausted("quota"),
    rpc_errors.RetryError("gave up", cause=ValueError()),
    rpc_errors.ServiceUnavailable("away"),
    rpc_errors.Unknown("?"),
]


@pytest.mark.parametrize("error", UNANSWERED, ids=lambda error: type(error).__name__)
def test_a_sick_queue_does_not_starve_the_others(error: Exception) -> None:
    """B7: its further parts are not tried, those of another queue are."""
    service = Service(
        lambda queue: error if queue == "default" else Operation(None, State.SUCCEEDED)
    )
    queues = ["default"] * 101 + ["imports"] * 2 + ["default"]

    answers = service.create_each([message(q, str(i)) for i, q in enumerate(queues)])

    assert service.batches == [("default", 100), ("imports", 2)]
    assert answers[:100] == [error] * 100
    assert answers[101:103] == [True, True]
    assert [type(answers[i]) for i in (100, 103)] == [NotTriedError] * 2


def test_a_service_that_is_away_is_asked_for_two_queues_and_no_more() -> None:
    """When a second queue does not answer either it is the service, and its callers wait."""
    service = Service(lambda queue: rpc_errors.ServiceUnavailable("away"))
    queues = ["default", "default", "imports", "imports", "fan-out", "fan-out"]

    answers = service.create_each([message(q, str(i)) for i, q in enumerate(queues)])

    assert service.batches == [("default", 2), ("imports", 2)]
    assert [type(answer) for answer in answers[4:]] == [NotTriedError] * 2


@one_emulator
def test_a_ping_tells_whether_the_service_answers(world: World) -> None:
    """The page of health asks this: an answer, or none, and never an error."""
    away = open_cloud_tasks(emulator="127.0.0.1:9")

    assert world.clients.tasks.ping()
    assert not CloudTaskQueue(away, PROJECT, LOCATION, world.settings.target).ping()


def test_what_is_read_is_what_was_sent() -> None:
    """A body is read by the same declaration that wrote it."""
    sent: Task[Remind] = remind

    assert sent.read(sent.message(Remind("庭", -(10**30))).body) == Remind("庭", -(10**30))
