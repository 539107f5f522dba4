"""What tests of pull queues do with the official client of v2beta2."""

from typing import Any

from google.cloud import tasks_v2beta2

from tests.contracts.conftest import PARENT

Client = tasks_v2beta2.CloudTasksClient
PULL = f"{PARENT}/queues/pull"


def pull_queue(client: Client, **fields: Any) -> tasks_v2beta2.Queue:
    """Create a pull queue."""
    return client.create_queue(parent=PARENT, queue={"name": PULL, "pull_target": {}, **fields})


def put(
    client: Client, task_id: str = "", *, payload: bytes = b"", tag: str = "", **fields: Any
) -> tasks_v2beta2.Task:
    """Create a task in the pull queue."""
    name = f"{PULL}/tasks/{task_id}" if task_id else ""
    task = {"name": name, "pull_message": {"payload": payload, "tag": tag}, **fields}
    return client.create_task(parent=PULL, task=task)


def lease(
    client: Client, seconds: int = 600, *, queue: str = PULL, max_tasks: int = 100, **fields: Any
) -> list[tasks_v2beta2.Task]:
    """Lease tasks for some seconds."""
    duration = {"seconds": seconds}
    request = {"parent": queue, "max_tasks": max_tasks, "lease_duration": duration, **fields}
    return list(client.lease_tasks(request=request).tasks)


def tags_of(tasks: list[tasks_v2beta2.Task]) -> list[str]:
    """Return the tags of tasks."""
    return [task.pull_message.tag for task in tasks]
