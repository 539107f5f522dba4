"""Builds of views as runs: derived from the catalog and from the runs of their walks.

A build is listed as long as its table exists: it is read, being built, or on its way out. Its walks
are runs of jobs, which stay in the list after that.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.continuations.entities import CANCELLED, FINISHED, ContinuationRun, run_key
from rollforward.continuations.progress import RunTotals
from rollforward.materialized_views.catalog import RETIRED, Catalog, TableSet, version_of, view_name
from rollforward.materialized_views.maintenance.rebuild import ViewMaintenance
from rollforward.materialized_views.maintenance.walks import (
    BACKFILL,
    CATCH_UP,
    CONFIRM,
    DROP,
    MARKERS,
    ROWS,
    Walk,
    Walks,
)
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.runs import (
    Fact,
    Run,
    RunDetails,
    RunLink,
    RunList,
    RunQuery,
    RunSpan,
    RunState,
    UnknownRunError,
    complete_list,
    readable,
)

log = logging.getLogger(__name__)

PATTERN = "materialized-views"
# Tables that a list looks at: two reads each, or those of all its walks while it is being built.
MAX_TABLES = 12
STEPS = (BACKFILL, CATCH_UP, CONFIRM)


@dataclass(frozen=True)
class Build:
    """A table that was, or is being built.

    Attributes:
        place: "building", "live" or "dropping".
        walks: One for each kind of its sources.
        rows: The runs of its walks that have begun, by step and kind.
    """

    group: str
    table: str
    place: str
    walks: Sequence[Walk]
    rows: Mapping[tuple[str, str], ContinuationRun]

    @property
    def id(self) -> str:
        """Its id as a run."""
        return f"{self.group}/{self.table}"

    def run(self) -> Run:
        """Return the build as a list shows it."""
        begun = [row.started for (step, _), row in self.rows.items() if step == BACKFILL]
        confirmed = [row for (step, _), row in self.rows.items() if step == CONFIRM]
        ends = [row.ended for row in confirmed if row.ended]
        state, note = self._state(has_ended=bool(ends))
        return Run(
            pattern=PATTERN,
            id=self.id,
            name=view_name(self.table),
            state=state,
            args="",
            started=aware_utc(min(begun, default=None)),
            ended=aware_utc(max(ends)) if ends and self.place != "building" else None,
            counts={},
            expected=0,
            note=note,
        )

    def _state(self, *, has_ended: bool) -> tuple[RunState, str]:
        if self.place == "live":
            return "finished", "this table is read"
        if self.place == "dropping":
            if has_ended:
                return "finished", "another table is read; this one is being deleted"
            return "cancelled", "given up; its table is being deleted"
        tries = [_last_try(row) for row in self.rows.values()]
        if any(row.state == CANCELLED for row in tries):
            return "cancelled", "a walk of it was cancelled: resume that, or rebuild the view"
        failed = sum(_failed(row) for row in tries)
        if failed and all(row.state == FINISHED for row in self.rows.values()):
            return "failed", f"{failed} of its sources failed"
        steps = [step for step in STEPS if any(step == begun for begun, _ in self.rows)]
        return "running", steps[-1] if steps else "begins"


def is_build(run_id: str) -> bool:
    """Return whether an id is that of a build: names of views have no dots.

    >>> is_build("grades/by_school.1.3"), is_build("grades/by_school")
    (True, False)
    """
    return "." in run_id.partition("/")[2]


def list_builds(groups: Sequence[ViewMaintenance], query: RunQuery) -> RunList:
    """Return the builds of all tables that exist, the newest first.

    Cost: a read for each group, and two for each table that was built; of MAX_TABLES at most.
    """
    runs: list[Run] = []
    for group in groups:
        catalog = group.views.catalog()
        for table, place in _tables(group, catalog)[: MAX_TABLES - len(runs)]:
            run = _readable(group, catalog, table, place)
            if run is not None:
                runs.append(run)
    return complete_list(query, runs)


def build_details(groups: Sequence[ViewMaintenance], run_id: str) -> RunDetails:
    """Return a build with its walks.

    Raises:
        UnknownRunError: its table does not exist, or no more.
    """
    name, _, table = run_id.partition("/")
    for group in groups:
        catalog = group.views.catalog() if group.views.group == name else None
        places = dict(_tables(group, catalog)) if catalog is not None else {}
        if catalog is not None and table in places:
            build = _read(group, catalog, table, places[table], is_whole=True)
            return _details(build)
    raise UnknownRunError(f"there is no build {run_id}, or its table was deleted")


def owner_of(groups: Sequence[ViewMaintenance], run: Run) -> RunLink | None:
    """Return the build that a run of a group's walks works for."""
    for group in groups:
        prefix = f"views-{group.views.group}-"
        if run.name.startswith(prefix) and run.name.removeprefix(prefix) in (*STEPS, DROP):
            try:
                table = str(json.loads(run.args)["table"])
            except (ValueError, KeyError, TypeError):
                return None
            return RunLink(PATTERN, f"{group.views.group}/{table}")
    return None


def links_of(group: ViewMaintenance, view: str) -> list[Mapping[str, Fact]]:
    """Return the tables of a view, with links to their builds."""
    tables = _tables(group, group.views.catalog())
    return [
        {"build": RunLink(PATTERN, f"{group.views.group}/{table}"), "table": _PLACES[place]}
        for table, place in tables
        if view_name(table) == view
    ]


_PLACES = {"building": "being built", "live": "read", "dropping": "being deleted"}


def _tables(group: ViewMaintenance, catalog: Catalog) -> list[tuple[str, str]]:
    """Return the tables that a build has made, with their places, those being built first.

    The first table of a view was never built: it began empty.
    """
    tables: list[tuple[str, str]] = []
    for name, view in group.views.views.items():
        try:
            tables += _tables_of(catalog.entry(view))
        except (AttributeError, KeyError, TypeError, ValueError):
            log.debug("the catalog's entry of %s cannot be read", name, exc_info=True)
    return sorted(tables, key=lambda each: each[1] != "building")


def _tables_of(entry: TableSet) -> list[tuple[str, str]]:
    places = [(entry.building, "building"), (entry.live, "live")]
    places += [(table, "dropping") for table in entry.dropping]
    return [(table, place) for table, place in places if table and _was_built(table)]


def _was_built(table: str) -> bool:
    return int(table.rpartition(".")[2]) > 1 and version_of(table) != RETIRED


def _readable(group: ViewMaintenance, catalog: Catalog, table: str, place: str) -> Run | None:
    """Return a build for a list; None: a table without a build, as a copy of data may have it."""
    builds: list[Build] = []

    def read() -> Run:
        builds.append(_read(group, catalog, table, place, is_whole=place == "building"))
        return builds[0].run()

    run = readable(PATTERN, f"{group.views.group}/{table}", view_name(table), None, read)
    is_missing = bool(builds) and not builds[0].rows and place != "building"
    return None if is_missing else run


def _read(
    group: ViewMaintenance, catalog: Catalog, table: str, place: str, *, is_whole: bool
) -> Build:
    """Return a build with the runs of all its walks, or of those that say when it was."""
    parts = group.views._internals
    view = group.views.views[view_name(table)]
    walks = Walks(parts.definitions, parts.catalogs).of_table(
        catalog, view, table, catalog.spec(table)
    )
    steps = [(step, walk) for step in STEPS for walk in walks]
    if not is_whole:
        steps = [(step, walks[0]) for step in (BACKFILL, CONFIRM)]
    elif place == "dropping":
        steps += [(DROP, Walk(view.name, table, kind)) for kind in (ROWS, MARKERS)]
    rows = ndb.get_multi([run_key(walk.run_id(step)) for step, walk in steps])
    begun = {
        (step, walk.kind): row
        for (step, walk), row in zip(steps, rows, strict=True)
        if row is not None
    }
    return Build(group.views.group, table, place, walks, begun)


def _details(build: Build) -> RunDetails:
    rows = list(build.rows.items())
    return RunDetails(
        build.run(),
        numbers={
            "view": RunLink(PATTERN, f"{build.group}/{view_name(build.table)}"),
            "table": build.table,
            "place": _PLACES[build.place],
        },
        rows=[_row(step, kind, row) for (step, kind), row in rows],
        spans=[
            RunSpan(
                f"{step}: {kind}",
                _outcome(row),
                row.started.replace(tzinfo=datetime.UTC),
                aware_utc(row.ended),
                is_wait=step in (CATCH_UP, CONFIRM),
            )
            for (step, kind), row in rows
        ],
    )


def _row(step: str, kind: str, row: Any) -> Mapping[str, Fact]:
    totals = RunTotals.kept(row) if row.totals else None
    return {
        "step": step,
        "source": kind,
        "state": CANCELLED if row.state == CANCELLED else _outcome(row),
        "run": RunLink("continuations", row.key.id()),
        "items": totals.ended if totals else "",
        "failed": totals.failed if totals else "",
        "began_at": row.started.replace(tzinfo=datetime.UTC).timestamp(),
        "ended_at": row.ended.replace(tzinfo=datetime.UTC).timestamp() if row.ended else "",
    }


def _outcome(row: ContinuationRun) -> str:
    if row.state != FINISHED:
        return "waiting" if row.ended is None else "skipped"
    return "failed" if _failed(_last_try(row)) else "done"


def _failed(row: ContinuationRun) -> int:
    """Return how many items of a run have failed, as far as it has ended."""
    return RunTotals.kept(row).failed if row.totals else 0


def _last_try(row: ContinuationRun) -> ContinuationRun:
    """Return the last retry of a run; the run itself, if it was not retried."""
    while row.retried_by:
        row = run_key(row.retried_by).get()
    return row
