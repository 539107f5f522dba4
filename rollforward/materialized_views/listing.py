"""Views as an operator sees them: their tables, the current build, and a rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rollforward.materialized_views import builds
from rollforward.materialized_views.maintenance.rebuild import ViewMaintenance
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.tasks.runs import (
    RunDetails,
    RunRefusedError,
    RunVerb,
    UnknownRunError,
    named_run,
)

PATTERN = "materialized-views"


def view_ids(groups: Sequence[ViewMaintenance]) -> Iterable[str]:
    """Return the ids of all views: their group and their name."""
    return [f"{group.views.group}/{name}" for group in groups for name in group.views.views]


def view_details(clients: Clients, groups: Sequence[ViewMaintenance], view_id: str) -> RunDetails:
    """Return the tables of a view, and how far the one is that is being built.

    Raises:
        UnknownRunError: no group declares it.
    """
    group, view = _view(groups, view_id)
    tables = group.tables_of(view)
    build = group.rebuilding(clients, view)
    numbers: dict[str, float | str] = {
        "live_table": tables.live,
        "builds": tables.builds,
        "dropping": ", ".join(tables.dropping) or "none",
        "building": build.table if build else "none",
    }
    is_busy = build is not None and not build.has_stopped
    run = named_run(PATTERN, view_id, () if is_busy else ("rebuild",))
    if build is not None:
        numbers["phase"] = build.phase
        waiting = max(0, build.expected - build.done - build.waiting)
        counts = {"done": build.done - build.failed, "failed": build.failed}
        counts |= {"retrying": build.waiting, "waiting": waiting}
        run = replace(run, counts=counts, expected=max(build.expected, build.done))
    rows = builds.links_of(group, view.name)
    return RunDetails(run, numbers=numbers, rows=rows)


def control(
    clients: Clients, groups: Sequence[ViewMaintenance], view_id: str, verb: RunVerb
) -> str:
    """Begin to rebuild a view; return its id.

    Raises:
        UnknownRunError: no group declares it.
        RunRefusedError: a table is being built, or the verb is another one.
    """
    group, view = _view(groups, view_id)
    build = group.rebuilding(clients, view)
    if verb != "rebuild":
        raise RunRefusedError("it is a view: rebuild it")
    if build is not None and not build.has_stopped:
        raise RunRefusedError(f"{build.table} is being built")
    group.rebuild(clients, view)
    return view_id


def _view(groups: Sequence[ViewMaintenance], view_id: str) -> tuple[ViewMaintenance, type[View]]:
    group_name, _, name = view_id.partition("/")
    for group in groups:
        if group.views.group == group_name and name in group.views.views:
            return group, group.views.views[name]
    raise UnknownRunError(view_id)
