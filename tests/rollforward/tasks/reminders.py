"""A task for the tests of tasks, and what is found in the queues."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import tasks_v2

from rollforward.runtime import Clients, open_cloud_tasks
from rollforward.runtime.messages import Message
from rollforward.tasks.declaration import hashed_name, task
from rollforward.testing.services import LOCATION, PROJECT
from tests.infra.world import World

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
        listed
        for queue in ("default", "imports", "fan-out")
        for listed in client.list_tasks(
            request={
                "parent": f"projects/{PROJECT}/locations/{LOCATION}/queues/{queue}",
                "response_view": tasks_v2.Task.View.FULL,
            }
        )
    ]


def message(queue: str, name: str, at: datetime.datetime | None = None) -> Message:
    return Message("/tasks/tests/remind", queue, b'{"party_id": "p"}', hashed_name(name), at)
