"""v2beta3 by its official client, over gRPC and REST: what differs from v2, and what it shares."""

from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2beta3

from tests.contracts.clients.rest import call
from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

OTHER = f"{PARENT}/queues/other"
Client = tasks_v2beta3.CloudTasksClient


def routed(service: str) -> dict[str, Any]:
    """Return a queue of App Engine tasks that go to one service."""
    routing = {"app_engine_routing_override": {"service": service}}
    return {"name": OTHER, "app_engine_http_queue": routing}


def test_a_queue_of_both_versions(cloud: Cloud, client: Client) -> None:
    """A queue has its routing in another place, a type, and times to live."""
    created = client.create_queue(parent=PARENT, queue=routed("mails"))

    assert created == client.get_queue(name=OTHER)
    assert created.app_engine_http_queue.app_engine_routing_override.service == "mails"
    assert created.type_ is tasks_v2beta3.Queue.Type.PUSH
    days = (created.task_ttl.days, created.tombstone_ttl.days)
    assert days == (31, 1)
    assert cloud.client.get_queue(name=OTHER).app_engine_routing_override.service == "mails"
    names = [queue.name for queue in client.list_queues(parent=PARENT)]
    assert names == [OTHER, cloud.queue]


def test_a_mask_of_an_update(cloud: Cloud, client: Client) -> None:
    """Paths name fields as v2beta3 calls them; output-only ones are passed over."""
    client.create_queue(
        parent=PARENT, queue=routed("mails") | {"retry_config": {"max_attempts": 9}}
    )
    paths = ["app_engine_http_queue.app_engine_routing_override.service", "stats", "type"]
    queue = routed("news") | {"retry_config": {"max_attempts": 3}}
    client.update_queue(queue=queue, update_mask={"paths": paths})

    updated = cloud.client.get_queue(name=OTHER)
    assert updated.app_engine_routing_override.service == "news"
    assert updated.retry_config.max_attempts == 9
    client.update_queue(queue={"name": OTHER}, update_mask={"paths": ["app_engine_http_queue"]})
    assert not cloud.client.get_queue(name=OTHER).app_engine_routing_override.service
    with pytest.raises(exceptions.BadRequest):
        client.update_queue(queue=queue, update_mask={"paths": ["colour"]})


def test_statistics(cloud: Cloud, client: Client) -> None:
    """They are shown to a mask that names them, and to no other."""
    cloud.deliver()
    cloud.create()
    cloud.deliver()
    for seconds in (60, 30):
        cloud.create_in(seconds)
    cloud.create("running")
    assert len(cloud.begin()) == 1
    mask = {"paths": ["name", "type", "stats"]}
    request = {"name": cloud.queue, "read_mask": mask}
    queue = client.get_queue(request=request)

    assert not client.get_queue(name=cloud.queue)._pb.HasField("stats")
    assert (queue.name, queue.state) == (cloud.queue, tasks_v2beta3.Queue.State.STATE_UNSPECIFIED)
    stats = queue.stats
    assert (stats.tasks_count, stats.concurrent_dispatches_count) == (3, 1)
    assert (stats.executed_last_minute_count, stats.effective_execution_rate) == (1, 500)
    assert stats.oldest_estimated_arrival_time.timestamp() == cloud.now()
    listed = client.list_queues(request={"parent": PARENT, "read_mask": mask})
    assert [queue.stats for queue in listed] == [stats]
    with pytest.raises(exceptions.BadRequest):
        client.get_queue(request={"name": cloud.queue, "read_mask": {"paths": ["colour"]}})


def test_a_task_of_both_versions(cloud: Cloud, client: Client) -> None:
    """A task that one version creates is the other's, too, attempts and bodies included."""
    http = {"url": "http://a.b/", "body": bytes(range(256)), "headers": {"A": "b"}}
    name = f"{cloud.queue}/tasks/one"
    client.create_task(parent=cloud.queue, task={"name": name, "http_request": http})
    cloud.deliver(503)

    mine = client.get_task(request={"name": name, "response_view": "FULL"})
    theirs = cloud.client.get_task(request={"name": name, "response_view": "FULL"})
    assert type(theirs).to_dict(theirs) == {
        field: value for field, value in type(mine).to_dict(mine).items() if field != "pull_message"
    }
    assert mine.last_attempt.response_status.code == 14
    assert mine.http_request.body == http["body"]
    assert client.run_task(name=name).dispatch_count == 1
    client.delete_task(name=name)
    with pytest.raises(exceptions.NotFound, match="The task no longer exists"):
        client.get_task(name=name)


def test_batches(cloud: Cloud, client: Client) -> None:
    """An operation carries messages of the version that asked for it."""
    members = [
        {"parent": cloud.queue, "task": {"http_request": {"url": url}}}
        for url in ("http://a.b/", "ftp://a.b/")
    ]
    operation = client.batch_create_tasks(request={"parent": cloud.queue, "requests": members})
    created = operation.result().tasks
    deleted = client.batch_delete_tasks(
        request={"parent": cloud.queue, "names": [task.name for task in created]}
    )

    assert [task.http_request.url for task in created] == ["http://a.b/"]
    assert "HttpTarget.url" in operation.metadata.failed_requests[1].message
    assert deleted.metadata.state is tasks_v2beta3.BatchDeleteTasksMetadata.State.SUCCEEDED
    path = f"/v2beta3/{operation.operation.name}"
    stored = call(cloud.emulator.grpc_address, "GET", path)[1]
    assert stored["response"]["@type"].endswith("v2beta3.BatchCreateTasksResponse")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task_ttl": {"seconds": 60}}, "task_ttl cannot be set"),
        ({"tombstone_ttl": {"seconds": 60}}, "tombstone_ttl cannot be set"),
        ({"rate_limits": {"max_dispatches_per_second": 501}}, "less than or equal to 500"),
    ],
)
def test_queues_that_are_not_served(client: Client, fields: dict[str, Any], words: str) -> None:
    """What the emulator cannot do is refused, not passed over."""
    with pytest.raises(exceptions.BadRequest, match=words):
        client.create_queue(parent=PARENT, queue={"name": OTHER} | fields)


def test_a_pull_queue(cloud: Cloud, client: Client) -> None:
    """Its type is immutable, and its tasks come by v2beta2 alone: here they are seen."""
    pull = tasks_v2beta3.Queue.Type.PULL
    created = client.create_queue(parent=PARENT, queue={"name": OTHER, "type_": pull})
    task = {"pullMessage": {"payload": "aGk=", "tag": "a"}}
    path = f"/v2beta2/{OTHER}/tasks"
    name = call(cloud.emulator.grpc_address, "POST", path, {"task": task})[1]["name"]

    assert (created.type_, created.retry_config.max_attempts) == (pull, -1)
    request = {"name": name, "response_view": "FULL"}
    message = client.get_task(request=request).pull_message
    assert (message.payload, message.tag) == (b"hi", "a")
    (listed,) = client.list_tasks(parent=OTHER)
    assert (listed.pull_message.payload, listed.pull_message.tag) == (b"", "a")
    with pytest.raises(exceptions.BadRequest, match="cannot change between push and pull"):
        client.update_queue(queue={"name": OTHER, "type_": tasks_v2beta3.Queue.Type.PUSH})
    client.update_queue(queue={"name": OTHER, "retry_config": {"max_attempts": 5}})
    assert client.get_queue(name=OTHER).type_ is pull


def test_pull_messages_are_refused(cloud: Cloud, client: Client) -> None:
    """A pull task alone, and in a batch."""
    task = {"pull_message": {"tag": "a"}}
    member = {"parent": cloud.queue, "task": task}

    with pytest.raises(exceptions.BadRequest, match="only in v2beta2"):
        client.create_task(parent=cloud.queue, task=task)
    with pytest.raises(exceptions.BadRequest, match="only in v2beta2"):
        client.batch_create_tasks(request={"parent": cloud.queue, "requests": [member]})


def test_buffer_task(cloud: Cloud) -> None:
    """BufferTask has messages of its own in each version."""
    address = cloud.emulator.grpc_address
    target = {"uriOverride": {"host": "a.b"}}
    call(address, "POST", f"/v2beta3/{PARENT}/queues", {"name": OTHER, "httpTarget": target})
    status, content = call(address, "POST", f"/v2beta3/{OTHER}/tasks/one:buffer")

    assert (status, content["task"]["name"]) == (200, f"{OTHER}/tasks/one")
    assert content["task"]["httpRequest"]["url"] == "https://a.b/"


def test_an_unknown_version(cloud: Cloud) -> None:
    """A version that is not served has no address, and no service."""
    address = cloud.emulator.grpc_address
    status, content = call(address, "GET", f"/v2beta3/{cloud.queue}/tasks:lease")
    assert (status, content["error"]["status"]) == (404, "NOT_FOUND")
    with grpc.insecure_channel(address) as channel:
        for path in ("/google.cloud.tasks.v2beta9.CloudTasks/GetQueue", "/a.B/C", "/v2/GetQueue"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
