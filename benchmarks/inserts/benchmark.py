"""Inserts into a fork-join queue by the demo's API of sums, against a minimal request.

The clients are a process of their own. `/health/live` answers without a call to a service, so it
measures the cost of HTTP and Flask. The designs alternate, and each ratio is from one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness.load import Load, closed, posted, rates_compared
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.inserts.app import SUM, WORKLOADS
from models.sums import sum_key
from rollforward.local.app.server import WORKERS

ROUNDS = 5
SECONDS = 2.0
CLIENTS = (32, 64)
BATCH_CLIENTS = 4
LONE_SECONDS = 4.0
TIMEOUT_S = 120


@dataclass(frozen=True)
class Inserts:
    """The measured app, and the requests that clients send to it."""

    bench: Bench

    def load(self, name: str, clients: int, seconds: float) -> Load:
        """Send a workload in a closed loop."""
        workload = WORKLOADS[name]
        if not workload.body:
            return closed(self.bench.port, workload.path, clients, seconds)
        key = f"{self.bench.clients.new_id()}-" if workload.has_key else ""
        return posted(
            self.bench.port,
            workload.path,
            clients,
            seconds,
            workload.body,
            kind=workload.kind,
            key=key,
        )

    def checked(self, name: str, clients: int, seconds: float) -> Load:
        """Send a workload, and check that the sum has exactly the accepted items."""
        start_total = self.folded()
        load = self.load(name, clients, seconds)
        self.bench.settle(TIMEOUT_S)
        accepted = len(load.latencies_s) * WORKLOADS[name].items
        if self.folded() - start_total != accepted:
            raise RuntimeError(f"{name}: {accepted} accepted, {self.folded() - start_total} folded")
        return load

    def folded(self) -> int:
        with self.bench.clients.context():
            row = sum_key(SUM).get()
        return row.items if row else 0

    def workers(self) -> list[int]:
        return self.bench.workers()


@contextmanager
def open_inserts(workers: int = WORKERS) -> Iterator[Inserts]:
    """Start the app and its services."""
    with open_testbed("benchmarks.inserts.app:serve()", is_cached=True, workers=workers) as bench:
        inserts = Inserts(bench)
        for name in WORKLOADS:
            inserts.load(name, 4, 1.0)
        bench.settle(TIMEOUT_S)
        yield inserts


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with open_inserts() as inserts:
        for clients in CLIENTS:
            yield from _rates(inserts, clients)
        yield _spikes(inserts)
    with open_inserts(workers=1) as inserts:
        yield _batches(inserts)


def _rates(inserts: Inserts, clients: int) -> Iterator[Result]:
    loads: dict[str, list[Load]] = {"live": [], "insert": [], "insert_with_key": []}
    for _ in range(ROUNDS):
        for name, rounds in loads.items():
            rounds.append(inserts.checked(name, clients, SECONDS))
    live, lone, keyed = loads.values()
    names = f"inserts.lone_versus_live_at_{clients}", f"inserts.key_versus_none_at_{clients}"
    yield rates_compared(names[0], lone, live, "/health/live", 0.5, clients=clients, rounds=ROUNDS)
    yield rates_compared(names[1], keyed, lone, "without a key", 0.9, rounds=ROUNDS)


def _spikes(inserts: Inserts) -> Result:
    """Compare the slowest inserts of one client with the median, and do the same for GETs."""
    loads: dict[str, list[Load]] = {"insert": [], "live": []}
    for name, rounds in loads.items():
        rounds.extend(inserts.checked(name, 1, LONE_SECONDS) for _ in range(ROUNDS))
    ratios = _p99_to_p50(loads["insert"])
    return Result(
        "inserts.lone_p99_versus_p50",
        statistics.median(ratios),
        "ratio",
        "its own p50, one client",
        3.0,
        at_least=False,
        raw={
            "ratios": quartiles(ratios),
            "p50_ms": quartiles([load.ms(0.5) for load in loads["insert"]]),
            "p99_ms": quartiles([load.ms(0.99) for load in loads["insert"]]),
            "max_ms": quartiles([load.ms(1.0) for load in loads["insert"]]),
            "live_ratios": quartiles(_p99_to_p50(loads["live"])),
        },
    )


def _p99_to_p50(loads: Sequence[Load]) -> list[float]:
    return [load.ms(0.99) / load.ms(0.5) for load in loads]


def _batches(inserts: Inserts) -> Result:
    """Count the items of batches that one process accepts in a second."""
    loads = [inserts.checked("insert_batch", BATCH_CLIENTS, SECONDS) for _ in range(ROUNDS)]
    rates = [load.per_s * WORKLOADS["insert_batch"].items for load in loads]
    return Result(
        "inserts.batch_items_per_s",
        statistics.median(rates),
        "items a second",
        "batches of 1,000 under a key, one process",
        15_000,
        raw={"per_s": quartiles(rates), "p50_ms": quartiles([load.ms(0.5) for load in loads])},
    )
