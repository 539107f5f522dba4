"""Rivals: programs in an environment of their own, and the Redis that some of them need."""

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
    """Something that is measured against is not there; the text says how to get it."""


@contextlib.contextmanager
def rival(program: str, name: str, *arguments: str) -> Iterator[Callable[[], float]]:
    """Start a rival; yield what runs its work once, and returns how many seconds that took.

    Args:
        program: Path of a program that says "ready", and answers each line by its seconds.
        name: First argument of the program, and the rival's name.

    Raises:
        MissingError: the rivals are not there.
    """
    if not PYTHON.exists():
        raise MissingError("Celery and Dramatiq are missing: run them by `make bench NAMES=...`")
    command = [str(PYTHON), str(ROOT / program), name, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # Which waits for its end.
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
    """Start a Redis that keeps all in memory; yield its URL.

    Raises:
        MissingError: Redis is not there.
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
