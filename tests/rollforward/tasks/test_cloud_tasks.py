"""Cloud Tasks: what is sent, alone and many at once, and what its answers mean."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import tasks_v2

from rollforward.runtime import Clients, open_cloud_tasks
from rollforward.tasks.cloud_tasks import AppEngineTarget, CloudTaskQueue
from rollforward.tasks.errors import BadArgumentsError
from rollforward.testing.injection import ERROR, REPLY_LOST
from rollforward.testing.services import ACCOUNT, BASE_URL, LOCATION, PROJECT
from tests.infra.world import World
from tests.rollforward.tasks.reminders import Remind, message, one_emulator, queued, remind

pytestmark = pytest.mark.fast

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

    assert [i for i, is_new in enumerate(created) if not is_new] == [0, 57, 100, 149]
    assert len(queued(world)) == 150


@one_emulator
def test_doing_it_again_creates_nothing(world: World) -> None:
    """A batch whose names all exist is no error."""
    many, names = [Remind("a"), Remind("b")], [("a",), ("b",)]

    created = remind.enqueue_many(world.clients, many, names=names)
    repeated = remind.enqueue_many(world.clients, many, names=names)

    assert (created, repeated) == ([True, True], [False, False])
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


@one_emulator
def test_a_ping_tells_whether_the_service_answers(world: World) -> None:
    """The page of health asks this: an answer, or none, and never an error."""
    away = open_cloud_tasks(emulator="127.0.0.1:9")

    assert world.clients.tasks.ping()
    assert not CloudTaskQueue(away, PROJECT, LOCATION, world.settings.target).ping()


def test_a_used_up_quota_of_lists_is_an_answer() -> None:
    """Of more than ten instances, each asked once a second, none was ready any more."""

    class UsedUp:
        def list_queues(self, **call: object) -> None:
            raise rpc_errors.ResourceExhausted("ListQueues requests per minute")

    queue = CloudTaskQueue(UsedUp(), PROJECT, LOCATION, AppEngineTarget())  # type: ignore[arg-type]
    assert queue.ping()
