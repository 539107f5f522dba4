"""A dev server in a folder of its own, run as `make run` does, which can be stopped and killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import requests

from rollforward.local.system import ports

ROOT = Path(__file__).parents[2]
PORTS = ("APP", "CONSOLE", "TASKS", "DATASTORE", "MEMCACHE", "MAIL")
NOT_LINKED = {".dev", ".git"}


@dataclass
class Stack:
    """A dev server that can be restarted in its folder, at its ports."""

    folder: Path
    environment: dict[str, str]
    arguments: tuple[str, ...] = ()
    terminal: IO[str] | None = None  # Receives the messages for a person.
    where: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "rollforward.local",
            "--json",
            "--no-reload",
            *self.arguments,
        ]
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=self.terminal,
            text=True,
        )
        assert self.process.stdout is not None
        self.where = json.loads(self.process.stdout.readline())

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        self.process.wait(120)
        self.process.stdout.close()

    def kill(self) -> None:
        """Kill the dev server, as a power cut would."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the dev server as Ctrl-C does, and restart it."""
        self.stop()
        self.start()

    def kill_worker(self) -> None:
        """Kill one of the app's workers."""
        self.control("/api/v1/workers/kill", {})

    def rest_cron(self) -> None:
        """Pause all scheduled sweeps."""
        self._pause_cron(is_paused=True)

    def wake_cron(self) -> None:
        """Resume all scheduled sweeps."""
        self._pause_cron(is_paused=False)

    def _pause_cron(self, *, is_paused: bool) -> None:
        for job in self.control("/api/v1/cron")["jobs"]:
            self.control("/api/v1/cron/pause", {"name": job["name"], "paused": is_paused})

    def sweeps(self) -> int:
        """Return how many cron jobs have run."""
        return sum(job["last"] is not None for job in self.control("/api/v1/cron")["jobs"])

    def control(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to the local platform's console; a body makes it a POST."""
        method = "GET" if body is None else "POST"
        answer = requests.request(method, self.where["console"] + path, json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()


@contextlib.contextmanager
def running(
    *arguments: str, terminal: IO[str] | None = None, **environment: str
) -> Iterator[Stack]:
    """Run a dev server that keeps its data in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for path in ROOT.iterdir():
            if path.name not in NOT_LINKED:
                (Path(folder) / path.name).symlink_to(path)
        chosen = {f"{name}_PORT": str(ports.free_port()) for name in PORTS}
        stack = Stack(Path(folder), {**chosen, **environment}, arguments, terminal)
        stack.start()
        try:
            yield stack
        finally:
            stack.stop()
