"""Verification of a school: recomputes its views from their sources, and lists differences."""

from __future__ import annotations

from models.grades import School, school_key
from pipelines.grades.views import BUILDS, VISIBLE_VIEWS
from rollforward.continuations.entities import RUNNING
from rollforward.continuations.errors import UnknownRunError
from rollforward.datastore import transact
from rollforward.materialized_views import Verification
from rollforward.runtime import Clients


def verify(clients: Clients, school: str, verify_id: str) -> None:
    """Start to verify the views of a page, unless a verification is running."""
    if (previous := verification(clients, school)) is not None and previous.state == RUNNING:
        return

    def record() -> None:
        row = school_key(school).get() or School(key=school_key(school))
        row.verify_id = verify_id
        row.put()

    transact(record)
    for view in VISIBLE_VIEWS:
        BUILDS.verify(clients, view, verify_id)


def verification(clients: Clients, school: str) -> Verification | None:
    """Return the result of the last verification; None: there was none."""
    row = school_key(school).get()
    if row is None or row.verify_id is None:
        return None
    try:
        results = [BUILDS.verification(clients, view, row.verify_id) for view in VISIBLE_VIEWS]
    except UnknownRunError:
        return None  # The process that requested it died before its runs began.
    return Verification.of_all(results)
