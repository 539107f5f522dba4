"""A point of a curve: the rate and the lags of a load with a number of workers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.harness.results import percentile
from tests.simulation.curves.loads import CurveApp, Load, Progress
from tests.simulation.curves.site import Site
from tests.simulation.processes import in_virtual_time
from tests.simulation.services.moods import CALM

SETTLE_S = 900.0


@dataclass(frozen=True)
class Conditions:
    """What a run is played with.

    Attributes:
        at_once: Tasks that a queue may send at a time; 0: what queue.yaml says.
        queue_rate: Tasks that a queue may send a second, if `at_once` is given.
        rate: Items a second; None: as many as clients bring.
    """

    clients: int = 64
    at_once: int = 0
    queue_rate: float = 500.0
    is_limited: bool = True
    warm_s: float = 5.0
    seconds: float = 10.0
    rate: float | None = None


@dataclass(frozen=True)
class Row:
    """A point of a curve.

    Attributes:
        shares: Where the time of those went whose number it is, the largest first.
        limits: For which share of the time each queue sent as much as it may.
        aborts: Refused commits a second by kind of row.
    """

    workers: int
    per_s: float
    offered_per_s: float
    folds_per_s: float
    lags_s: list[float]
    shares: Mapping[str, float]
    limits: Mapping[str, float]
    aborts: Mapping[str, float]
    is_exact: bool


def play(load: type[Load], n: int, conditions: Conditions) -> Row:
    """Play a load, count for a while, and compare the totals when all is done."""
    workers, clients = load.processes(n, conditions.clients)
    site = Site(CurveApp(), workers, clients, is_limited=conditions.is_limited)  # type: ignore[arg-type]
    with contextlib.closing(site.engine), in_virtual_time(site):
        site.begin(f"{load.__name__} {n}", [], CALM)
        if conditions.at_once:
            site.let_queues_run(conditions.at_once, conditions.queue_rate)
        progress = Progress(site)
        playing = load(site, progress, conditions.rate)
        site.run(until_s=site.now_s + conditions.warm_s)
        for counts in (site.spent, site.lost, site.tickets.refused, site.full_s):
            counts.clear()
        progress.began_s = site.now_s
        site.run(until_s=site.now_s + conditions.seconds)
        row = _row(n, site, progress, conditions.seconds, load.role)
        progress.began_s, site.is_over = None, True
        site.run(until_s=site.now_s + SETTLE_S)
        looker = site.clients[0].clients
        with looker.context():
            is_exact = playing.is_exact(looker)
        site.end()
    return replace(row, is_exact=is_exact)


def _row(n: int, site: Site, progress: Progress, seconds: float, role: str) -> Row:
    shares = {
        what: spent_s / (n * seconds) for (whose, what), spent_s in site.spent.items()
        if whose == role
    }  # fmt: skip
    aborts = site.lost + site.tickets.refused
    shares["no task"] = max(0.0, 1 - sum(shares.values()))
    return Row(
        n,
        progress.ended / seconds,
        progress.offered / seconds,
        progress.folds / seconds,
        list(progress.lags_s),
        dict(sorted(shares.items(), key=lambda item: -item[1])),
        {queue: full_s / seconds for queue, full_s in site.full_s.items()},
        {kind: count / seconds for kind, count in aborts.most_common()},
        is_exact=False,
    )


COLUMNS = (
    "workers", "a second", "of a worker", "of linear", "brought a second", "folds a second",
    "lag p50 / p95, s", "a worker's time", "queues full", "aborts a second",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n|---:|---:|---:|---:|---:|---:|---:|---|---|---|"


def text_of(row: Row, lags_s: list[float], best: float) -> str:
    """Return a point as a row of a table; `best` is the most that one worker did."""
    lag = " / ".join(f"{percentile(lags_s, at):.2f}" for at in (0.5, 0.95)) if lags_s else "-"
    each = row.per_s / row.workers
    shares = _shares(dict([*row.shares.items()][:4]))
    aborts = ", ".join(f"{kind} {n:.1f}" for kind, n in [*row.aborts.items()][:2] if n >= 0.1)
    columns = (
        f"{row.workers}", f"{row.per_s:,.0f}", f"{each:,.1f}", f"{each / best:.2f}",
        f"{row.offered_per_s:,.0f}", f"{row.folds_per_s:.1f}", lag, shares, _shares(row.limits),
        aborts,
    )  # fmt: skip
    return f"| {' | '.join(columns)} |"


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share >= 0.02)
