"""Rival frameworks, as programs in an environment of their own, and the Redis for some of them."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rollforward.local.system import debian
from rollforward.local.system.ports import free_port

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "rivals" / "bin" / "python"


class MissingError(Exception):
    """A rival, or a service that it needs, is not installed; the message says how to install it."""


@contextlib.contextmanager
def rival(program: str, name: str, *arguments: str) -> Iterator[Callable[[], float]]:
    """Start a rival, and yield a function that runs its work once and returns the seconds.

    Args:
        program: Path of a program that prints "ready", and answers each line with its seconds.
        name: First argument of the program, and the rival's name.

    Raises:
        MissingError: the rivals are not installed.
    """
    if not PYTHON.exists():
        raise MissingError("Celery and Dramatiq are missing: run them by `make bench NAMES=...`")
    command = [str(PYTHON), str(ROOT / program), name, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # Exit waits for it.
        asks, answers = process.stdin, process.stdout
        assert asks is not None
        assert answers is not None

        def run() -> float:
            asks.write("run\n")
            asks.flush()
            return float(answers.readline())

        with asks:
            if answers.readline() != "ready\n":
                raise RuntimeError(f"{name} did not start")
            yield run


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Start a Redis that stores nothing on disk, and yield its URL.

    Raises:
        MissingError: Redis is not installed.
    """
    program = debian.find("redis-server") or debian.install("redis-server", "redis-server")
    if program is None:
        raise MissingError("Redis is missing: apt-get install redis-server, or brew install redis")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(10)
