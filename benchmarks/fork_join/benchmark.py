"""Fork-join queues: additions to one sum, against rival designs, in one run on one stack.

1 to 64 clients send requests over persistent HTTP connections to gunicorn, as the dev server runs
it. The clients (benchmarks/harness/load.py), Cloud Tasks and the Datastore emulator are processes
of their own on the same machine. benchmarks/fork_join/app.py explains the designs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

from benchmarks.fork_join.app import IN_MEMORY, SUMS, Addition, BareAddition, BenchSum
from benchmarks.harness.load import Load, closed, paced, rates_compared
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import Bench, open_testbed
from rollforward.runtime import Cost
from rollforward.testing.world import in_threads

DESIGNS = ("put", "inline", "slides", "fork-join", "at-once", "in-memory")
CLIENTS = (1, 8, 32, 64)
FULL_LOAD = CLIENTS[-1]
SECONDS = 2.0
ROUNDS = 5
PACED_CLIENTS = 4
RIVALS = {"put": "a bare put", "inline": "a transaction each", "slides": "the talk's code"}
TARGETS = {
    ("fork-join", "put", 1): 0.8,
    ("fork-join", "put", 8): 0.8,
    ("fork-join", "put", 32): 1.5,
    ("fork-join", "put", 64): 2.0,
    ("fork-join", "inline", 32): 10.0,
}
# The talk's table: items a second, and milliseconds of an insert on App Engine in 2010.
TALK = {22: 223, 76: 258}
TIMEOUT_S = 120
BELOW_HTTP = 8


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with open_testbed("benchmarks.fork_join.app:serve()", is_cached=True) as bench:
        for design in DESIGNS:
            closed(bench.port, f"/bench/{design}", 4, 1.0)
        bench.settle(TIMEOUT_S)
        yield from _rates(bench)
        yield from _full_load(bench)
        yield from _paced(bench)
        yield from _below_http(bench)


# At full speed


def _rates(bench: Bench) -> Iterator[Result]:
    """Compare the designs' accepted items a second, and the time of a lone insert."""
    for clients in CLIENTS:
        loads: dict[str, list[Load]] = {design: [] for design in DESIGNS}
        for _ in range(ROUNDS):
            for design, results in loads.items():
                start_total = folded(bench, design)
                load = closed(bench.port, f"/bench/{design}", clients, SECONDS)
                bench.settle(TIMEOUT_S)
                _check(design, folded(bench, design) - start_total, len(load.latencies_s))
                results.append(load)
        for design in DESIGNS:
            for rival in RIVALS:
                if design != rival and (rival == "put" or design == "fork-join"):
                    yield _compared(loads, design, rival, clients)
        if clients == 1:
            yield _latency("fork_join.fork_join_p50_at_1", loads["fork-join"], loads["put"], 1.1)


def _compared(loads: dict[str, list[Load]], design: str, rival: str, clients: int) -> Result:
    return rates_compared(
        f"fork_join.{design.replace('-', '_')}_versus_{rival}_at_{clients}",
        loads[design],
        loads[rival],
        RIVALS[rival],
        TARGETS.get((design, rival, clients)),
        clients=clients,
        rounds=ROUNDS,
    )


def _latency(
    name: str, ours: Sequence[Load], theirs: Sequence[Load], target: float | None, **raw: object
) -> Result:
    """Compare the time of an insert with the time of a bare put."""
    ours_ms, theirs_ms = ([load.ms(0.5) for load in loads] for loads in (ours, theirs))
    return Result(
        name,
        statistics.median(ours_ms) / statistics.median(theirs_ms),
        "ratio",
        "a bare put's",
        target,
        at_least=False,
        raw={"ours_ms": quartiles(ours_ms), "theirs_ms": quartiles(theirs_ms), **raw},
    )


def _check(design: str, folded: int, accepted: int) -> None:
    """Check that a sum is right; the talk's code may lose and double, and is measured anyway."""
    if design in SUMS and design != "slides" and folded != accepted:
        raise RuntimeError(f"{design}: {accepted} were accepted, {folded} were folded")


# Operations


def _full_load(bench: Bench) -> Iterator[Result]:
    """Count the operations of an item when each thread of the app is busy."""
    for design in ("fork-join", "at-once"):
        load = partial(closed, bench.port, f"/bench/{design}", FULL_LOAD, 4.0)
        counted = _count(bench, design, load)
        name = design.replace("-", "_")
        yield from _bill(counted, f"fork_join.{name}_", "at_full_load", {"writes": 0.2})
        yield Result(
            f"fork_join.{name}_items_per_join_at_full_load",
            counted.items / max(1, counted.batches),
            "items",
            f"{FULL_LOAD} clients, one key",
            80 if design == "fork-join" else None,
            raw={"items": counted.items, "joins": counted.batches},
        )


@dataclass
class Counted:
    """The cost of some items."""

    items: int
    batches: int
    cost: Cost
    cached: int
    load: Load


def _count(bench: Bench, design: str, act: Callable[[], Load]) -> Counted:
    bench.settle(TIMEOUT_S)
    cost, cached, (_, batches) = bench.cost(), bench.cached(), _sum(bench, design)
    load = act()
    bench.settle(TIMEOUT_S)
    return Counted(
        items=len(load.latencies_s),
        batches=_sum(bench, design)[1] - batches,
        cost=bench.cost() - cost,
        cached=bench.cached() - cached,
        load=load,
    )


def _bill(
    counted: Counted, prefix: str, suffix: str, targets: dict[str, float]
) -> Iterator[Result]:
    figures = {field.name: getattr(counted.cost, field.name) for field in fields(Cost)}
    for operation, spent in {**figures, "cache_operations": counted.cached}.items():
        yield Result(
            f"{prefix}{operation}_per_item_{suffix}",
            spent / counted.items,
            "operations",
            "one key",
            targets.get(operation),
            at_least=False,
            raw={"items": counted.items},
        )


# At the talk's pace


def _paced(bench: Bench) -> Iterator[Result]:
    """Compare the time of an insert at the talk's rates, and count its operations."""
    for per_s, talk_ms in TALK.items():
        loads: dict[str, list[Load]] = {"put": [], "fork-join": [], "at-once": []}
        for _ in range(ROUNDS):
            for design, results in loads.items():
                results.append(_at(bench, design, per_s, 4.0))
                bench.settle(TIMEOUT_S)
        for design in ("fork-join", "at-once"):
            name = f"fork_join.{design.replace('-', '_')}_p50_at_{per_s}_per_s"
            target = 1.5 if (design, per_s) == ("fork-join", 76) else None
            yield _latency(name, loads[design], loads["put"], target, talk_2010_ms=talk_ms)
    counted = _count(bench, "fork-join", lambda: _at(bench, "fork-join", 76, 10.0))
    targets = {"writes": 2.1, "tasks": 0.02}
    yield from _bill(counted, "fork_join.fork_join_", "at_76_per_s", targets)


def _at(bench: Bench, design: str, per_s: int, seconds: float) -> Load:
    numbers = range(int(per_s * seconds))
    return paced(bench.port, f"/bench/{design}", PACED_CLIENTS, per_s, numbers)


# Below HTTP


def _below_http(bench: Bench) -> Iterator[Result]:
    """Compare the in-memory fan-in with a bare put, on eight threads of this process."""

    def per_s(act: Callable[[], object], seconds: float) -> float:
        counts: list[int] = []

        def work() -> None:
            ends_at, done = time.perf_counter() + seconds, 0
            with bench.clients.context():
                while time.perf_counter() < ends_at:
                    act()
                    done += 1
            counts.append(done)

        in_threads(*[work] * BELOW_HTTP)
        return sum(counts) / seconds

    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(per_s(lambda: BareAddition(amount=1).put(), SECONDS))
        ours.append(per_s(lambda: IN_MEMORY.add(bench.clients, "below", Addition(1)), SECONDS))
        with bench.clients.context():
            IN_MEMORY.flush(bench.clients)
    bench.settle(TIMEOUT_S)
    yield Result(
        "fork_join.in_memory_below_http",
        statistics.median(ours) / statistics.median(theirs),
        "ratio",
        "a bare put",
        5.0,
        raw={
            "ours_per_s": round(statistics.median(ours)),
            "theirs_per_s": round(statistics.median(theirs)),
            "threads": BELOW_HTTP,
            "rounds": ROUNDS,
        },
    )


# The sum


def _sum(bench: Bench, design: str) -> tuple[int, int]:
    with bench.clients.context():
        row = BenchSum.get_by_id(design)
    return (row.items, row.batches) if row else (0, 0)


def folded(bench: Bench, design: str) -> int:
    return _sum(bench, design)[0]
