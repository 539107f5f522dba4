"""The official client for Node, over gRPC and REST, and the task queues of Firebase Admin.

Their programs are beside this file, and `make clients` installs what they import.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2

from rollforward.local.cloudtasks.emulator import running
from tests.contracts.conftest import Cloud, Handler

FOLDER = Path(__file__).parent
# npm writes it last.
INSTALLED = FOLDER / "node_modules/.package-lock.json"
ELSEWHERE = "projects/demo-local/locations/europe-west1/queues/resize"
REST_STATUS = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
}

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not INSTALLED.exists(),
    reason="`make clients` installs the clients for Node",
)


def run_node(program: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run a program and return the JSON that it prints."""
    # Else Google's libraries look for a metadata server, for seconds.
    environment = os.environ | {"METADATA_SERVER_DETECTION": "none"} | variables
    command = ["node", str(FOLDER / program), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_the_client_for_node(live_cloud: Cloud, handler: Handler, transport: str) -> None:
    """It manages a queue, creates, lists, runs and deletes tasks, and raises what is refused."""
    port = live_cloud.emulator.grpc_address.rpartition(":")[2]

    answers = run_node("tasks_program.mjs", transport, port, handler.url)

    refusals = [
        (answers["queues"].pop("unknown"), code_pb2.NOT_FOUND, "Queue does not exist."),
        (answers["tasks"].pop("taken"), code_pb2.ALREADY_EXISTS, "Requested entity already exists"),
        (answers["tasks"].pop("deleted"), code_pb2.NOT_FOUND, "The task no longer exists"),
        (answers["tasks"].pop("refused"), code_pb2.INVALID_ARGUMENT, "HttpTarget.url must start"),
    ]
    for (code, message), expected, words in refusals:
        assert code == (expected if transport == "grpc" else REST_STATUS[expected])
        assert words in message
    assert answers["queues"] == {
        "rate": 7,
        "listed": True,
        "attempts": 3,
        "backoff": 500_000_000,
        "state": "PAUSED",
        "members": ["user:a@b.c"],
    }
    assert answers["tasks"] == {
        "body": '{"n": 1}',
        "method": "PUT",
        "deadline": 30,
        "listed": 4,
        "scheduled": True,
    }
    assert answers["batches"] == {"created": 2}
    live_cloud.settle()
    [request] = handler.received["/named"]
    assert (request.method, request.body) == ("PUT", b'{"n": 1}')
    assert request.headers["x-cloudtasks-taskname"] == "mine"
    assert len(handler.received["/batch"]) == 2
    assert (len(handler.received["/run"]), handler.received["/late"]) == (1, [])


def test_task_queues_of_firebase(handler: Handler) -> None:
    """Firebase Admin enqueues to a function or a `uri`, deletes, and raises its own errors."""
    with running(
        every_place=True, functions_url=handler.url, queues=["resize", ELSEWHERE]
    ) as emulator:
        answers = run_node(
            "firebase_program.mjs",
            f"{handler.url}/given",
            CLOUD_TASKS_EMULATOR_HOST=emulator.grpc_address,
        )
        emulator.wait_idle(20)

    assert answers == {
        "taken": "functions/task-already-exists",
        "deletedTwice": "none",
        "deletedName": "functions/task-already-exists",
        "unknownQueue": "functions/not-found",
    }
    [request] = handler.received["/demo-local/us-central1/resize"]
    assert (request.method, json.loads(request.body)) == ("POST", {"data": {"image": 1}})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"].startswith("Bearer ")
    given = sorted(handler.received["/given"], key=lambda request: request.body)
    assert [json.loads(request.body)["data"]["image"] for request in given] == [2, 3]
    assert given[0].headers["x-mine"] == "1"
    assert given[0].headers["x-cloudtasks-taskname"] == "named"
    assert given[1].headers["x-cloudtasks-queuename"] == "resize"
