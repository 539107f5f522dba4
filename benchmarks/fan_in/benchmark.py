"""Folded views: updates of two hot rows and of a hundred, against the talk's code, in one run.

benchmarks/fan_in/app.py explains the designs. Polls of the rows compete for the two cores, so a
run at full speed has none before its last save. The first runs are not measured, as Java compiles
the emulator then. The emulator has no limit on the writes of one row. The service sustains about
one a second per row, and only designs that gather updates exceed this.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from google.cloud import ndb

from benchmarks.fan_in.app import GROUPS, ROW_KINDS, SPREAD
from benchmarks.harness.load import Load, counted, new_numbers, paced
from benchmarks.harness.results import Result, percentile, quartiles
from benchmarks.harness.testbed import Bench, open_testbed

DESIGNS = ("folds", "talk")
# Updates a second against the talk's code, by the number of rows.
TARGETS = {2: 6.0, 100: 3.0}
MAX_LAG_S = 0.3
MAX_WRITES = 3.0  # For an update over a hundred rows, including its save.
ROWS = (2, 100)
CLIENTS = 8
SAVES = 240
ROUNDS = 5
WARM_UPS = 4
PACED_PER_S, PACED_S = 50.0, 6.0
LOOK_EVERY_S = 0.05
TIMEOUT_S = 120.0


@dataclass
class Run:
    """Some saves and their visibility over time."""

    load: Load
    seen: list[tuple[float, int]]  # Seconds from the start, and visible saves.
    writes: int

    @property
    def saves(self) -> int:
        return len(self.load.ends_s)

    @property
    def per_s(self) -> float:
        """Return updates a second, from the first save until the last one is visible."""
        return self.saves / self.seen[-1][0]

    def lags_s(self) -> list[float]:
        """Return for each n the seconds from the n-th save until n saves were visible."""
        visible = iter(self.seen)
        at, count = next(visible)
        lags = []
        for number, saved_s in enumerate(sorted(self.load.ends_s), 1):
            while count < number:
                at, count = next(visible)
            lags.append(max(0.0, at - saved_s))
        return lags


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with open_testbed("benchmarks.fan_in.app:serve()", is_cached=True) as bench:
        for rows in ROWS:
            _alternating(partial(_flat_out, bench, rows=rows), WARM_UPS)
        for rows in ROWS:
            yield from _compared(bench, rows)


def _compared(bench: Bench, rows: int) -> Iterator[Result]:
    runs = _alternating(partial(_flat_out, bench, rows=rows), ROUNDS)
    slow = _alternating(partial(_at_a_pace, bench, rows=rows), 2)
    name = f"versus_talk_over_{rows}_rows"
    yield _ratio(f"updates_per_s_{name}", runs, lambda run: run.per_s, TARGETS[rows])
    yield _ratio(f"writes_per_update_{name}", runs, lambda run: run.writes / run.saves)
    for percent in (50, 95):
        yield _ratio(
            f"lag_p{percent}_{name}",
            slow,
            lambda run, share=percent / 100: percentile(run.lags_s(), share),
        )
    lags = [percentile(run.lags_s(), 0.5) for run in slow["folds"]]
    yield _most(f"lag_p50_s_over_{rows}_rows", lags, "s", "50 saves a second", MAX_LAG_S)
    writes = [run.writes / run.saves for run in runs["folds"]]
    target = MAX_WRITES if rows == max(ROWS) else None
    yield _most(f"writes_per_update_over_{rows}_rows", writes, "writes", "save included", target)


def _alternating(act: Callable[[str], Run], rounds: int) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {design: [] for design in DESIGNS}
    for _ in range(rounds):
        for design, results in runs.items():
            results.append(act(design))
    return runs


def _most(name: str, figures: list[float], unit: str, versus: str, target: float | None) -> Result:
    """Return the median of some figures, with the target as its upper bound."""
    median, raw = statistics.median(figures), {"quartiles": quartiles(figures)}
    return Result(f"fan_in_views.{name}", median, unit, versus, target, at_least=False, raw=raw)


def _ratio(
    name: str,
    runs: dict[str, list[Run]],
    figure: Callable[[Run], float],
    target: float | None = None,
) -> Result:
    """Return the ratio of our figure to the talk's code's."""
    ours, theirs = ([figure(run) for run in runs[design]] for design in DESIGNS)
    return Result(
        f"fan_in_views.{name}",
        statistics.median(ours) / statistics.median(theirs),
        "ratio",
        "the talk's code",
        target,
        raw={"ours": quartiles(ours), "theirs": quartiles(theirs), "rounds": len(ours)},
    )


def _flat_out(bench: Bench, design: str, rows: int) -> Run:
    numbers = new_numbers(SAVES)
    return _watched(
        bench,
        design,
        rows,
        len(numbers),
        lambda path: counted(bench.port, path, CLIENTS, numbers),
        is_watched_after=True,
    )


def _at_a_pace(bench: Bench, design: str, rows: int) -> Run:
    numbers = new_numbers(int(PACED_PER_S * PACED_S))
    return _watched(
        bench,
        design,
        rows,
        len(numbers),
        lambda path: paced(bench.port, path, CLIENTS, PACED_PER_S, numbers),
    )


def _watched(
    bench: Bench,
    design: str,
    rows: int,
    saves: int,
    act: Callable[[str], Load],
    *,
    is_watched_after: bool = False,
) -> Run:
    """Save, and poll the rows until all saves are visible.

    Args:
        is_watched_after: Whether to poll only after all saves have been answered.

    Raises:
        RuntimeError: too few saves are visible within TIMEOUT_S, or too many.
    """
    start_count, writes = visible(bench, design, rows), bench.cost().writes
    loads: list[Load] = []
    clients = threading.Thread(target=lambda: loads.append(act(f"/bench/{design}/{rows}/{{}}")))
    clients.start()
    if is_watched_after:
        clients.join()
    looks: list[tuple[float, int]] = []
    ends_at = time.time() + TIMEOUT_S
    while not looks or looks[-1][1] < saves:
        looks.append((time.time(), visible(bench, design, rows) - start_count))
        if time.time() > ends_at:
            raise RuntimeError(f"{design}: {looks[-1][1]} of {saves} updates are visible")
        time.sleep(LOOK_EVERY_S)
    clients.join()
    bench.queue.wait_idle(TIMEOUT_S)
    if visible(bench, design, rows) - start_count != saves:
        raise RuntimeError(f"{design}: more updates are visible than saves were made")
    (load,) = loads
    seen = [(at - load.began, count) for at, count in looks]
    return Run(load, seen, bench.cost().writes - writes)


def visible(bench: Bench, design: str, rows: int) -> int:
    """Return the number of sources that the rows count."""
    groups = range(rows * SPREAD, rows * SPREAD + rows)
    with bench.clients.context():
        if design in ROW_KINDS:
            counts = ndb.get_multi([ndb.Key(ROW_KINDS[design], group) for group in groups])
            return sum(row.count for row in counts if row)
        _, views, view = GROUPS[design]
        names = {(group,) for group in groups} | set(groups)
        return sum(row.count for row in views.read(bench.clients, view).rows if row.name in names)
