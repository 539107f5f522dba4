"""Packages of Debian, installed when they are missing and we may: as root, by apt."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# Chromium without windows of its own, for which the full one runs more renderers.
CHROMIUM_SHELL = "chromium-headless-shell"
# What browser tests can drive, the cheapest first.
CHROMIUMS = (
    CHROMIUM_SHELL,
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
)
# Two test processes may miss a package at the same moment; apt would refuse one of them.
_LOCK = Path(tempfile.gettempdir()) / "rollforward-apt.lock"


def install(package: str, *programs: str) -> str | None:
    """Install a package and return the path of the first of its programs that is there.

    Args:
        programs: The programs of the package; if one is there already, nothing is installed.

    Returns:
        None where this is no Debian, we are not root, or apt failed.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find(*programs) or (find(*programs) if _apt(package) else None)


def find(*programs: str) -> str | None:
    """Return the path of the first program that is there."""
    return next((path for program in programs if (path := shutil.which(program))), None)


def _apt(package: str) -> bool:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A failed update is no reason to give up: the lists that are there may do.
    subprocess.run([apt, "update"], env=env, capture_output=True, check=False)
    command = [apt, "install", "-y", "--no-install-recommends", package]
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0
