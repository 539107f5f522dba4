"""Verifying a view: it is recomputed while writes continue, and every difference is listed.

Each source's contributions are compared with its marker and with the rows' markers. Each row is
compared with the sum of its markers, and its ranks with their measures. There must be no
difference. Sources and rows with a change in flight are audited again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations.entities import CANCELLED, FINISHED, RUNNING
from rollforward.continuations.jobs import ItemError, Job, SkippedItemError
from rollforward.continuations.progress import item_issues, progress
from rollforward.materialized_views.catalog import CatalogStore
from rollforward.materialized_views.definitions import ViewDefinitions
from rollforward.materialized_views.maintenance.audit import (
    Doubt,
    audit_row,
    audit_sources,
    compare,
)
from rollforward.materialized_views.maintenance.walks import LOOK_AGAIN_S, ROWS, VERIFY, Walk, Walks
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.runs import UnknownRunError

# Eleven minutes: a person should hear of what is in flight for longer.
VERIFY_ATTEMPTS = 13
FAILED = "failed"


@dataclass(frozen=True)
class Difference:
    """A difference between a view and its sources: the place, and a message."""

    where: str
    message: str


@dataclass(frozen=True)
class Verification:
    """The findings of a verification so far.

    `state`: "running", "finished", or "cancelled" once a walk of it was cancelled.
    `waiting`: sources and rows that are looked at again, since a change of theirs is in flight.
    """

    state: str
    checked: int
    expected: int
    differences: Sequence[Difference]
    waiting: int = 0

    @classmethod
    def of_all(cls, parts: Sequence[Verification]) -> Verification:
        """Return the verifications of several views as one: all differences, and sums."""
        return cls(
            _state_of([part.state for part in parts]),
            sum(part.checked for part in parts),
            sum(part.expected for part in parts),
            [difference for part in parts for difference in part.differences],
            sum(part.waiting for part in parts),
        )


def _state_of(states: Sequence[str]) -> str:
    """Return the state of a verification from the states of its parts.

    >>> _state_of(["finished", "running"]), _state_of(["finished", "finished"])
    ('running', 'finished')
    >>> _state_of(["finished", "cancelled", "running"])
    'cancelled'
    """
    if CANCELLED in states:
        return CANCELLED
    return FINISHED if all(state == FINISHED for state in states) else RUNNING


class Verifier:
    """Verifies the views of a group."""

    def __init__(self, definitions: ViewDefinitions, catalogs: CatalogStore, queue: str) -> None:
        self._definitions = definitions
        self._catalogs = catalogs
        self._walks = Walks(definitions, catalogs)
        self.job: Job[Walk, Any] = Job(
            f"views-{definitions.group}-{VERIFY}",
            queue,
            Walk,
            lambda walk: self._walks.rows(walk) if _is_of_rows(walk) else self._walks.sources(walk),
            check=self._check,
            max_attempts=VERIFY_ATTEMPTS,
            retry_delays_s=LOOK_AGAIN_S,
            page_size=50,
        )

    def verify(self, clients: Clients, view: type[View], verify_id: str) -> None:
        """Begin to verify the table that is read, once for each verify_id."""
        for run_id, walk in self._runs(view, verify_id):
            expected = self._walks.guess(walk)
            continuations.start(clients, self.job, walk, run_id=run_id, expected=expected)

    def verification(self, clients: Clients, view: type[View], verify_id: str) -> Verification:
        """Return the findings of a verification so far.

        Raises:
            UnknownRunError: it was not begun, or the table was replaced since.
        """
        ids = [run_id for run_id, _ in self._runs(view, verify_id)]
        try:
            runs = [progress(run_id, dots=False, clients=clients) for run_id in ids]
        except UnknownRunError as error:
            raise UnknownRunError(
                f"there is no verification {verify_id!r} of {view.name}'s table: call `verify`"
            ) from error
        differences = [
            Difference(_display_name(issue.name), issue.reason)
            for run in runs
            if run.totals.failed
            for issue in item_issues(run.run_id, clients=clients)
            if issue.outcome == FAILED
        ]
        return Verification(
            _state_of([run.state for run in runs]),
            sum(run.totals.ended for run in runs),
            sum(run.expected for run in runs),
            differences,
            sum(run.totals.retrying for run in runs),
        )

    def _runs(self, view: type[View], verify_id: str) -> list[tuple[str, Walk]]:
        self._definitions.check_declared(view)
        catalog = self._catalogs.read()
        table = catalog.live(view)
        # As this code would do it.
        walks = [
            replace(walk, is_of_sources=walk.kind == ROWS)
            for walk in self._walks.of_table(catalog, view, table, spec=None)
        ]
        walks.append(Walk(view.name, table, ROWS, walks[0].source_table))
        return [(_run_id(walk, verify_id), walk) for walk in walks]

    def _check(
        self, clients: Clients, walk: Walk, keys: Sequence[Any]
    ) -> Sequence[ItemError | None]:
        """Audit items, and doubtful ones a second time."""
        first = self._audit(walk, keys)
        doubtful = [key for key in keys if first[key]]
        second = self._audit(walk, doubtful) if doubtful else {}
        if doubtful and not self._is_read(walk):
            return [SkippedItemError("its table has been replaced")] * len(keys)
        return [compare(first[key], second.get(key)) for key in keys]

    def _audit(self, walk: Walk, keys: Sequence[Any]) -> dict[Any, Doubt | None]:
        if _is_of_rows(walk):
            ranked = self._definitions.views[walk.view].ranked
            return {key: audit_row(walk, key, ranked) for key in keys}
        return audit_sources(self._definitions, walk, keys)

    def _is_read(self, walk: Walk) -> bool:
        """Return whether a walk's table is read still, and so is the one that it is made of."""
        catalog, view = self._catalogs.read(), self._definitions.views[walk.view]
        is_below_read = not walk.source_table or catalog.live(view.source) == walk.source_table
        return is_below_read and catalog.live(view) == walk.table


def _is_of_rows(walk: Walk) -> bool:
    """Return whether a walk is over the table's own rows, and not over its sources."""
    return walk.kind == ROWS and not walk.is_of_sources


def _run_id(walk: Walk, verify_id: str) -> str:
    which = ("sources",) if walk.is_of_sources else ()
    return hashed_name(VERIFY, walk.view, verify_id, walk.kind, *which)


def _display_name(name: str) -> str:
    """Return a source's or a row's name as people know it."""
    try:
        key = ndb.Key(urlsafe=name.encode())
    except Exception:
        return name
    return "/".join(str(part) for part in key.flat())
