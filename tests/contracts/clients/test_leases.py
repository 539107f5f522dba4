"""Pull queues by the official client of v2beta2: leases, tags, and who may end a task."""

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2beta2
from google.protobuf import timestamp_pb2

from tests.contracts.clients.beta2 import PULL, Client, lease, pull_queue, put, tags_of
from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

FULL = tasks_v2beta2.Task.View.FULL


def test_a_pull_queue(cloud: Cloud, client: Client) -> None:
    """Its limits are output only; of the settings of retries it has the attempts."""
    queue = pull_queue(client, rate_limits={"max_concurrent_tasks": 3})

    assert queue == client.get_queue(name=PULL)
    assert queue._pb.WhichOneof("target_type") == "pull_target"
    assert queue.rate_limits.max_concurrent_tasks == -1
    assert queue.rate_limits.max_tasks_dispatched_per_second == 500
    assert queue.retry_config.unlimited_attempts
    client.update_queue(
        queue={"name": PULL, "retry_config": {"max_attempts": 3}},
        update_mask={"paths": ["retry_config.max_attempts"]},
    )
    assert client.get_queue(name=PULL).retry_config.max_attempts == 3
    request = {"parent": PARENT, "filter": "pull_target: *"}
    assert [queue.name for queue in client.list_queues(request=request)] == [PULL]
    target = {"name": PULL, "app_engine_http_target": {}}
    with pytest.raises(exceptions.BadRequest, match="cannot change between push and pull"):
        client.update_queue(queue=target, update_mask={"paths": ["app_engine_http_target"]})


def test_a_lease(cloud: Cloud, client: Client) -> None:
    """A leased task is nobody else's until its schedule time, which is the lease's end."""
    pull_queue(client)
    created = put(client, payload=b"work", tag="a")
    assert (created.pull_message.tag, created.pull_message.payload) == ("a", b"")

    (task,) = lease(client, 30)
    assert task.name == created.name
    assert task.schedule_time.timestamp() == cloud.now() + 30
    assert task.status.attempt_dispatch_count == 1
    assert not task._pb.status.HasField("first_attempt_status")
    assert lease(client) == []
    cloud.advance(29)
    assert lease(client) == []
    cloud.advance(1)
    (again,) = lease(client, response_view=FULL)
    assert (again.name, again.pull_message.payload) == (task.name, b"work")
    assert again.status.attempt_dispatch_count == 2


def test_an_acknowledged_task(cloud: Cloud, client: Client) -> None:
    """It has ended, and its name is taken as that of any other task."""
    pull_queue(client)
    name = put(client, "one").name
    (task,) = lease(client)
    client.acknowledge_task(name=name, schedule_time=task.schedule_time)

    assert list(client.list_tasks(parent=PULL)) == []
    with pytest.raises(exceptions.NotFound, match="completed or was deleted"):
        client.get_task(name=name)
    with pytest.raises(exceptions.NotFound):
        client.acknowledge_task(name=name, schedule_time=task.schedule_time)
    with pytest.raises(exceptions.Conflict):
        put(client, "one")


def test_renewed_and_cancelled_leases(cloud: Cloud, client: Client) -> None:
    """Each changes the schedule time, and with it the proof of the lease."""
    pull_queue(client)
    put(client, "one", payload=b"x")
    (task,) = lease(client, 30)
    cloud.advance(20)
    renewed = client.renew_lease(
        name=task.name, schedule_time=task.schedule_time, lease_duration={"seconds": 60}
    )

    assert renewed.schedule_time.timestamp() == cloud.now() + 60
    with pytest.raises(exceptions.BadRequest, match="another schedule_time proves"):
        client.acknowledge_task(name=task.name, schedule_time=task.schedule_time)
    cloud.advance(40)
    assert lease(client) == []
    cancelled = client.cancel_lease(
        request={
            "name": task.name, "schedule_time": renewed.schedule_time, "response_view": FULL
        }
    )  # fmt: skip
    assert cancelled.schedule_time.timestamp() == cloud.now()
    assert cancelled.pull_message.payload == b"x"
    assert [task.name for task in lease(client)] == [cancelled.name]


@pytest.mark.parametrize("call", ["acknowledge_task", "renew_lease", "cancel_lease"])
def test_who_holds_no_lease(cloud: Cloud, client: Client, call: str) -> None:
    """A task that waits, a lease that has expired, and no proof at all change nothing."""
    pull_queue(client)
    cloud_time = timestamp_pb2.Timestamp(seconds=int(cloud.now()) + 50)
    put(client, "waiting", schedule_time=cloud_time)
    put(client, "expired")
    (task,) = lease(client, 10)
    cloud.advance(10)
    before = list(client.list_tasks(parent=PULL))
    extra = {"lease_duration": {"seconds": 60}} if call == "renew_lease" else {}

    for waiting in before:
        request = {"name": waiting.name, "schedule_time": waiting.schedule_time}
        with pytest.raises(exceptions.BadRequest):
            getattr(client, call)(request=request | extra)
    with pytest.raises(exceptions.BadRequest, match="schedule_time is required"):
        getattr(client, call)(request={"name": task.name} | extra)
    request = {"name": f"{PULL}/tasks/none", "schedule_time": task.schedule_time}
    with pytest.raises(exceptions.NotFound):
        getattr(client, call)(request=request | extra)
    assert list(client.list_tasks(parent=PULL)) == before


def test_tags(cloud: Cloud, client: Client) -> None:
    """A filter takes one tag, or that of the task that is due first."""
    pull_queue(client)
    for number, tag in enumerate(["a", "b", "a", "b", "c d", ""]):
        put(client, f"t{number}", tag=tag)

    assert tags_of(lease(client, filter="tag=b")) == ["b", "b"]
    assert lease(client, filter="tag=b") == []
    assert tags_of(lease(client, filter='tag="c d"')) == ["c d"]
    assert tags_of(lease(client, filter="tag_function=oldest_tag()")) == ["a", "a"]
    assert tags_of(lease(client, filter="tag=")) == [""]
    assert lease(client, filter="tag_function=oldest_tag()") == []
    cloud.advance(600)
    assert tags_of(lease(client, 60, max_tasks=3)) == ["a", "b", "a"]


def test_the_order_of_leases(cloud: Cloud, client: Client) -> None:
    """The earliest schedule time goes first, and nothing goes before it."""
    pull_queue(client)
    for number, seconds in enumerate([30, 10, 20, 999]):
        at = timestamp_pb2.Timestamp(seconds=int(cloud.now()) + seconds)
        put(client, f"t{number}", tag=str(number), schedule_time=at)

    assert lease(client) == []
    cloud.advance(30)
    assert tags_of(lease(client, max_tasks=2)) == ["1", "2"]
    assert tags_of(lease(client)) == ["0"]


def test_a_task_that_is_leased_too_often(cloud: Cloud, client: Client) -> None:
    """The queue's attempts are leases; what has used them up is gone."""
    pull_queue(client, retry_config={"max_attempts": 2})
    put(client, "one")
    for _ in range(2):
        assert len(lease(client, 10)) == 1
        cloud.advance(10)

    assert lease(client) == []
    assert list(client.list_tasks(parent=PULL)) == []


def test_the_rate_of_lease_calls(cloud: Cloud, client: Client) -> None:
    """A queue takes ten calls a second."""
    pull_queue(client)
    for _ in range(10):
        lease(client)

    with pytest.raises(exceptions.TooManyRequests):
        lease(client)
    cloud.advance(0.1)
    lease(client)


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"max_tasks": 0}, "max_tasks must be between 1 and 1000"),
        ({"max_tasks": 1001}, "max_tasks must be between 1 and 1000"),
        ({"lease_duration": {"seconds": 0}}, "lease_duration must be between"),
        ({"lease_duration": {"seconds": 604_801}}, "lease_duration must be between"),
        ({"filter": "colour=red"}, "filter must be"),
        ({"filter": "tag_function=newest_tag()"}, "filter must be"),
        ({"filter": "tag=" + "x" * 500}, "less than 500 characters"),
    ],
)
def test_leases_that_are_refused(
    cloud: Cloud, client: Client, request_fields: dict[str, object], words: str
) -> None:
    """A call that is out of bounds leases nothing."""
    pull_queue(client)
    put(client)
    request = {"parent": PULL, "max_tasks": 1, "lease_duration": {"seconds": 10}}

    with pytest.raises(exceptions.BadRequest, match=words):
        client.lease_tasks(request=request | request_fields)
    assert len(lease(client)) == 1


def test_queues_that_lease_nothing(cloud: Cloud, client: Client) -> None:
    """A paused one, a push queue, and none."""
    pull_queue(client)
    put(client)
    client.pause_queue(name=PULL)

    with pytest.raises(exceptions.BadRequest, match="paused"):
        lease(client)
    with pytest.raises(exceptions.BadRequest, match="pull queue"):
        lease(client, queue=cloud.queue)
    with pytest.raises(exceptions.NotFound):
        lease(client, queue=f"{PARENT}/queues/none")
    client.resume_queue(name=PULL)
    assert len(lease(client)) == 1


def test_tasks_of_the_wrong_kind(cloud: Cloud, client: Client) -> None:
    """A pull message is for pull queues, and nothing else is; what is too large is for none."""
    pull_queue(client)
    http = {"http_request": {"url": "http://a.b/"}}

    with pytest.raises(exceptions.BadRequest, match="must have a pull_message"):
        client.create_task(parent=PULL, task=http)
    with pytest.raises(exceptions.BadRequest, match="only if Queue"):
        client.create_task(parent=cloud.queue, task={"pull_message": {}})
    with pytest.raises(exceptions.BadRequest, match="must have a pull_message"):
        cloud.client.create_task(parent=PULL, task=http)
    with pytest.raises(exceptions.BadRequest, match="too large"):
        put(client, payload=b"x" * 1024 * 1024)
    with pytest.raises(exceptions.BadRequest, match="less than 500 characters"):
        put(client, tag="x" * 500)
    assert list(client.list_tasks(parent=PULL)) == []


def test_a_pull_task_is_never_sent(cloud: Cloud, client: Client) -> None:
    """Neither the dispatcher nor RunTask takes it, and nobody waits for it."""
    pull_queue(client)
    name = put(client).name

    assert cloud.begin() == []
    assert cloud.engine.wake_at() is None
    assert cloud.engine.is_idle()
    with pytest.raises(exceptions.BadRequest, match="can only be leased"):
        client.run_task(name=name)
    assert len(lease(client)) == 1


def test_a_purge_and_a_deletion(cloud: Cloud, client: Client) -> None:
    """Leased or not, tasks go."""
    pull_queue(client)
    names = [put(client, f"t{number}").name for number in range(3)]
    lease(client, max_tasks=1)
    client.delete_task(name=names[0])
    assert [task.name for task in client.list_tasks(parent=PULL)] == names[1:]
    client.purge_queue(name=PULL)

    assert list(client.list_tasks(parent=PULL)) == []
    assert lease(client) == []
