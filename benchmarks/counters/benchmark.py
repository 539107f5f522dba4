"""Counters: one count under many writers, in several designs, in one run on one stack.

8 and 32 clients send increments over persistent HTTP connections to gunicorn, as the dev server
runs it. Both emulators are measured, as only one supports increments. The clients
(benchmarks/harness/load.py), Cloud Tasks and the emulator are processes of their own on the same
machine. benchmarks/counters/app.py explains the designs.

Another counter runs under a simulation of production's limit, and has to adapt its shards.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.counters.app import COUNTERS, KEY, total
from benchmarks.harness.load import Load, closed, new_numbers, paced, rates_compared
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import Bench, open_testbed

DESIGNS = ("one-row", "twenty-shards", "adaptive", "one-by-one", "gathered", "in-memory")
# With 32 clients on one row the Firestore emulator's transactions wait for each other for minutes.
CLIENTS = {"datastore": (8, 32), "firestore": (8,)}
SECONDS = 2.0
ROUNDS = 5
RIVALS = {"one-row": "a transaction on one row", "twenty-shards": "20 shards by ndb"}
TARGETS = {
    ("adaptive", "twenty-shards"): 3.0,
    ("gathered", "one-row"): 10.0,
}
# Only on an emulator where a commit is one round trip.
TARGETS_OF_ONE_ROUND_TRIP = {("one-by-one", "twenty-shards"): 3.0}
# Under the limit: clicks a second, and the seconds that the counter has to adapt its shards.
LIMITED_PER_S = 20
LIMITED_CLIENTS = 4
ADAPTS_FOR_S = 40
MEASURED_FOR_S = 20
TIMEOUT_S = 120


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    for emulator in CLIENTS:
        target = "benchmarks.counters.app:serve()"
        with open_testbed(target, is_cached=True, emulator=emulator) as bench:
            for design in DESIGNS:
                closed(bench.port, f"/bench/{design}", 4, 1.0)
            bench.settle(TIMEOUT_S)
            yield from _rates(bench, emulator)
            if emulator == "datastore":
                yield from _limited(bench)


def _rates(bench: Bench, emulator: str) -> Iterator[Result]:
    """Compare the designs' increments a second, and their operations per increment."""
    for clients in CLIENTS[emulator]:
        loads: dict[str, list[Load]] = {design: [] for design in DESIGNS}
        spent: dict[str, list[tuple[float, float]]] = {design: [] for design in DESIGNS}
        for _ in range(ROUNDS):
            for design in DESIGNS:
                start_total, cost = _total(bench, design), bench.cost()
                load = closed(bench.port, f"/bench/{design}", clients, SECONDS)
                bench.settle(TIMEOUT_S)
                counted = len(load.latencies_s)
                _check(design, _total(bench, design) - start_total, counted)
                bill = bench.cost() - cost
                loads[design].append(load)
                spent[design].append((bill.writes / counted, bill.round_trips / counted))
        for design in DESIGNS:
            for rival in RIVALS:
                if design != rival:
                    yield _compared(loads, design, rival, clients, emulator)
            for place, operation in enumerate(("writes", "round_trips")):
                figures = [costs[place] for costs in spent[design]]
                yield Result(
                    f"counters.{_name(design)}_{operation}_at_{clients}_{emulator}",
                    statistics.median(figures),
                    "operations",
                    "an increment",
                    raw={"quartiles": quartiles(figures)},
                )


def _compared(
    loads: dict[str, list[Load]], design: str, rival: str, clients: int, emulator: str
) -> Result:
    targets = TARGETS | (TARGETS_OF_ONE_ROUND_TRIP if emulator == "firestore" else {})
    return rates_compared(
        f"counters.{_name(design)}_versus_{_name(rival)}_at_{clients}_{emulator}",
        loads[design],
        loads[rival],
        RIVALS[rival],
        targets.get((design, rival)),
        clients=clients,
        rounds=ROUNDS,
    )


def _limited(bench: Bench) -> Iterator[Result]:
    """Let a counter adapt its shards under a limit; compare its p95 with an idle p50."""
    idle = _paced(bench, "idle", MEASURED_FOR_S)
    began = _paced(bench, "limited", ADAPTS_FOR_S)
    adapted = _paced(bench, "limited", MEASURED_FOR_S)
    bench.settle(TIMEOUT_S)
    with bench.clients.context():
        shards = COUNTERS["limited"].status(bench.clients, KEY)
    counted = sum(len(load.latencies_s) for load in (began, adapted))
    _check("limited", shards.total, counted)
    yield Result(
        "counters.limited_p95_versus_idle_p50",
        adapted.ms(0.95) / idle.ms(0.5),
        "ratio",
        f"an idle counter's p50, {LIMITED_PER_S} a second",
        2.0,
        at_least=False,
        raw={
            "shards": shards.shards,
            "p95_ms": round(adapted.ms(0.95), 2),
            "p50_ms": round(adapted.ms(0.5), 2),
            "p95_while_adapting_ms": round(began.ms(0.95), 2),
            "idle_p50_ms": round(idle.ms(0.5), 2),
            "idle_p95_ms": round(idle.ms(0.95), 2),
        },
    )


def _paced(bench: Bench, design: str, seconds: float) -> Load:
    numbers = new_numbers(int(LIMITED_PER_S * seconds))
    return paced(bench.port, f"/bench/{design}", LIMITED_CLIENTS, LIMITED_PER_S, numbers)


def _check(design: str, counted: int, accepted: int) -> None:
    """Check that a count is right; retries of ndb may count twice, and are measured anyway."""
    if design in COUNTERS and counted != accepted:
        raise RuntimeError(f"{design}: {accepted} were accepted, {counted} were counted")


def _total(bench: Bench, design: str) -> int:
    with bench.clients.context():
        return total(bench.clients, design)


def _name(design: str) -> str:
    return design.replace("-", "_")
