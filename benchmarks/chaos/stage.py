"""The stack of `make run`, with a wire and proxies between it and its services."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from benchmarks.chaos.clocks import FOLDER, moved
from benchmarks.chaos.short_answers import SwitchedAnswers
from benchmarks.harness.books import until
from benchmarks.harness.dev_server import running
from benchmarks.harness.proxies import proxy_before, wire_before
from benchmarks.healing.benchmark import TARGET, VICTIM_WITHIN_S, Scene, name_of
from rollforward.local.services.standalone import datastore_emulator
from rollforward.local.system import ports


@dataclass
class Stage(Scene):
    """A stack in which all faults can be injected at once.

    Attributes:
        answers: Cuts answers of Datastore short while it is on.
        clocks: The folder of the files that move the clocks of the app's processes.
    """

    answers: SwitchedAnswers | None = None
    clocks: Path | None = None

    def cut_answers(self, seconds: float) -> None:
        assert self.answers is not None
        self.answers.is_on = True
        time.sleep(seconds)
        self.answers.is_on = False

    def silence_datastore(self, seconds: float) -> None:
        assert self.wire is not None
        self.wire.hold(seconds)

    def jump(self, by_s: float, seconds: float) -> None:
        """Set the clocks of half of the workers ahead, and of the others back, for some seconds.

        Raises:
            AssertionError: no worker is running, and none starts.
        """
        assert self.clocks is not None
        complaint = "no worker whose clock could jump"
        until(lambda: bool(self._workers()), complaint, VICTIM_WITHIN_S)
        workers = self._workers()
        assert workers, complaint  # They may have ended.
        signs = itertools.cycle((1, -1))
        offsets_s = {worker.pid: by_s * next(signs) for worker in workers}
        with moved(self.clocks, offsets_s):
            time.sleep(seconds)

    def fill_disk(self, seconds: float) -> None:
        """Make all file writes of the platform and the app fail, as if the disk were full.

        Datastore and memcached are excluded, as they would run on other machines.
        """
        for process in self._writers():
            _limit_files(process, is_full=True)
        time.sleep(seconds)
        # Workers that started since then have inherited the limit of the process that forked them.
        for process in self._writers():
            _limit_files(process, is_full=False)

    def _writers(self) -> list[psutil.Process]:
        """Return the platform's process and the app's processes."""
        assert self.stack.process is not None
        platform = psutil.Process(self.stack.process.pid)
        return [platform, *(child for child in self._children() if "python" in name_of(child))]

    def flush(self) -> None:
        """Empty memcached, as its restart would."""
        port = int(self.stack.environment["MEMCACHE_PORT"])
        with socket.create_connection((ports.LOOPBACK, port), timeout=5) as memcached:
            memcached.sendall(b"flush_all\r\n")
            assert memcached.recv(64) == b"OK\r\n"


def _limit_files(process: psutil.Process, *, is_full: bool) -> None:
    """Forbid or allow a process to write to files; Python gets an error, and no signal."""
    with contextlib.suppress(psutil.NoSuchProcess):
        _, most_bytes = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (0 if is_full else most_bytes, most_bytes))


@contextlib.contextmanager
def staged(emulator: str, seed: int, terminal: IO[str] | None = None) -> Iterator[Stage]:
    """Run a stack: the app, a wire, a proxy, Datastore; and a proxy in front of Cloud Tasks."""
    answers = SwitchedAnswers(random.Random(seed))
    tasks_port = str(ports.free_port())
    with (
        tempfile.TemporaryDirectory() as clocks,
        datastore_emulator(emulator) as real,
        proxy_before(real, ask=answers.ask_by) as datastore,
        wire_before(datastore.address) as wire,
        proxy_before(f"{ports.LOOPBACK}:{tasks_port}") as tasks,
        running(
            *("--target", TARGET),
            terminal=terminal,
            DATASTORE_EMULATOR_HOST=wire.address,
            TASKS_PORT=tasks_port,
            HEALING_TASKS=tasks.address,
            **{FOLDER: clocks},
        ) as stack,
    ):
        yield Stage(stack, datastore, wire, tasks, answers, Path(clocks))
