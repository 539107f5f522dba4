"""`gcloud`, with nothing set but the emulator's address."""

import os
import subprocess
from pathlib import Path

from tests.contracts.conftest import Cloud

# Commands, each with words of its answer.
Story = list[tuple[str, str]]


def play(cloud: Cloud, folder: Path, story: Story, **values: str) -> None:
    """Run the commands of a story one after another, and compare what each says.

    Args:
        folder: Takes gcloud's configuration.
        values: Stand for their names in the story; `said` is the last line of the answer before.
    """
    said = ""
    for command, words in story:
        arguments = command.format(said=said, **values).split()
        if "locations" not in arguments:
            arguments.append("--location=us-central1")
        done = gcloud(cloud.emulator.grpc_address, folder, *arguments)
        assert done.returncode == 0, (command, done.stderr)
        expected = words.format(**values)
        assert expected in done.stdout + done.stderr, (command, done.stdout, done.stderr)
        said = done.stdout.strip().rpartition("\n")[2]


def gcloud(address: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command.

    Args:
        folder: Takes its configuration.
    """
    environment = os.environ | {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDTASKS": f"http://{address}/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CONFIG": str(folder),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_PROJECT": "demo-local",
    }
    return subprocess.run(
        ["gcloud", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
