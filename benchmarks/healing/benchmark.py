"""The time from the last fault until everything is exact again, on the whole stack of `make run`.

Writers add to every pattern without pause while a fault strikes; then they end, and the time counts
until each is exact. A write without an answer is sent again with its key. Cron rests: what is
measured is not the sweep of the next minute.

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

# The emulators are Java: in their first seconds each call takes several times as long as later.
WRITE_S, TROUBLE_S, STOPPED_S = 12.0, 8.0, 5.0
MOST_S = 10.0
# A killed worker is replaced in less.
VICTIM_WITHIN_S = 20.0
EMULATORS = ("datastore", "firestore")
TARGET = "benchmarks.healing.app:serve"


@dataclass
class Scene:
    """A stack, and what stands between it and its services."""

    stack: Stack
    datastore: Proxy | None = None
    wire: Wire | None = None
    tasks: Proxy | None = None

    # Processes

    def kill(self, most: int) -> None:
        """Kill workers of the app as a power cut would.

        Raises:
            AssertionError: there is none, and none starts.
        """
        until(lambda: self._kill(most), "no worker to kill", VICTIM_WITHIN_S)

    def _kill(self, most: int) -> bool:
        """Kill workers; return whether there were any."""
        killed = 0
        with contextlib.suppress(psutil.NoSuchProcess):  # One ends meanwhile.
            for worker in self._workers()[:most]:
                worker.kill()
                killed += 1
        return killed > 0

    def stop(self, name: str, seconds: float) -> None:
        """Stop a process of the stack for a while: it is there, and silent.

        Raises:
            AssertionError: there is none.
        """
        stopped = [each for each in self._children() if name in name_of(each)]
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
        return [each for each in children if _is_alive(each)]

    def _workers(self) -> list[psutil.Process]:
        """Return the processes that gunicorn has forked."""
        serving = [each for each in self._children() if "gunicorn" in " ".join(_words(each))]
        return [each for each in serving if _is_forked(each)]

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
    """Return the name of a process; "" if it has ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _words(process: psutil.Process) -> list[str]:
    """Return the command of a process; none if it has ended meanwhile."""
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
    """Something that strikes; `before` says which service a proxy stands before."""

    strike: Callable[[Scene], None]
    before: str = ""


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
    """Measure each kind of fault once; the targets are for a machine with nothing else to do."""
    for emulator in emulators:
        for name in faults:
            with scene(emulator, FAULTS[name].before) as here:
                healed = heal(here, FAULTS[name])
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
def scene(emulator: str, before: str) -> Iterator[Scene]:
    """Run a stack, with what a fault needs between it and its services."""
    start = partial(running, "--target", TARGET)
    if before == "tasks":
        port = str(ports.free_port())
        with (
            proxy_before(f"{ports.LOOPBACK}:{port}") as tasks,
            start(
                DATASTORE_EMULATOR=emulator, TASKS_PORT=port, HEALING_TASKS=tasks.address
            ) as stack,
        ):
            yield Scene(stack, tasks=tasks)
    elif before == "datastore":
        with (
            datastore_emulator(emulator) as real,
            proxy_before(real) as datastore,
            start(DATASTORE_EMULATOR_HOST=datastore.address) as stack,
        ):
            yield Scene(stack, datastore=datastore)
    elif before == "wire":
        with (
            datastore_emulator(emulator) as real,
            wire_before(real) as wire,
            start(DATASTORE_EMULATOR_HOST=wire.address) as stack,
        ):
            yield Scene(stack, wire=wire)
    else:
        with start(DATASTORE_EMULATOR=emulator) as stack:
            yield Scene(stack)


def heal(here: Scene, fault: Fault) -> dict[str, float]:
    """Return the seconds from the end of a fault until each pattern was exact.

    Writes that have begun until then are to be accepted and done.
    """
    here.stack.rest_cron()
    loads = AllLoads(here.stack)
    loads.open()
    with loads.writing():
        time.sleep(WRITE_S)
        fault.strike(here)
        began = time.monotonic()
    here.stack.rest_cron()
    return loads.until_exact(began)


def main() -> int:
    """Measure what is asked for; 1 when a target is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healing")
    parser.add_argument("--emulators", nargs="+", default=EMULATORS, choices=EMULATORS)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    chosen = parser.parse_args()
    results = []
    for result in measure(chosen.emulators, chosen.faults):
        print(result.line(), flush=True)
        results.append(result)
    return int(not all(result.met for result in results))
