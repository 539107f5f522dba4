"""What tests ask the control API of an emulator."""

import json
import urllib.error
import urllib.request
from typing import Any

from rollforward.local.cloudtasks.emulator import RunningEmulator
from rollforward.local.cloudtasks.protocol import messages

JSON = {"Content-Type": "application/json"}


def call(
    emulator: RunningEmulator,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Call the control API; return status and JSON."""
    data = None if method == "GET" else json.dumps(body if body is not None else {}).encode()
    request = urllib.request.Request(
        emulator.control_url + path, data, JSON if headers is None else headers, method=method
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def queue_name(emulator: RunningEmulator) -> str:
    """Return the full name of the queue `work`."""
    return emulator.engine.place.queue_name("work")


def add(emulator: RunningEmulator, task_id: str = "", url: str = "http://127.0.0.1:9/") -> None:
    """Create a task in the queue `work`."""
    queue = queue_name(emulator)
    task = messages.Task(name=f"{queue}/tasks/{task_id}" if task_id else "")
    task.http_request.url = url
    task.http_request.body = b'{"n": 1}'
    emulator.engine.tasks.create(queue, task)


def with_queue(emulator: RunningEmulator) -> RunningEmulator:
    """Create the queue `work`."""
    emulator.engine.create_queue(
        emulator.engine.place.parent, messages.Queue(name=queue_name(emulator))
    )
    return emulator
