"""`gcloud tasks` on pull queues, which it calls alpha, and the commands that ask and clean up."""

import shutil
from pathlib import Path

import pytest

from tests.contracts.clients.gcloud import gcloud
from tests.contracts.conftest import Cloud

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

# Each command with words of its answer. {when} is the last line of the answer before it.
LEASES = [
    ("alpha tasks queues create-pull-queue pulls", "Created queue [us-central1/pulls]."),
    ("alpha tasks create-pull-task one --queue=pulls --tag=a", "Created task"),
    (
        "alpha tasks lease --queue=pulls --lease-duration=60 --tag=a --format=value(scheduleTime)",
        "",
    ),
    (
        "alpha tasks renew-lease one --queue=pulls --lease-duration=90 --schedule-time={when} "
        "--format=value(scheduleTime)",
        "",
    ),
    ("alpha tasks acknowledge one --queue=pulls --schedule-time={when}", ""),
    ("alpha tasks list --queue=pulls", "Listed 0 items."),
]
OTHERS = [
    ("tasks queues create web --http-uri-override=host:a.b,path:/x", "Created queue"),
    ("tasks buffer --queue=web --task-id=two", "Buffered task in queue [us-central1/web]."),
    ("tasks create-app-engine-task three --queue=web --relative-uri=/w", "Created task"),
    ("tasks list --queue=web", "three      app-engine"),
    ("tasks delete two --queue=web", "Deleted task [two]."),
    ("tasks queues purge web", "Purged queue [us-central1/web]."),
]


@pytest.mark.parametrize("story", [LEASES, OTHERS], ids=["leases", "others"])
def test_a_story_by_gcloud(cloud: Cloud, tmp_path: Path, story: list[tuple[str, str]]) -> None:
    """Every command does what it says, and the end is an empty queue."""
    when = ""
    for command, words in story:
        arguments = [*command.format(when=when).split(), "--location=us-central1"]
        done = gcloud(cloud.emulator.grpc_address, tmp_path, *arguments)
        assert done.returncode == 0, (command, done.stderr)
        assert words in done.stdout + done.stderr, (command, done.stdout, done.stderr)
        when = done.stdout.strip().rpartition("\n")[2]

    queues = cloud.engine.queues.all()
    assert [len(queue.tasks) for queue in queues] == [0, 0]
