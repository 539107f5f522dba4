"""The emulator under test, the official client on it, a queue, and a handler."""

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from tests.contracts.conftest import Handler, serving
from tests.infra.stack import until

PARENT = "projects/demo-emulators/locations/us-central1"
WAIT_S = 20.0


@dataclass
class Emulator:
    """An emulator, with one queue of the test's own."""

    address: str
    channel: grpc.Channel
    client: tasks_v2.CloudTasksClient
    handler: Handler
    queue: str

    def create(self, path: str, task_id: str = "", **fields: Any) -> str:
        """Create a task for a path of the handler; return its name."""
        http = {"url": f"{self.handler.url}{path}", **fields.pop("http", {})}
        if task_id:
            fields["name"] = f"{self.queue}/tasks/{task_id}"
        task = {"http_request": http, **fields}
        return self.client.create_task(parent=self.queue, task=task).name

    def use_queue(self, **fields: Any) -> None:
        """Use a new queue with these fields: not every emulator updates one."""
        name = f"{self.queue}-own"
        self.client.create_queue(parent=PARENT, queue={"name": name, **fields})
        self.queue = name

    def wait_until_empty(self) -> None:
        """Wait until the queue has no task."""
        until(lambda: not [*self.client.list_tasks(parent=self.queue)], WAIT_S)

    def wait_for(self, path: str) -> None:
        """Wait for a request to a path of the handler."""
        assert self.handler.entered[path].wait(WAIT_S), f"no request to {path}"


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the emulator under test."""
    if given := os.environ.get("EMULATOR"):
        yield given
        return
    command = [sys.executable, "-m", "rollforward", "tasks-emulator", "--port=0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


@pytest.fixture
def emulator(address: str) -> Iterator[Emulator]:
    """The emulator, a new queue, and a handler that answers 200."""
    queue = f"{PARENT}/queues/q-{uuid.uuid4().hex[:12]}"
    with serving() as handler, grpc.insecure_channel(address) as channel:
        client = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
        client.create_queue(parent=PARENT, queue={"name": queue})
        yield Emulator(address, channel, client, handler, queue)
        with contextlib.suppress(exceptions.GoogleAPICallError):
            client.delete_queue(name=queue)
