"""Folded views: updates of two hot rows and of a hundred, against the talk's code, in one run.

How the designs differ: benchmarks/fan_in/app.py. Looks at the rows share the two cores, so there is
none before the last save of a run that goes as fast as it can. The first runs are not measured: in
these the emulator is compiled. An emulator has no limit for the writes of one
row; on the service a row takes about one a second for long, and only what gathers gets past that.
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
MAX_WRITES = 3.0  # An update over a hundred rows, its save included.
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
    """Some saves and what became of them."""

    load: Load
    seen: list[tuple[float, int]]  # Seconds from the beginning, and how many were visible.
    writes: int

    @property
    def saves(self) -> int:
        return len(self.load.ends_s)

    @property
    def per_s(self) -> float:
        """Return updates a second, from the first save until the last one is visible."""
        return self.saves / self.seen[-1][0]

    def lags_s(self) -> list[float]:
        """Return how long after the n-th save n were visible, for each n."""
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
    most = MAX_WRITES if rows == max(ROWS) else None
    yield _most(f"writes_per_update_over_{rows}_rows", writes, "writes", "save included", most)


def _alternating(act: Callable[[str], Run], rounds: int) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {design: [] for design in DESIGNS}
    for _ in range(rounds):
        for design, found in runs.items():
            found.append(act(design))
    return runs


def _most(name: str, figures: list[float], unit: str, versus: str, target: float | None) -> Result:
    """Return the median of some figures, which should be at most the target."""
    median, raw = statistics.median(figures), {"quartiles": quartiles(figures)}
    return Result(f"fan_in_views.{name}", median, unit, versus, target, at_least=False, raw=raw)


def _ratio(
    name: str,
    runs: dict[str, list[Run]],
    figure: Callable[[Run], float],
    target: float | None = None,
) -> Result:
    """Return a figure of ours against that of the talk's code."""
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
    """Save, and look until all is visible.

    Args:
        is_watched_after: Look when all saves have been answered, and not before.

    Raises:
        RuntimeError: it is not within TIMEOUT_S, or there is more.
    """
    before, writes = visible(bench, design, rows), bench.cost().writes
    loads: list[Load] = []
    clients = threading.Thread(target=lambda: loads.append(act(f"/bench/{design}/{rows}/{{}}")))
    clients.start()
    if is_watched_after:
        clients.join()
    looks: list[tuple[float, int]] = []
    ends_at = time.time() + TIMEOUT_S
    while not looks or looks[-1][1] < saves:
        looks.append((time.time(), visible(bench, design, rows) - before))
        if time.time() > ends_at:
            raise RuntimeError(f"{design}: {looks[-1][1]} of {saves} updates are visible")
        time.sleep(LOOK_EVERY_S)
    clients.join()
    bench.queue.wait_idle(TIMEOUT_S)
    if visible(bench, design, rows) - before != saves:
        raise RuntimeError(f"{design}: more updates are visible than were made")
    (load,) = loads
    seen = [(at - load.began, count) for at, count in looks]
    return Run(load, seen, bench.cost().writes - writes)


def visible(bench: Bench, design: str, rows: int) -> int:
    """Return how many sources the rows count."""
    groups = range(rows * SPREAD, rows * SPREAD + rows)
    with bench.clients.context():
        if design in ROW_KINDS:
            found = ndb.get_multi([ndb.Key(ROW_KINDS[design], group) for group in groups])
            return sum(row.count for row in found if row)
        _, views, view = GROUPS[design]
        wanted = {(group,) for group in groups} | set(groups)
        return sum(row.count for row in views.read(bench.clients, view).rows if row.name in wanted)
