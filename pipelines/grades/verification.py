"""Verifying a school: its views are recomputed from their sources, and differences are listed."""

from __future__ import annotations

from models.grades import School, school_key
from pipelines.grades.views import BUILDS, VISIBLE_VIEWS
from rollforward.continuations.entities import FINISHED, RUNNING
from rollforward.continuations.errors import UnknownRunError
from rollforward.datastore import transact
from rollforward.materialized_views import Verification
from rollforward.runtime import Clients


def verify(clients: Clients, school: str, verify_id: str) -> None:
    """Begin to verify the views of a page, unless that is going on."""
    if (last := verification(clients, school)) is not None and last.state == RUNNING:
        return

    def record() -> None:
        row = school_key(school).get() or School(key=school_key(school))
        row.verify_id = verify_id
        row.put()

    transact(record)
    for view in VISIBLE_VIEWS:
        BUILDS.verify(clients, view, verify_id)


def verification(clients: Clients, school: str) -> Verification | None:
    """Return what the last verification that began here has found; None: there was none."""
    row = school_key(school).get()
    if row is None or row.verify_id is None:
        return None
    try:
        found = [BUILDS.verification(clients, view, row.verify_id) for view in VISIBLE_VIEWS]
    except UnknownRunError:
        return None  # The process that asked for it died before its runs began.
    return Verification(
        RUNNING if any(each.state == RUNNING for each in found) else FINISHED,
        sum(each.checked for each in found),
        sum(each.expected for each in found),
        [difference for each in found for difference in each.differences],
        sum(each.waiting for each in found),
    )
