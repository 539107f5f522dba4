"""Costs of a page of the blog, in the words of the stage, and the source of its content."""

from __future__ import annotations

from typing import Any

from handlers.shared.balance import Balance
from handlers.shared.formatting import duration, plural
from handlers.shared.stage import Cell
from pipelines.blog.samples import SampleStatus
from rollforward.query_cache import CachedResult, CacheStats
from rollforward.runtime import Cost

# How a reading came about, in words; any other was read for this visitor.
SOURCES = {
    "hits": "From memcached",
    "stale": "From memcached, while another visitor refreshes it",
    "shared": "One read, shared by several visitors",
}
FROM_MEMCACHED = ("hits", "stale")


def books_of(filling: SampleStatus | None) -> Balance | None:
    """Return the books of the samples that fill a blog; None: none were asked for."""
    if filling is None:
        return None
    runs = (filling.posts, filling.comments)
    return Balance(
        is_moving=filling.is_running,
        asked=sum(run.requested or 0 for run in runs),
        made_count=sum(run.totals.done + run.totals.skipped for run in runs),
        refused=sum(run.totals.failed for run in runs),
    )


def closing_of(reading: CachedResult[Any] | None) -> str:
    """Return in one line where a page came from."""
    if reading is None:
        return "Read from Datastore, for this request"
    source = SOURCES.get(reading.state, "Read from Datastore")
    if reading.state not in FROM_MEMCACHED:
        return source
    without = f"{plural(reading.reads, 'read')} and {duration(reading.took_s)}"
    return f"{source}, {duration(reading.age_s)} old; without it: {without}"


def costs_of(
    spent: Cost, took_s: float, reading: CachedResult[Any] | None, stats: CacheStats | None
) -> list[Cell]:
    """Return the cost of a page, and the statistics of its cache."""
    trips = plural(spent.round_trips, "round trip")
    cells = [Cell("This page", plural(spent.reads, "read"), f"{trips}, {duration(took_s)}")]
    if reading is not None and stats is not None:
        cost = f"{plural(reading.reads, 'read')}, {plural(reading.round_trips, 'round trip')}"
        cells += [
            Cell("Hits", str(stats.hits), plural(stats.misses, "miss", "misses")),
            Cell("Refreshes", str(stats.refreshes), "one visitor for all"),
            Cell("A miss costs", duration(stats.mean_s), cost),
        ]
    return cells
