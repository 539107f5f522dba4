"""`gcloud tasks` against the emulator, with nothing set but its address."""

import shutil
from pathlib import Path

import pytest

from tests.contracts.clients.gcloud import gcloud
from tests.contracts.conftest import Cloud, Handler

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

# Each command with words of its answer; a queue and a task from their beginning to their end.
STORY = [
    ("queues create new --max-attempts=7", "Created queue [us-central1/new]."),
    ("queues update new --max-dispatches-per-second=5", "Updated queue [us-central1/new]."),
    ("queues pause new", "Paused queue"),
    ("queues list", "PAUSED   1000              5.0              7"),
    (
        "queues add-iam-policy-binding new --member=user:a@b.c --role=roles/cloudtasks.viewer",
        "Updated IAM policy for queue [new].",
    ),
    ("create-http-task one --queue=new --url={url}/hit --body-content=hi", "queues/new/tasks/one"),
    ("run one --queue=new", "name: projects/demo-local/locations/us-central1/queues/new/tasks/one"),
    ("queues delete new", "Deleted queue [us-central1/new]."),
    ("queues describe new", "Queue does not exist."),
]


def test_a_queue_and_a_task_by_gcloud(live_cloud: Cloud, handler: Handler, tmp_path: Path) -> None:
    """gcloud makes a queue, changes it, runs a task past its pause, and deletes all."""
    for command, words in STORY:
        arguments = [*command.format(url=handler.url).split(), "--location=us-central1"]
        done = gcloud(live_cloud.emulator.grpc_address, tmp_path, "tasks", *arguments)
        assert words in done.stdout + done.stderr, (command, done.stdout, done.stderr)
        if command.startswith("run"):
            live_cloud.settle()

    assert [request.body for request in handler.received["/hit"]] == [b"hi"]
