"""Runs the benchmarks: `make bench`, `make bench NAMES="continuations"`, `make bench DOCS=1`.

Results are ratios whose two sides are measured in the same run, and operations per item, which
noise cannot affect.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import cloud, paging, saves, startup, testkit
from benchmarks.batches import benchmark as batches
from benchmarks.cloudtasks import benchmark as cloudtasks
from benchmarks.continuations import benchmark as continuations
from benchmarks.counters import benchmark as counters
from benchmarks.dollars import benchmark as dollars
from benchmarks.fan_in import benchmark as fan_in
from benchmarks.fork_join import benchmark as fork_join
from benchmarks.growth import benchmark as growth
from benchmarks.harness.results import Result, table
from benchmarks.healing import benchmark as healing
from benchmarks.inserts import benchmark as inserts
from benchmarks.lanes import benchmark as lanes
from benchmarks.live import benchmark as live
from benchmarks.materialized_views import benchmark as materialized_views
from benchmarks.query_cache import benchmark as query_cache
from benchmarks.steps import benchmark as steps
from benchmarks.streams import benchmark as streams
from benchmarks.streams import growth as streams_growth
from benchmarks.streams_beam import benchmark as streams_beam
from benchmarks.tracing import benchmark as tracing
from rollforward.cloud_profile import BUNDLED

# Each benchmark by the first part of its results' names.
BENCHMARKS: dict[str, Callable[[], Iterator[Result]]] = {
    "batches": batches.measure,
    "cloudtasks": cloudtasks.measure,
    "continuations": continuations.measure,
    "counters": counters.measure,
    "dollars": dollars.measure,
    "fan_in_views": fan_in.measure,
    "fork_join": fork_join.measure,
    "growth": growth.measure,
    "healing": healing.measure,
    "inserts": inserts.measure,
    "lanes": lanes.measure,
    "live": live.measure,
    "materialized_views": materialized_views.measure,
    "paging": paging.measure,
    "query_cache": query_cache.measure,
    "saves": saves.measure,
    "startup": startup.measure,
    "steps": steps.measure,
    "streams": streams.measure,
    "streams_beam": streams_beam.measure,
    "streams_growth": streams_growth.measure,
    "testkit": testkit.measure,
    "tracing": tracing.measure,
}
# Runs without the others: `make bench LIKE=cloud`.
LIKE = "cloud"
PERFORMANCE = Path(__file__).parent.parent / "docs" / "performance" / "results.md"
MARK = "<!-- measured by `make bench DOCS=1`; all below this line is written by it -->"


def main() -> int:
    """Run the requested benchmarks, and return 1 if a result misses its target."""
    arguments = _arguments()
    results: list[Result] = []
    if arguments.items:
        BENCHMARKS["cloudtasks"] = lambda: cloudtasks.measure(arguments.items)
        BENCHMARKS["lanes"] = lambda: lanes.measure(arguments.items)
    growing = [name for name in arguments.names if name.startswith("growth")]
    BENCHMARKS["growth"] = lambda: growth.measure(arguments.items, growing)
    if arguments.like:
        BENCHMARKS.clear()
        path = BUNDLED if arguments.like == BUNDLED.stem else Path(arguments.like)
        BENCHMARKS[LIKE] = lambda: cloud.measure(path, arguments.names)
    for name, measure in BENCHMARKS.items():
        if arguments.names and name not in {
            argument.partition(".")[0] for argument in arguments.names
        }:
            continue
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        began, count = time.monotonic(), len(results)
        for result in measure():
            if arguments.names and not result.name.startswith(tuple(arguments.names)):
                continue
            print(result.line(), flush=True)
            results.append(result)
        print(f"{name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if arguments.docs and len(results) > count:  # After each: a later one may fail.
            _write(results, {name} & set(arguments.names or BENCHMARKS))
    return 0 if all(result.met is not False for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", help="benchmarks, or prefixes of results' names")
    parser.add_argument(
        "--like", default="", help="measure on a profile of latencies: cloud, or its file"
    )
    parser.add_argument("--items", type=int, help="the most items, guests, keys, tasks")
    parser.add_argument("--docs", action="store_true", help="write docs/performance/results.md")
    return parser.parse_args()


def _write(results: list[Result], complete: set[str]) -> None:
    """Write the table below the text that explains it; rows of results not measured now stay."""
    text, _, old_table = PERFORMANCE.read_text().partition(MARK)
    measured = {result.name for result in results}
    lines = [line for line in old_table.splitlines() if line.startswith("| `")]
    old_rows = {line.split("`")[1]: line for line in lines}
    unmeasured = [
        line
        for name, line in old_rows.items()
        if name not in measured and name.split(".")[0] not in complete
    ]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}"
    day = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    head, ruler, *rows = table(results).splitlines()
    body = "\n".join([head, ruler, *sorted([*unmeasured, *rows])])
    PERFORMANCE.write_text(f"{text}{MARK}\n\nLast measured {day}, {machine}.\n\n{body}\n")


if __name__ == "__main__":
    sys.exit(main())
