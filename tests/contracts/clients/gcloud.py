"""`gcloud`, with nothing set but the emulator's address."""

import os
import subprocess
from pathlib import Path


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
