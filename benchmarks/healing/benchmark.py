"""The time from the last fault until everything is exact again, on the whole stack of `make run`.

Writers add to every pattern without pause during a fault. Then they end, and the time counts until
each pattern is exact. A write without an answer is retried with its key. Cron is paused, so the
result does not depend on the next sweep.

    python -m benchmarks.healing --emulators firestore --faults killed_worker cloud_tasks_away_14s
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from benchmarks.harness.books import until
from benchmarks.harness.dev_server import Stack, running
from benchmarks.harness.proxies import (
    COMMIT,
    Proxy,
    Trouble,
    Wire,
    away,
    late,
    lost,
    proxy_before,
    twice,
    wire_before,
)
from benchmarks.harness.results import Result
from benchmarks.healing.loads import AllLoads
from rollforward.local.services.standalone import datastore_emulator
from rollforward.local.system import ports

# The emulators run on Java, where calls are several times slower during the first seconds.
WRITE_S, TROUBLE_S, STOPPED_S = 12.0, 8.0, 5.0
MOST_S = 10.0
# A killed worker is replaced within this time.
VICTIM_WITHIN_S = 20.0
EMULATORS = ("datastore", "firestore")
TARGET = "benchmarks.healing.app:serve"


@dataclass
class Scene:
    """A stack, and the proxies between it and its services."""

    stack: Stack
    datastore: Proxy | None = None
    wire: Wire | None = None
    tasks: Proxy | None = None

    # Processes

    def kill(self, limit: int) -> None:
        """Kill workers of the app as a power cut would.

        Raises:
            AssertionError: no worker is running, and none starts.
        """
        until(lambda: self._kill(limit), "no worker to kill", VICTIM_WITHIN_S)

    def _kill(self, limit: int) -> bool:
        """Kill workers; return whether there were any."""
        killed = 0
        with contextlib.suppress(psutil.NoSuchProcess):  # A worker may just have ended.
            for worker in self._workers()[:limit]:
                worker.kill()
                killed += 1
        return killed > 0

    def stop(self, name: str, seconds: float) -> None:
        """Suspend the processes of the stack with this name for some seconds.

        Raises:
            AssertionError: no process has the name.
        """
        stopped = [child for child in self._children() if name in name_of(child)]
        assert stopped, f"no {name} to stop"
        for process in stopped:
            process.suspend()
        time.sleep(seconds)
        for process in stopped:
            process.resume()

    def stop_dev_server(self) -> None:
        assert self.stack.process is not None
        self.stack.process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        self.stack.process.send_signal(signal.SIGCONT)

    def _children(self) -> list[psutil.Process]:
        assert self.stack.process is not None
        children = psutil.Process(self.stack.process.pid).children(recursive=True)
        return [child for child in children if _is_alive(child)]

    def _workers(self) -> list[psutil.Process]:
        """Return the processes that gunicorn has forked."""
        serving = [child for child in self._children() if "gunicorn" in " ".join(_words(child))]
        return [child for child in serving if _is_forked(child)]

    # Wires

    def datastore_trouble(self, trouble: Trouble, seconds: float = TROUBLE_S) -> None:
        assert self.datastore is not None
        self.datastore.trouble(trouble, seconds)

    def tasks_trouble(self, trouble: Trouble, seconds: float) -> None:
        assert self.tasks is not None
        self.tasks.trouble(trouble, seconds)

    def cut(self, seconds: float = TROUBLE_S) -> None:
        assert self.wire is not None
        self.wire.cut(0.05, seconds)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def name_of(process: psutil.Process) -> str:
    """Return the name of a process, or "" if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _words(process: psutil.Process) -> list[str]:
    """Return the command of a process, or [] if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def _is_forked(process: psutil.Process) -> bool:
    """Return whether a process runs its parent's command."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent, words = process.parent(), _words(process)
        return parent is not None and bool(words) and _words(parent) == words
    return False


@dataclass(frozen=True)
class Fault:
    """A fault to inject; `proxied` selects the proxy or the wire that it needs."""

    strike: Callable[[Scene], None]
    proxied: str = ""


def _datastore(answer: Callable[..., bytes], share: float, method: str = "") -> Fault:
    trouble = Trouble(answer, share, method)
    return Fault(lambda scene: scene.datastore_trouble(trouble), "datastore")


def _tasks(answer: Callable[..., bytes], share: float, seconds: float) -> Fault:
    return Fault(lambda scene: scene.tasks_trouble(Trouble(answer, share), seconds), "tasks")


FAULTS = {
    "none": Fault(lambda scene: None),
    "killed_worker": Fault(lambda scene: scene.kill(1)),
    "killed_workers": Fault(lambda scene: scene.kill(8)),
    "memcached_stopped": Fault(lambda scene: scene.stop("memcached", TROUBLE_S)),
    "dev_server_stopped": Fault(lambda scene: scene.stop_dev_server()),
    "datastore_stopped": Fault(lambda scene: scene.stop("java", STOPPED_S)),
    "graceful_restart": Fault(lambda scene: scene.stack.restart()),
    "tcp_cut": Fault(lambda scene: scene.cut(), "wire"),
    "lost_replies": _datastore(lost, 0.1),
    "lost_commits": _datastore(lost, 0.3, COMMIT),
    "late_commits": _datastore(late, 0.3, COMMIT),
    "doubled_commits": _datastore(twice, 1.0, COMMIT),
    "cloud_tasks_lost_replies": _tasks(lost, 0.5, TROUBLE_S),
    "cloud_tasks_away_6s": _tasks(away, 1.0, 6.0),
    "cloud_tasks_away_14s": _tasks(away, 1.0, 14.0),
}


def measure(
    emulators: Sequence[str] = EMULATORS, faults: Sequence[str] = tuple(FAULTS)
) -> Iterator[Result]:
    """Measure each kind of fault once; the targets assume an otherwise idle machine."""
    for emulator in emulators:
        for name in faults:
            with scene(emulator, FAULTS[name].proxied) as stage:
                healed = heal(stage, FAULTS[name])
            slowest_s = max(healed.values())
            versus = "from the end of the fault to exact"
            yield Result(
                f"healing.{emulator}.{name}",
                slowest_s,
                "s",
                versus,
                MOST_S,
                at_least=False,
                raw={**healed},
            )


@contextlib.contextmanager
def scene(emulator: str, proxied: str) -> Iterator[Scene]:
    """Run a stack, with the proxy or wire that a fault needs."""
    start = partial(running, "--target", TARGET)
    if proxied == "tasks":
        port = str(ports.free_port())
        with (
            proxy_before(f"{ports.LOOPBACK}:{port}") as tasks,
            start(
                DATASTORE_EMULATOR=emulator, TASKS_PORT=port, HEALING_TASKS=tasks.address
            ) as stack,
        ):
            yield Scene(stack, tasks=tasks)
    elif proxied == "datastore":
        with (
            datastore_emulator(emulator) as real,
            proxy_before(real) as datastore,
            start(DATASTORE_EMULATOR_HOST=datastore.address) as stack,
        ):
            yield Scene(stack, datastore=datastore)
    elif proxied == "wire":
        with (
            datastore_emulator(emulator) as real,
            wire_before(real) as wire,
            start(DATASTORE_EMULATOR_HOST=wire.address) as stack,
        ):
            yield Scene(stack, wire=wire)
    else:
        with start(DATASTORE_EMULATOR=emulator) as stack:
            yield Scene(stack)


def heal(stage: Scene, fault: Fault) -> dict[str, float]:
    """Return the seconds from the end of a fault until each pattern was exact.

    A pattern is exact once all writes that began before have been accepted and done.
    """
    stage.stack.rest_cron()
    loads = AllLoads(stage.stack)
    loads.open()
    with loads.writing():
        time.sleep(WRITE_S)
        fault.strike(stage)
        began = time.monotonic()
    stage.stack.rest_cron()
    return loads.until_exact(began)


def main() -> int:
    """Measure the chosen faults, and return 1 if a result misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healing")
    parser.add_argument("--emulators", nargs="+", default=EMULATORS, choices=EMULATORS)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    chosen = parser.parse_args()
    results = []
    for result in measure(chosen.emulators, chosen.faults):
        print(result.line(), flush=True)
        results.append(result)
    return int(not all(result.met for result in results))
