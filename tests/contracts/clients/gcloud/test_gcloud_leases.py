"""`gcloud tasks` on pull queues, which it calls alpha."""

import shutil
from pathlib import Path

import pytest

from tests.contracts.clients.gcloud.commands import Story, play
from tests.contracts.conftest import Cloud

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

TIME = "--format=value(scheduleTime)"
# {said} is the last line of the answer before it: the end of the lease.
LEASES: Story = [
    ("alpha tasks queues create-pull-queue pulls", "Created queue [us-central1/pulls]."),
    ("alpha tasks queues update-pull-queue pulls --max-attempts=9", "Updated queue"),
    ("alpha tasks create-pull-task one --queue=pulls --tag=a", "Created task"),
    (f"alpha tasks lease --queue=pulls --lease-duration=60 --tag=a {TIME}", ""),
    (f"alpha tasks cancel-lease one --queue=pulls --schedule-time={{said}} {TIME}", ""),
    (f"alpha tasks lease --queue=pulls --lease-duration=60 --tag=a {TIME}", ""),
    (
        "alpha tasks renew-lease one --queue=pulls --lease-duration=90 --schedule-time={said} "
        + TIME,
        "",
    ),
    ("alpha tasks acknowledge one --queue=pulls --schedule-time={said}", ""),
    ("alpha tasks list --queue=pulls", "Listed 0 items."),
]


def test_leases_by_gcloud(cloud: Cloud, tmp_path: Path) -> None:
    """Every command does what it says, and the end is an empty queue."""
    play(cloud, tmp_path, LEASES)

    pulls = cloud.engine.queues.all()[0]
    assert (pulls.is_pull, pulls.message.retry_config.max_attempts) == (True, 9)
    assert len(pulls.tasks) == 0
