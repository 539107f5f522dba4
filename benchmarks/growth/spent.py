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
# Long enough to store the items gathered in memory, and to create the tasks that follow.
GATHERED_S = 0.6
# Its queries read only their results; an emulator's query reads all rows of a kind.
STORE = "memory"
MAX_GROWTH = 1.2
MOST_KINDS = 12
OPERATIONS = ("reads", "writes", "tasks", "round_trips")
# This growth is inherent: the same records in more intervals are more rows with fewer records.
UNLIKE = ("streams_by_intervals",)
APP, EMULATOR, OURSELVES = "app", "emulator", "ourselves"


class WrongError(Exception):
    """Items were lost or doubled, so their cost is meaningless."""


@dataclass(frozen=True)
class Spent:
    """The cost of some items."""

    items: int
    seconds: float
    cost: Cost
    moved_bytes: int
    processor_s: Mapping[str, float]

    def an_item(self) -> dict[str, float]:
        """Return the figures per item: operations, bytes, and milliseconds."""
        cost = self.cost.as_dict()
        figures: dict[str, float] = {name: cost[name] for name in OPERATIONS}
        figures["bytes"] = self.moved_bytes
        figures["ms"] = 1000 * self.seconds
        figures |= {f"{role}_cpu_ms": 1000 * s for role, s in self.processor_s.items()}
        return {name: figure / self.items for name, figure in figures.items()}


def spend(bench: Bench, subject: str, items: int, start: Callable[[], object]) -> Spent:
    """Start some items, wait until they are done, and print their time and their operations.

    Returns:
        The cost of the items.
    """
    cost, moved, processor_s = bench.whole_cost(), bench.moved_bytes(), processor_s_by_role()
    counts = counts_of(bench.datastore)
    began = time.perf_counter()
    start()
    ended = until_idle(bench)
    processor_s = {
        role: s - processor_s.get(role, 0.0) for role, s in processor_s_by_role().items()
    }
    cost, moved = bench.whole_cost() - cost, bench.moved_bytes() - moved
    by_kind = _most_of(counts_of(bench.datastore) - counts, items)
    line = f"{items:,} {subject} took {ended - began:.1f} s; each: {by_kind}"
    print(line, file=sys.stderr, flush=True)
    return Spent(items, ended - began, cost, moved, processor_s)


def _most_of(counts: Counter[str], items: int) -> str:
    """Return the most frequent operations as text, each with its number per item."""
    top = counts.most_common(MOST_KINDS)
    return ", ".join(f"{count / items:.3g} {operation}" for operation, count in top)


def until_idle(bench: Bench) -> float:
    """Wait until no task and no gathered item is left; return the time at which that began."""
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
    return {role: float(seconds) for role, seconds in spent.items()}


def _role(process: psutil.Process) -> str:
    is_store = "java" in process.name() or "benchmarks.memory" in process.cmdline()
    return EMULATOR if is_store else APP


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def check(subject: str, count: int, expected: int) -> None:
    """Check that each item was done once.

    Raises:
        WrongError: the counts differ.
    """
    if count != expected:
        raise WrongError(f"{subject}: {count} of {expected} items were done")


def growth_of(
    name: str, of: str, figures: Mapping[int, Mapping[str, float]], by: str
) -> Iterator[Result]:
    """Yield for each figure its largest growth from one size to a larger one.

    Args:
        of: The unit that the figures describe: "an item".
        figures: The figures by size.
        by: The unit of the sizes: "items".
    """
    sizes = sorted(figures)
    for figure in figures[sizes[0]]:
        values = [figures[size][figure] for size in sizes]
        if min(values) <= 0:
            continue
        shown = ", ".join(f"{value:.3g}" for value in values)
        at = ", ".join(f"{size:,}" for size in sizes)
        is_untargeted = figure.endswith("_cpu_ms") or name in UNLIKE
        yield Result(
            f"growth.{name}_{figure}",
            _growth(values),
            "times",
            f"{shown} {figure.replace('_', ' ')} {of} at {at} {by}",
            None if is_untargeted else MAX_GROWTH,
            at_least=False,
            raw={"sizes": sizes, "figures": [round(value, 5) for value in values]},
        )


def _growth(values: list[float]) -> float:
    """Return the largest growth from a value to a later one.

    >>> _growth([4.0, 2.0, 3.0])
    1.5
    """
    if len(values) == 1:
        return 1.0
    tails = ((start, values[place + 1 :]) for place, start in enumerate(values))
    return max(end / start for start, tail in tails for end in tail)
