"""Transactions that all read and write one row: `python -m benchmarks.contention`.

Threads of one or two processes increment a row by `transact`, on both emulators: without turns on
contended rows, with turns by memcached, and with turns by an instance without memcached. The sides
alternate, and the figure is the median of the rounds.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from benchmarks.harness.testbed import PROJECT
from rollforward.datastore.transactions import transact
from rollforward.local.services.standalone import datastore_emulator, memcached
from rollforward.runtime import SystemClock, open_cache, open_datastore
from rollforward.runtime.channel.hot_rows import HotRows
from rollforward.runtime.process.processes import NoProcesses, open_processes

ROUNDS, SECONDS = 3, 5.0
LOADS = ((1, 1), (1, 8), (2, 4), (2, 16))


class ContendedRow(ndb.Model):
    increments = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Side:
    """A process's services; `instance`: the folder that it shares with the other process."""

    datastore: str
    has_turns: bool
    memcached: str | None = None
    instance: str | None = None

    def client(self, number: int) -> ndb.Client:
        rows, ids = HotRows(), itertools.count()
        interceptors = [rows] if self.has_turns else []
        client = open_datastore(PROJECT, emulator=self.datastore, interceptors=interceptors)
        clients: Any = SimpleNamespace(
            cache=open_cache(self.memcached),
            clock=SystemClock(),
            processes=open_processes(self.instance) or NoProcesses(),
            new_id=lambda: f"{number}-{next(ids)}",
        )
        rows.start(clients)
        return client


def main() -> None:
    """Measure, and print a table in Markdown."""
    names = "without turns", "refused", "by memcached", "refused", "by the instance", "refused"
    print(f"| emulator | processes × threads | {' | '.join(names)} |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for kind in ("firestore", "datastore"):
        with (
            datastore_emulator(kind) as datastore,
            memcached() as cache,
            tempfile.TemporaryDirectory() as folder,
        ):
            sides = (
                Side(datastore, has_turns=False),
                Side(datastore, has_turns=True, memcached=cache),
                Side(datastore, has_turns=True, instance=folder),
            )
            for processes, threads in LOADS:
                rounds = [
                    [_rates(side, processes, threads) for side in sides] for _ in range(ROUNDS)
                ]
                cells = [f"{_median(rounds, i, j):.1f}" for i in range(len(sides)) for j in (0, 1)]
                print(f"| {kind} | {processes} × {threads} | {' | '.join(cells)} |", flush=True)


def _median(rounds: list[list[tuple[float, float]]], side: int, figure: int) -> float:
    return statistics.median(rates[side][figure] for rates in rounds)


def _rates(side: Side, processes: int, threads: int) -> tuple[float, float]:
    """Return the committed and the refused transactions a second."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    started = [
        context.Process(target=_work, args=(side, number, threads, results))
        for number in range(processes)
    ]
    for process in started:
        process.start()
    counts = [results.get() for _ in started]
    for process in started:
        process.join()
    committed, refused = (sum(outcomes) / SECONDS for outcomes in zip(*counts, strict=True))
    return committed, refused


def _work(side: Side, number: int, threads: int, results: Any) -> None:
    client, outcomes = side.client(number), list[bool]()
    until_s = time.monotonic() + SECONDS

    def increment_until_then() -> None:
        while time.monotonic() < until_s:
            with client.context(cache_policy=False, global_cache=None, legacy_data=False):
                try:
                    transact(_increment)
                    outcomes.append(True)
                except rpc_errors.GoogleAPICallError:
                    outcomes.append(False)

    started = [threading.Thread(target=increment_until_then) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    results.put((outcomes.count(True), outcomes.count(False)))


def _increment() -> None:
    row = ContendedRow.get_by_id("row") or ContendedRow(id="row")
    row.increments += 1
    row.put()


if __name__ == "__main__":
    main()
