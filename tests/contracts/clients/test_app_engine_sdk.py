"""The calls that App Engine's SDK 3.1 for Python makes, with what it reads of the answers.

Written down from its `taskqueue/cloudtask.py`, which APPENGINE_USE_CLOUDTASK_PUSH_QUEUE turns on.
The SDK itself needs urllib3 1, so it has an environment of its own, which `make clients` makes. Its
test is skipped without.
"""

import datetime
import json
import subprocess
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2, tasks_v2beta3
from google.cloud.tasks_v2beta3.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2
from google.rpc import code_pb2

from tests.contracts.conftest import NOW, PARENT, Cloud, Handler

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv/app-engine-sdk/bin/python"
PROGRAM = Path(__file__).with_name("sdk_program.py")


def payload(cloud: Cloud, task_id: str = "") -> tasks_v2.Task:
    """Return a task as `taskqueue.Task(url="/work", params={"x": 1})` makes it."""
    task = tasks_v2.Task(
        app_engine_http_request={
            "http_method": tasks_v2.HttpMethod.POST,
            "relative_uri": "/work",
            "body": b"x=1",
            "headers": {"content-type": "application/x-www-form-urlencoded"},
            "app_engine_routing": {"service": "default"},
        }
    )
    if task_id:
        task.name = cloud.client.task_path("demo-local", "us-central1", "work", task_id)
    return task


@pytest.mark.fast
def test_a_task_with_retry_options(cloud: Cloud) -> None:
    """`Queue.add` of one task: a countdown, and options of retries of the task's own."""
    task = payload(cloud)
    task.schedule_time = timestamp_pb2.Timestamp(seconds=int(NOW) + 60, nanos=5_000)
    task.retry_config = {"max_attempts": 2, "min_backoff": duration_pb2.Duration(seconds=1)}
    request = {"parent": cloud.queue, "task": task}
    name = cloud.client.create_task(request=request, timeout=20).name

    assert name.rpartition("/")[2].isalnum()
    cloud.advance(61)
    cloud.deliver(500)
    cloud.advance(2)
    (attempt,) = cloud.deliver(500)
    assert attempt.headers["X-AppEngine-TaskRetryCount"] == "1"
    assert attempt.body == b"x=1"
    assert list(cloud.client.list_tasks(parent=cloud.queue)) == []


@pytest.mark.fast
def test_tasks_at_once(cloud: Cloud) -> None:
    """`Queue.add` of many: the answer is complete, and a name that is taken has code 6."""
    requests = [
        {"parent": cloud.queue, "task": payload(cloud, task_id)} for task_id in ("a", "b", "a")
    ]
    request = {"parent": cloud.queue, "requests": requests}
    operation = cloud.client.batch_create_tasks(request=request, timeout=20)

    assert operation.operation.done
    failed = operation.metadata.failed_requests
    assert {index: status.code for index, status in failed.items()} == {2: code_pb2.ALREADY_EXISTS}
    assert [task.name.rpartition("/")[2] for task in operation.result(timeout=0).tasks] == [
        "a",
        "b",
    ]


@pytest.mark.fast
def test_deletions(cloud: Cloud) -> None:
    """`Queue.delete_tasks`: a task that is not there has code 5, alone and among others."""
    cloud.create("a")
    for names, failures in ((["a", "none"], [1]), (["none"], [0])):
        request = {"parent": cloud.queue, "names": [f"{cloud.queue}/tasks/{n}" for n in names]}
        operation = cloud.client.batch_delete_tasks(request=request, timeout=20)
        failed = operation.metadata.failed_requests
        assert operation.operation.done
        assert {index: failed[index].code for index in failed} == dict.fromkeys(
            failures, code_pb2.NOT_FOUND
        )


@pytest.mark.fast
def test_statistics_and_a_purge(cloud: Cloud) -> None:
    """`Queue.fetch_statistics` asks v2beta3, `Queue.purge` asks v2."""
    transport = CloudTasksGrpcTransport(channel=cloud.client.transport.grpc_channel)
    client = tasks_v2beta3.CloudTasksClient(transport=transport)
    mask = field_mask_pb2.FieldMask(paths=["stats"])
    name = client.queue_path("demo-local", "us-central1", "work")
    cloud.create_in(30)

    stats = client.get_queue(request={"name": name, "read_mask": mask}).stats
    assert (stats.tasks_count, stats.effective_execution_rate) == (1, 500)
    at = datetime.datetime.fromtimestamp(NOW + 30, datetime.UTC)
    assert stats.oldest_estimated_arrival_time == at
    cloud.client.purge_queue(request={"name": name})
    assert client.get_queue(request={"name": name, "read_mask": mask}).stats.tasks_count == 0
    with pytest.raises(exceptions.NotFound):
        client.get_queue(request={"name": f"{name}-other", "read_mask": mask})


def run_sdk(*arguments: str, body: bytes = b"") -> bytes:
    """Run the program of the SDK and return what it prints."""
    command = [str(PYTHON), str(PROGRAM), *arguments]
    done = subprocess.run(command, input=body, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.skipif(not PYTHON.exists(), reason="`make clients` installs App Engine's SDK")
def test_the_sdk_itself(live_cloud: Cloud, handler: Handler) -> None:
    """The SDK adds, names, counts, deletes, purges and defers, and raises its own errors."""
    for queue_id in ("deferred", "held"):
        live_cloud.client.create_queue(parent=PARENT, queue={"name": f"{PARENT}/queues/{queue_id}"})

    said = json.loads(run_sdk("add", live_cloud.emulator.grpc_address))

    assert said == {
        "enqueued": True,
        "taken": "TaskAlreadyExistsError",
        "taken of two": "TaskAlreadyExistsError",
        "unknown queue": "UnknownQueueError",
        "statistics": True,
        "deleted": True,
        "deleted unknown": False,
        "routed": [True, True],
        "held": 1,
        "purged": 0,
    }
    live_cloud.settle()
    routed = live_cloud.client.get_task(name=f"{live_cloud.queue}/tasks/routed")
    host = routed.app_engine_http_request.app_engine_routing.host
    assert host == "v2.worker.demo-local.appspot.com"
    got = handler.received
    assert [request.body for request in got["/params"]] == [b"x=1"]
    names = {request.headers["x-appengine-taskname"] for request in got["/many"]}
    assert names == {"n0", "n1", "n2", "n9"}
    assert (got["/late"], got["/held"]) == ([], [])
    (request,) = got["/_ah/queue/deferred"]
    assert request.headers["x-appengine-queuename"] == "deferred"
    assert run_sdk("run", body=request.body) == b"42\n"
