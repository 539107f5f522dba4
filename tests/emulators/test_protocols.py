"""The protocols and versions that an emulator speaks, on one port."""

import uuid

import pytest
from google.cloud import tasks_v2beta2, tasks_v2beta3
from google.cloud.tasks_v2beta2.services.cloud_tasks import transports as transports_beta2
from google.cloud.tasks_v2beta3.services.cloud_tasks import transports as transports_beta3
from google.iam.v1 import policy_pb2

from tests.contracts.clients.rest import call
from tests.emulators.conftest import PARENT, Emulator

pytestmark = pytest.mark.emulators


def test_queues_of_v2(emulator: Emulator) -> None:
    """Queues of v2 over gRPC: created, listed, read and deleted."""
    client, other = emulator.client, f"{emulator.queue}-other"
    client.create_queue(parent=PARENT, queue={"name": other})
    assert {emulator.queue, other} <= {queue.name for queue in client.list_queues(parent=PARENT)}
    assert client.get_queue(name=other).name == other
    client.delete_queue(name=other)
    assert other not in {queue.name for queue in client.list_queues(parent=PARENT)}


def test_every_place(emulator: Emulator) -> None:
    """Any project and location."""
    parent = f"projects/other-{uuid.uuid4().hex[:8]}/locations/europe-west1"
    queue = emulator.client.create_queue(parent=parent, queue={"name": f"{parent}/queues/q"})
    assert [queue.name for queue in emulator.client.list_queues(parent=parent)] == [queue.name]


def test_an_update(emulator: Emulator) -> None:
    """`UpdateQueue` with a mask."""
    queue = {"name": emulator.queue, "rate_limits": {"max_dispatches_per_second": 7}}
    paths = ["rate_limits.max_dispatches_per_second"]
    emulator.client.update_queue(queue=queue, update_mask={"paths": paths})
    stored = emulator.client.get_queue(name=emulator.queue)
    assert stored.rate_limits.max_dispatches_per_second == 7


def test_batches(emulator: Emulator) -> None:
    """`BatchCreateTasks`, as in v2 and v2beta3."""
    task = {"http_request": {"url": f"{emulator.handler.url}/batch"}}
    members = [{"parent": emulator.queue, "task": task}] * 2
    request = {"parent": emulator.queue, "requests": members}
    assert len(emulator.client.batch_create_tasks(request=request).result(30).tasks) == 2
    emulator.wait_for("/batch")


def test_policies(emulator: Emulator) -> None:
    """Policies of IAM, stored and answered."""
    policy = policy_pb2.Policy(
        bindings=[policy_pb2.Binding(role="roles/viewer", members=["user:a@b.c"])]
    )
    client, request = emulator.client, {"resource": emulator.queue}
    client.set_iam_policy(request={**request, "policy": policy})
    assert client.get_iam_policy(request=request).bindings[0].role == "roles/viewer"


def test_rest(emulator: Emulator) -> None:
    """REST on the port of gRPC."""
    status, queue = call(emulator.address, "GET", f"/v2/{emulator.queue}")
    assert (status, queue["name"], queue["state"]) == (200, emulator.queue, "RUNNING")


def test_v2beta3(emulator: Emulator) -> None:
    """v2beta3 over gRPC, with the queues of v2."""
    transport = transports_beta3.CloudTasksGrpcTransport(channel=emulator.channel)
    client = tasks_v2beta3.CloudTasksClient(transport=transport)
    assert client.get_queue(name=emulator.queue).name == emulator.queue


def test_leases(emulator: Emulator) -> None:
    """v2beta2 over gRPC: a task of a pull queue is leased and acknowledged."""
    transport = transports_beta2.CloudTasksGrpcTransport(channel=emulator.channel)
    client = tasks_v2beta2.CloudTasksClient(transport=transport)
    name = f"{emulator.queue}-pull"
    client.create_queue(parent=PARENT, queue={"name": name, "pull_target": {}})
    client.create_task(parent=name, task={"pull_message": {"payload": b"work"}})
    request = {"parent": name, "max_tasks": 5, "lease_duration": {"seconds": 60}}
    request["response_view"] = tasks_v2beta2.Task.View.FULL
    [task] = client.lease_tasks(request=request).tasks
    assert task.pull_message.payload == b"work"
    client.acknowledge_task(request={"name": task.name, "schedule_time": task.schedule_time})
    assert not [*client.list_tasks(parent=name)]


def test_buffering(emulator: Emulator) -> None:
    """`BufferTask` of v2beta3, to the URL of the queue."""
    host, _, port = emulator.handler.url.removeprefix("http://").partition(":")
    override = {"scheme": "HTTP", "host": host, "port": int(port)}
    override["path_override"] = {"path": "/buffered"}
    queue = {"name": emulator.queue, "http_target": {"uri_override": override}}
    emulator.client.update_queue(queue=queue, update_mask={"paths": ["http_target"]})
    # No client for Python has the method: its message is the queue in field 1.
    name = emulator.queue.encode()
    method = "/google.cloud.tasks.v2beta3.CloudTasks/BufferTask"
    emulator.channel.unary_unary(method)(b"\x0a" + bytes([len(name)]) + name, timeout=20)
    emulator.wait_for("/buffered")
