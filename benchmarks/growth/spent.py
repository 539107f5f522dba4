"""The cost of items and its growth: operations, bytes, time, and processor time by process."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import psutil

from benchmarks.harness.results import Result
from benchmarks.harness.testbed import Bench
from benchmarks.memory.counts import counts_of
from rollforward.runtime import Cost

TIMEOUT_S = 4 * 3_600  # A rebuild of a million takes more than one hour.
# What is gathered in memory is stored by then, and the tasks that follow are created.
GATHERED_S = 0.6
# Its queries cost what they return; an emulator reads all rows of a kind for each of them.
STORE = "memory"
MAX_GROWTH = 1.2
MOST_KINDS = 12
OPERATIONS = ("reads", "writes", "tasks", "round_trips")
# By nature not flat: the same records in more intervals are more rows with fewer records.
UNLIKE = ("streams_by_intervals",)
APP, EMULATOR, OURSELVES = "app", "emulator", "ourselves"


class WrongError(Exception):
    """Items were lost or doubled, so their price says nothing."""


@dataclass(frozen=True)
class Spent:
    """The cost of some items."""

    items: int
    seconds: float
    cost: Cost
    moved_bytes: int
    processor_s: Mapping[str, float]

    def an_item(self) -> dict[str, float]:
        """Return the figures of an item: operations, bytes, and milliseconds."""
        cost = self.cost.as_dict()
        figures: dict[str, float] = {name: cost[name] for name in OPERATIONS}
        figures["bytes"] = self.moved_bytes
        figures["ms"] = 1000 * self.seconds
        figures |= {f"{who}_cpu_ms": 1000 * s for who, s in self.processor_s.items()}
        return {name: figure / self.items for name, figure in figures.items()}


def spend(bench: Bench, what: str, items: int, start: Callable[[], object]) -> Spent:
    """Start some items, and count until they are done; say how long that took, and of which rows.

    Returns:
        What they cost.
    """
    cost, moved, processor_s = bench.whole_cost(), bench.moved_bytes(), processor_s_by_role()
    counts = counts_of(bench.datastore)
    began = time.perf_counter()
    start()
    ended = until_idle(bench)
    processor_s = {who: s - processor_s.get(who, 0.0) for who, s in processor_s_by_role().items()}
    cost, moved = bench.whole_cost() - cost, bench.moved_bytes() - moved
    by_kind = _most_of(counts_of(bench.datastore) - counts, items)
    line = f"{items:,} {what} took {ended - began:.1f} s; each: {by_kind}"
    print(line, file=sys.stderr, flush=True)
    return Spent(items, ended - began, cost, moved, processor_s)


def _most_of(counts: Counter[str], items: int) -> str:
    """Return the most frequent operations as text, each with its number for an item."""
    most = counts.most_common(MOST_KINDS)
    return ", ".join(f"{count / items:.3g} {operation}" for operation, count in most)


def until_idle(bench: Bench) -> float:
    """Wait until no task is left, and nothing is gathered in memory; return since when."""
    while True:
        bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
        ended = time.perf_counter()
        time.sleep(GATHERED_S)
        if bench.queue.engine.is_idle(with_scheduled=True):
            return ended


def processor_s_by_role() -> dict[str, float]:
    """Return the processor time so far of the app, the emulator, and this process, in seconds."""
    this = psutil.Process()
    spent = Counter[str]({OURSELVES: _seconds(this)})  # type: ignore[dict-item]
    for child in this.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent[_role(child)] += _seconds(child)  # type: ignore[assignment]
    return {who: float(seconds) for who, seconds in spent.items()}


def _role(process: psutil.Process) -> str:
    is_store = "java" in process.name() or "benchmarks.memory" in process.cmdline()
    return EMULATOR if is_store else APP


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def check(what: str, count: int, expected: int) -> None:
    """Check that each item was done once.

    Raises:
        WrongError: it was not.
    """
    if count != expected:
        raise WrongError(f"{what}: {count} items were done of {expected}")


def growth_of(
    name: str, of: str, figures: Mapping[int, Mapping[str, float]], by: str
) -> Iterator[Result]:
    """Yield for each figure the most by which it grew from one size to a larger one.

    Args:
        of: What the figures are of: "an item".
        figures: By size.
        by: What the sizes are: "items".
    """
    sizes = sorted(figures)
    for what in figures[sizes[0]]:
        values = [figures[size][what] for size in sizes]
        if min(values) <= 0:
            continue
        told = ", ".join(f"{value:.3g}" for value in values)
        at = ", ".join(f"{size:,}" for size in sizes)
        is_told_only = what.endswith("_cpu_ms") or name in UNLIKE
        yield Result(
            f"growth.{name}_{what}",
            _growth(values),
            "times",
            f"{told} {what.replace('_', ' ')} {of} at {at} {by}",
            None if is_told_only else MAX_GROWTH,
            at_least=False,
            raw={"sizes": sizes, "figures": [round(value, 5) for value in values]},
        )


def _growth(values: list[float]) -> float:
    """Return the most by which a figure grew from one to a later one.

    >>> _growth([4.0, 2.0, 3.0])
    1.5
    """
    if len(values) == 1:
        return 1.0
    later = ((each, values[place + 1 :]) for place, each in enumerate(values))
    return max(one / each for each, rest in later for one in rest)
