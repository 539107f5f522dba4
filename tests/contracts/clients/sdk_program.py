"""What a program of App Engine's SDK for Python does with its `taskqueue` and `deferred`.

It runs in the environment of the SDK, which has neither pytest nor this repository:

    python sdk_program.py add HOST:PORT    sends tasks, and writes what it was answered as JSON
    python sdk_program.py run              runs the deferred call of a request's body, from stdin
"""

import json
import os
import sys
from typing import Any

os.environ.update(
    APPENGINE_USE_CLOUDTASK_PUSH_QUEUE="true",
    APPLICATION_ID="demo-local",
    GAE_APPLICATION="s~demo-local",
    GOOGLE_CLOUD_PROJECT="demo-local",
    LOCATION_ID="us-central1",
)

import grpc
from google.appengine.api import taskqueue  # type: ignore[import-not-found,import-untyped]
from google.appengine.api.taskqueue import cloudtask  # type: ignore
from google.appengine.ext import deferred  # type: ignore
from google.cloud import tasks_v2, tasks_v2beta3
from google.cloud.tasks_v2.services.cloud_tasks import transports as v2
from google.cloud.tasks_v2beta3.services.cloud_tasks import transports as v2beta3


def connect(address: str) -> None:
    """Let the SDK call this address: it makes its clients without options, and keeps them here."""
    channel = grpc.insecure_channel(address)
    of_v2 = v2.CloudTasksGrpcTransport(channel=channel)
    of_v2beta3 = v2beta3.CloudTasksGrpcTransport(channel=channel)
    cloudtask._CLIENTS["v2", os.getpid()] = tasks_v2.CloudTasksClient(transport=of_v2)
    cloudtask._CLIENTS["v2beta3", os.getpid()] = tasks_v2beta3.CloudTasksClient(
        transport=of_v2beta3
    )


def add() -> dict[str, Any]:
    """Send tasks of each kind, and return what came of them."""
    queue, said = taskqueue.Queue("work"), {}
    task = taskqueue.add(url="/params", params={"x": "1"}, queue_name="work")
    said["enqueued"] = task.was_enqueued
    queue.add([taskqueue.Task(url="/many", name=f"n{number}") for number in range(3)])
    said["taken"] = refusal(queue.add, taskqueue.Task(url="/many", name="n1"))
    pair = [taskqueue.Task(url="/many", name=name) for name in ("n1", "n9")]
    said["taken of two"] = refusal(queue.add, pair)
    said["unknown queue"] = refusal(taskqueue.Queue("none").add, taskqueue.Task(url="/many"))
    late = queue.add(taskqueue.Task(url="/late", name="late", countdown=3600))
    said["statistics"] = queue.fetch_statistics().tasks >= 1
    queue.delete_tasks(late)
    said["deleted"] = late.was_deleted
    unknown = taskqueue.Task(name="nothing")
    queue.delete_tasks(unknown)
    said["deleted unknown"] = unknown.was_deleted
    routed = taskqueue.Task(url="/routed", name="routed", target="v2.worker", countdown=3600)
    said["routed"] = [task.was_enqueued for task in queue.add([routed, taskqueue.Task(url="/two")])]
    deferred.defer(print, 42, _queue="deferred", _name="later")
    held = taskqueue.Queue("held")
    options = taskqueue.TaskRetryOptions(task_retry_limit=2)
    held.add(taskqueue.Task(url="/held", countdown=3600, retry_options=options))
    said["held"] = held.fetch_statistics().tasks
    held.purge()
    said["purged"] = held.fetch_statistics().tasks
    return said


def refusal(call: Any, argument: Any) -> str:
    """Return the name of the error that a call raises."""
    try:
        call(argument)
    except taskqueue.Error as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    if sys.argv[1] == "run":
        deferred.run(sys.stdin.buffer.read())
    else:
        connect(sys.argv[2])
        sys.stdout.write(json.dumps(add()))
