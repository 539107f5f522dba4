"""`gcloud tasks` against the emulator, with nothing set but its address.

These are all 23 commands of gcloud 528 that are neither alpha nor beta.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.contracts.clients.gcloud.commands import Story, play
from tests.contracts.conftest import Cloud, Handler

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

PARENT = "projects/demo-local/locations/us-central1"
NAME = f"{PARENT}/queues/new"
POLICY = {"bindings": [{"role": "roles/viewer", "members": ["user:c@b.d"]}]}
VIEWER = "--role=roles/cloudtasks.viewer"
UPDATED_POLICY = "Updated IAM policy for queue [new]."

QUEUES: Story = [
    ("tasks queues create new --max-attempts=7", "Created queue [us-central1/new]."),
    ("tasks queues update new --max-dispatches-per-second=5", "Updated queue [us-central1/new]."),
    # This gcloud names header overrides in its mask, and sends none.
    ("tasks queues update new --http-header-override=X-A:1", "Updated queue"),
    ("tasks queues update new --http-uri-override=host:a.b", "Updated queue"),
    ("tasks queues update new --clear-http-header-override", "Updated queue"),
    ("tasks queues describe new", "host: a.b"),
    ("tasks queues pause new", "Paused queue"),
    ("tasks queues list", "PAUSED   1000              5.0              7"),
    ("beta tasks queues list", "PAUSED   1000              5.0              7"),
    ("tasks queues resume new", "Resumed queue"),
    ("tasks queues purge new", "Purged queue [us-central1/new]."),
    ("tasks queues delete new", "Deleted queue [us-central1/new]."),
    ("tasks locations list", "us-central1"),
    ("tasks locations describe us-central1", "locationId: us-central1"),
]
TASKS: Story = [
    ("tasks queues create new --http-uri-override=host:a.b,path:/x,mode:IF_NOT_EXISTS", "Created"),
    ("tasks queues pause new", "Paused queue"),
    ("tasks create-http-task one --queue=new --url={url}/hit --body-content=hi", f"{NAME}/tasks/o"),
    ("tasks create-app-engine-task two --queue=new --relative-uri=/app", f"{NAME}/tasks/two"),
    ("tasks buffer --queue=new --task-id=three", "Buffered task in queue [us-central1/new]."),
    ("tasks list --queue=new", "two        app-engine"),
    ("tasks describe one --queue=new", "url: {url}/hit"),
    ("tasks run one --queue=new", f"name: {NAME}/tasks/one"),
    ("tasks delete two --queue=new", "Deleted task [two]."),
    ("tasks delete three --queue=new", "Deleted task [three]."),
]
POLICIES: Story = [
    ("tasks queues create new", "Created queue [us-central1/new]."),
    (f"tasks queues add-iam-policy-binding new --member=user:a@b.c {VIEWER}", UPDATED_POLICY),
    ("tasks queues get-iam-policy new", "- user:a@b.c"),
    (f"tasks queues remove-iam-policy-binding new --member=user:a@b.c {VIEWER}", UPDATED_POLICY),
    ("tasks queues set-iam-policy new {policy}", "- user:c@b.d"),
    ("tasks cmek-config update --kms-key-name=k --kms-keyring=r", "cryptoKeys/k"),
    ("tasks cmek-config describe", f"kmsKey: {PARENT}/keyRings/r/cryptoKeys/k"),
]


@pytest.mark.parametrize("story", [QUEUES, TASKS, POLICIES], ids=["queues", "tasks", "policies"])
def test_a_story_by_gcloud(
    live_cloud: Cloud, handler: Handler, tmp_path: Path, story: Story
) -> None:
    """Every command does what it says; of the tasks one is run, past the pause of its queue."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(POLICY))

    play(live_cloud, tmp_path, story, url=handler.url, policy=str(policy))

    live_cloud.settle()
    hits = [request.body for request in handler.received["/hit"]]
    assert hits == ([b"hi"] if story is TASKS else [])
    assert handler.received["/app"] == []
