"""Materialized views, as the registry knows them: an app registers each group's maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollforward.materialized_views import builds, listing
from rollforward.materialized_views.group import check_groups
from rollforward.materialized_views.maintenance import rebuild
from rollforward.materialized_views.maintenance.rebuild import ViewMaintenance
from rollforward.materialized_views.updating.transport import sample_of_table, saved_at
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import age_s
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import Run, RunDetails, RunLink, RunList, RunQuery, RunVerb

MAX_COUNTED = 2_000  # Keys of a view that the gauges read: of its first rows, and of its last.


class MaterializedViews(Pattern[ViewMaintenance]):
    """The tables of all groups of views."""

    name = "materialized-views"
    takes = ViewMaintenance
    can_fail = True

    def expand(self, part: ViewMaintenance) -> Iterable[object]:
        """Return the jobs that rebuild and verify, and the queue of work items of old."""
        return [*part.jobs, part.views.fan_in]

    def tasks(self, parts: Sequence[ViewMaintenance]) -> Iterable[Task[Any]]:
        return [task for group in parts for task in group.views.tasks]

    def check(self, parts: Sequence[ViewMaintenance]) -> None:
        check_groups([group.views for group in parts])

    def sweep(
        self, clients: Clients, parts: Sequence[ViewMaintenance], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Take the next step of tables that are being built or dropped."""
        return {"busy": rebuild.sweep_all(clients, parts)}

    def runs(self, clients: Clients, parts: Sequence[ViewMaintenance], query: RunQuery) -> RunList:
        return builds.list_builds(parts, query)

    def owner_of(self, parts: Sequence[ViewMaintenance], run: Run) -> RunLink | None:
        return builds.owner_of(parts, run)

    def part_names(self, parts: Sequence[ViewMaintenance]) -> Iterable[str]:
        return listing.view_ids(parts)

    def run(self, clients: Clients, parts: Sequence[ViewMaintenance], run_id: str) -> RunDetails:
        if builds.is_build(run_id):
            return builds.build_details(parts, run_id)
        return listing.view_details(clients, parts, run_id)

    def control_run(
        self, clients: Clients, parts: Sequence[ViewMaintenance], run_id: str, verb: RunVerb
    ) -> str:
        return listing.control(clients, parts, run_id, verb)

    def gauges(self, clients: Clients, parts: Sequence[ViewMaintenance]) -> Sequence[Gauge]:
        gauges: list[Gauge] = []
        for view, table in _live_tables(parts):
            keys = sample_of_table(view, table, MAX_COUNTED // 2)
            ages = [age_s(clients.clock, saved_at(key)) for key in keys]
            labels = {"view": view.name}
            gauges += [
                Gauge(
                    "views_waiting_updates",
                    f"Updates of rows that are not applied; at most {MAX_COUNTED} are counted.",
                    len(keys),
                    labels,
                ),
                Gauge(
                    "views_oldest_seconds",
                    f"Lag of the view: age of the oldest of {MAX_COUNTED} updates that wait.",
                    max(ages, default=0.0),
                    labels,
                ),
            ]
        return gauges


def _live_tables(parts: Sequence[ViewMaintenance]) -> Iterator[tuple[type[View], str]]:
    """Yield each view with the table that is read."""
    for group in parts:
        catalog = group.views.catalog()
        for view in group.views.views.values():
            yield view, catalog.live(view)
