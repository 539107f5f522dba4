"""The stack of `make run`, with a wire and proxies between it and its services."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.chaos.short_answers import SwitchedAnswers
from benchmarks.harness.dev_server import running
from benchmarks.harness.proxies import proxy_before, wire_before
from benchmarks.healing.benchmark import TARGET, Scene
from rollforward.local.services.standalone import datastore_emulator
from rollforward.local.system import ports


@dataclass
class Stage(Scene):
    """A stack that can be broken in all ways at once.

    Attributes:
        answers: Cuts answers of Datastore while it is on.
    """

    answers: SwitchedAnswers | None = None

    def cut_answers(self, seconds: float) -> None:
        assert self.answers is not None
        self.answers.is_on = True
        time.sleep(seconds)
        self.answers.is_on = False

    def silence_datastore(self, seconds: float) -> None:
        assert self.wire is not None
        self.wire.hold(seconds)

    def flush(self) -> None:
        """Empty memcached, as a restart of it would."""
        port = int(self.stack.environment["MEMCACHE_PORT"])
        with socket.create_connection((ports.LOOPBACK, port), timeout=5) as memcached:
            memcached.sendall(b"flush_all\r\n")
            assert memcached.recv(64) == b"OK\r\n"


@contextlib.contextmanager
def staged(emulator: str, seed: int) -> Iterator[Stage]:
    """Run a stack: the app, a wire, a proxy, Datastore; and a proxy before Cloud Tasks."""
    answers = SwitchedAnswers(random.Random(seed))
    tasks_port = str(ports.free_port())
    with (
        datastore_emulator(emulator) as real,
        proxy_before(real, ask=answers.ask_by) as datastore,
        wire_before(datastore.address) as wire,
        proxy_before(f"{ports.LOOPBACK}:{tasks_port}") as tasks,
        running(
            *("--target", TARGET),
            DATASTORE_EMULATOR_HOST=wire.address,
            TASKS_PORT=tasks_port,
            HEALING_TASKS=tasks.address,
        ) as stack,
    ):
        yield Stage(stack, datastore, wire, tasks, answers)
