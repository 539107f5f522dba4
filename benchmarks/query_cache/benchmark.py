"""The query cache: a front page of 500 posts, cached and uncached, and at the moment of expiry.

8 and 64 clients send requests over HTTP to gunicorn, as the dev server runs it. A value lives for
two seconds and expires some ten times while 64 clients read. So if answers at an expiry are slow,
they are the slowest of a hundred. "warm" is the same load between two expiries.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from google.cloud import ndb

from benchmarks.harness.load import Load, closed
from benchmarks.harness.results import Result, percentile, quartiles
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.query_cache.app import TTL_S, posts

ROUNDS = 5
SECONDS = 2.0
CLIENTS, MANY = 8, 64
STAMPEDE_S = 20.0
# The time after an expiry in which a refresh may run; otherwise the cache is warm.
AT_AN_END_S = 0.5


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with open_testbed("benchmarks.query_cache.app:serve()", is_cached=True) as bench:
        with bench.clients.context():
            entities = posts()
            for start in range(0, len(entities), 200):
                ndb.put_multi(entities[start : start + 200])
        for design in ("bare", "cached"):
            closed(bench.port, f"/bench/{design}", CLIENTS, 1.0)
        yield from _cached_and_not(bench)
        yield from _stampede(bench)


def _cached_and_not(bench: Bench) -> Iterator[Result]:
    loads: dict[str, list[Load]] = {"bare": [], "cached": []}
    reads = {"bare": 0, "cached": 0}
    for _ in range(ROUNDS):
        for design, results in loads.items():
            start_cost = bench.cost()
            results.append(closed(bench.port, f"/bench/{design}", CLIENTS, SECONDS))
            reads[design] += (bench.cost() - start_cost).reads
    per_s = {design: [load.per_s for load in results] for design, results in loads.items()}
    p50 = {design: [load.ms(0.5) for load in results] for design, results in loads.items()}
    pages = {
        design: sum(len(load.latencies_s) for load in results) for design, results in loads.items()
    }
    yield Result(
        "query_cache.pages_per_s",
        statistics.median(per_s["cached"]) / statistics.median(per_s["bare"]),
        "ratio",
        "not cached",
        raw={design: quartiles(results) for design, results in per_s.items()},
    )
    yield Result(
        "query_cache.p50",
        statistics.median(p50["cached"]) / statistics.median(p50["bare"]),
        "ratio",
        "not cached",
        raw={f"{design}_ms": quartiles(results) for design, results in p50.items()},
    )
    for design in loads:
        name = f"query_cache.reads_per_page_{design}"
        yield Result(name, reads[design] / pages[design], "operations", "a page of ten posts")


def _stampede(bench: Bench) -> Iterator[Result]:
    """Read by 64 clients while values expire, which should not slow any answer."""
    load = closed(bench.port, "/bench/cached", MANY, STAMPEDE_S)
    ends, warm = _at_ends(load)
    yield Result(
        "query_cache.p99_at_expiry",
        percentile(ends, 0.99) / percentile(warm, 0.99),
        "ratio",
        "the warm p99",
        2.0,
        at_least=False,
        raw={
            "at_expiry_ms": percentile(ends, 0.99) * 1000,
            "warm_ms": percentile(warm, 0.99) * 1000,
            "answers": len(load.latencies_s),
        },
    )
    in_flight, computed = _refreshes(Path(bench.costs))
    yield Result(
        "query_cache.refreshes_in_flight",
        in_flight,
        "refreshes",
        "the most in a process at a time",
        1.0,
        at_least=False,
        raw={"refreshes": computed, "clients": MANY, "ttl_s": TTL_S},
    )


def _at_ends(load: Load) -> tuple[list[float], list[float]]:
    """Split the answers: in every two seconds, the slowest half second has the expiry."""
    bins: dict[int, list[float]] = {}
    for latency, end in zip(load.latencies_s, load.ends_s, strict=True):
        bins.setdefault(int(end / AT_AN_END_S), []).append(latency)
    per_period = round(TTL_S / AT_AN_END_S)
    ends: list[float] = []
    warm: list[float] = []
    ordered = [bins[number] for number in sorted(bins)]
    for start in range(0, len(ordered) - per_period + 1, per_period):
        period = sorted(ordered[start : start + per_period], key=max)
        ends += period[-1]
        warm += [latency for part in period[:-1] for latency in part]
    return ends, warm


def _refreshes(folder: Path) -> tuple[int, int]:
    """Return the largest number of concurrent refreshes in a process, and the total of all."""
    noted = [path.read_text().split() for path in folder.glob("*.refreshes")]
    return max(int(in_flight) for in_flight, _ in noted), sum(int(count) for _, count in noted)
