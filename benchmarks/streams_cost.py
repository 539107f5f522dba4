"""The framework's own cost of a record of a stream: `python -m benchmarks.streams_cost`.

It pulls the workload of benchmarks/streams/benchmark.py through one stage and three. Rows are in a
dict, and concurrent steps take turns on one thread, with one remote call per turn. So all processor
time is spent in our code: no service, no gRPC, no other thread. `--profile` prints a profile.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import pstats
import random
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from google.api_core import exceptions as rpc_errors

from benchmarks.streams import app
from benchmarks.streams.app import fused, stages
from benchmarks.streams.workload import truth
from rollforward.datastore import bodies
from rollforward.gunicorn.config import freeze_heap
from rollforward.runtime import SystemClock
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.processes import NoProcesses
from rollforward.streams import Pipeline
from rollforward.streams.coordinator import tick
from rollforward.streams.driver import Engine
from rollforward.streams.exchange.pulling import Partition, pull, pull_wake
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.remote_calls import CreateTasks, Pause, Wake
from rollforward.streams.storage.schema import HEAD, Names
from rollforward.streams.workers.worker import Worker

RECORDS, ROUNDS = app.RECORDS, 3


class Rows:
    """Rows in a dict, as a replacement of rollforward.datastore.bodies."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], bodies.Row] = {}
        self.version = 0
        self.counts: Counter[str] = Counter()

    def read(self, client: Any, names: Sequence[bodies.Name], at: Any = None) -> Any:
        return [self.rows.get(name) for name in names], None

    def scan(self, client: Any, kind: str, low: str, high: str, limit: int) -> list[bodies.Row]:
        return [self.rows[kind, name] for name in self._names(kind, low, high)[:limit]]

    def first_names(
        self, client: Any, kind: str, low: str, high: str, limit: int, at: Any = None
    ) -> list[str]:
        return self._names(kind, low, high)[:limit]

    def _names(self, kind: str, low: str, high: str) -> list[str]:
        return sorted(
            name for row_kind, name in self.rows if row_kind == kind and low <= name < high
        )

    def commit(
        self, client: Any, *, puts: Sequence[Any], inserts: Sequence[Any], deletes: Sequence[Any]
    ) -> list[int]:
        guarded = [*((name, at) for name, _, at in puts), *deletes]
        if any(at is not None and self._version(name) != at for name, at in guarded):
            raise rpc_errors.FailedPrecondition("written since")
        if any(name in self.rows for name, _ in inserts):
            raise rpc_errors.AlreadyExists("it exists")
        self.version += 1
        for name, body, *_ in [*puts, *inserts]:
            self.rows[name] = bodies.Row(name.name, body, self.version)
            self.counts["bytes"] += len(body)
        for name, _ in deletes:
            self.rows.pop(name, None)
        self.counts["writes"] += len(puts) + len(inserts) + len(deletes)
        return [self.version] * (len(puts) + len(inserts))

    def _version(self, name: bodies.Name) -> int | None:
        row = self.rows.get(name)
        return None if row is None else row.version


class Machine:
    """Runs the tasks of one pipeline, a call of each in turn."""

    def __init__(self, pipeline: Pipeline, store: Rows) -> None:
        clients: Any = SimpleNamespace(
            datastore=None,
            clock=SystemClock(),
            random=random,
            process_state=ProcessState(),
            processes=NoProcesses(),
        )
        self.pipeline, self.counts = pipeline, store.counts
        self.engine = Engine(clients, pipeline)
        self.environment = self.engine.environment
        self.wakes: list[tuple[float, int, Wake]] = []
        self.known: set[Any] = set()
        self.running: list[list[Any]] = []  # Steps, their next answer, and the time to resume them.

    def run(self) -> None:
        """Pull all records, and work until the last window is stored."""
        self.engine.run(read_head(self.environment))
        self._create(CreateTasks([pull_wake(self.environment, Partition("in", ""), 0)]))
        names = Names(self.pipeline.name)
        while not self._is_over(names):
            now_s = time.monotonic()
            while self.wakes and self.wakes[0][0] <= now_s:
                self.running.append([self._steps(heapq.heappop(self.wakes)[2]), None, 0.0])
            ready = [process for process in self.running if process[2] <= now_s]
            for process in ready:
                self._resume(process)
            if not ready:
                time.sleep(0.001)

    def _is_over(self, names: Names) -> bool:
        [head], _ = bodies.read(self.engine, [bodies.Name(HEAD, names.pipeline)])  # type: ignore[arg-type]
        assert head is not None
        return f'"collect":{FOREVER}'.encode() in head.body.partition(b'"sources"')[0]

    def _resume(self, process: list[Any]) -> None:
        steps, answer, _ = process
        go_on = steps.throw if isinstance(answer, Exception) else steps.send
        try:
            call = go_on(answer)
        except StopIteration:
            self.running.remove(process)
            return
        process[1] = None
        if isinstance(call, Pause):
            process[2] = time.monotonic() + call.seconds
            return
        self.counts["calls"] += 1
        try:
            process[1] = (
                self._create(call) if isinstance(call, CreateTasks) else self.engine._handle(call)
            )
        except Exception as error:
            process[1] = error

    def _create(self, call: CreateTasks) -> None:
        for wake in call.wakes:
            if wake.name not in self.known:
                self.known.add(wake.name)
                due = time.monotonic() + wake.delay_s
                heapq.heappush(self.wakes, (due, len(self.known), wake))

    def _steps(self, wake: Wake) -> Any:
        name, lo = wake.target
        if not name:
            return tick(self.environment)
        return pull(self.environment, name) if lo < 0 else Worker(self.environment, name, lo).run()


SHAPES = {"1 stage": stages(1), "3 stages": stages(3), "3 stages, fused": fused(3)}


def measured(shape: str, name: str, profile: cProfile.Profile | None) -> tuple[float, Rows]:
    """Run the workload once; return the processor time in seconds, and the store."""
    store = Rows()
    for function in ("read", "scan", "first_names", "commit"):
        setattr(bodies, function, getattr(store, function))
    machine = Machine(app.pulled(name, SHAPES[shape]), store)
    began_s = time.process_time()
    if profile is None:
        machine.run()
    else:
        profile.runcall(machine.run)
    took_s = time.process_time() - began_s
    states = machine.pipeline.states(machine.engine._clients, "collect")
    if sum(len(state["windows"]) for _, state in states) != len(truth(RECORDS)):
        raise RuntimeError("windows are missing")
    return took_s, store


def main() -> None:
    """Print the cost of a record, and optionally a profile."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams_cost")
    parser.add_argument("--profile", action="store_true", help="print a profile")
    is_profile = parser.parse_args().profile
    truth(RECORDS)  # Computed once for all rounds, like the records.
    freeze_heap()
    for number, shape in enumerate(SHAPES):
        runs = [measured(shape, f"cost-{number}-{n}", None) for n in range(ROUNDS)]
        took_s, store = min(runs, key=lambda run: run[0])
        per_record = {
            name: f"{count / RECORDS:.3f}" for name, count in sorted(store.counts.items())
        }
        print(f"{shape}: {1e6 * took_s / RECORDS:.1f} us a record, {per_record}")
        if is_profile:
            profile = cProfile.Profile()
            measured(shape, f"profile-{number}", profile)
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
