"""Materialized views, as the registry knows them: an app registers each group's maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.materialized_views.group import check_groups
from rollforward.materialized_views.maintenance import rebuild
from rollforward.materialized_views.maintenance.rebuild import ViewMaintenance
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Pattern


class MaterializedViews(Pattern[ViewMaintenance]):
    """The tables of all groups of views."""

    name = "materialized-views"
    takes = ViewMaintenance

    def expand(self, part: ViewMaintenance) -> Iterable[object]:
        """Return the jobs that rebuild and verify, and the queue of the views with fan-in."""
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
