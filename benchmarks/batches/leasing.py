"""Leasing from a pull queue by 1, 4 and 16 workers, each a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.batches.leaser import PARTITIONS
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import PROJECT, Bench
from rollforward.pull_queues import PullQueue

# The emulator's queries get slower with the number of items, unlike the service's.
ITEMS, LEASERS, AT_ONCE = 500, (1, 4, 16), 20
ROUNDS = 2
TIMEOUT_S = 240
WORK = PullQueue("bench", partitions=PARTITIONS)


def measure(bench: Bench) -> Iterator[Result]:
    """Measure how fast workers drain a queue, and the cost of an item under their contention."""
    for leasers in LEASERS:
        rates, trips = [], []
        for _ in range(ROUNDS):
            with ThreadPoolExecutor(32) as adders:
                list(adders.map(partial(_add, bench), range(ITEMS)))
            took_s, round_trips = _work_off(bench, leasers)
            rates.append(ITEMS / took_s)
            trips.append(round_trips / ITEMS)
        yield Result(
            f"batches.leased_per_s_by_{leasers}",
            statistics.median(rates),
            "items a second",
            f"leased and acked, {AT_ONCE} at a time, by so many processes side by side",
            raw={"quartiles": quartiles(rates)},
        )
        yield Result(
            f"batches.lease_round_trips_by_{leasers}",
            statistics.median(trips),
            "round trips",
            "an item, leased and acked",
            raw={"quartiles": quartiles(trips)},
        )


def _add(bench: Bench, number: int) -> None:
    with bench.clients.context():
        WORK.add(bench.clients, str(number))


def _work_off(bench: Bench, leasers: int) -> tuple[float, int]:
    """Drain the queue by worker processes; return the seconds, and their round trips."""
    command = [sys.executable, "-m", "benchmarks.batches.leaser"]
    command += [PROJECT, bench.datastore, WORK.name, str(AT_ONCE)]
    workers = [_worker(command) for _ in range(leasers)]
    for worker in workers:
        if worker.stdout is None or worker.stdout.readline() != "ready\n":
            raise RuntimeError("a leaser did not start")
    began_at = time.monotonic()
    for worker in workers:
        if worker.stdin is not None:
            worker.stdin.write("\n")
            worker.stdin.flush()
    reports = [json.loads(worker.communicate(timeout=TIMEOUT_S)[0]) for worker in workers]
    acked = sum(report["acked"] for report in reports)
    if acked != ITEMS:
        raise RuntimeError(f"{acked} of {ITEMS} items were acked")
    seconds = max(report["ended_at"] for report in reports) - began_at
    return seconds, sum(report["round_trips"] for report in reports)


def _worker(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
