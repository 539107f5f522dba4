"""Materialized views: rows that follow their sources, and are always right in the end.

    class StudentsByGrade(View):
        source = Student

        @staticmethod
        def contributions(student: Student) -> Contributions:
            return {student.grade: {"points": student.points}}

    GRADES = ViewGroup("grades", StudentsByGrade)

    token = GRADES.save(clients, Student(id="ada", grade=7, points=92))
    GRADES.read(clients, StudentsByGrade, at_least=token)

Saving a source commits, in one transaction, the source, its marker (the sequence of its last
change, and its contributions) and one update for each row whose contribution changed. Applying an
update commits the row together with the row's marker for that source. An update
with a lower or equal sequence changes nothing, so any order and any number of repeats give
the same row. When a source leaves a row, its row marker is deleted. An update without a row marker
is checked against the source's own marker, so no tombstones are needed and a late task cannot
bring a row back.

Updates wait as unacked rows of the outbox. A save rings for a fold of the table (updating/bell.py),
which takes the updates of all its rows, and applies them in transactions of up to a hundred rows
(updating/table_fold.py). An idle row is written at once; a busy one about once a second, with all
that has gathered (updating/pacing.py).

Lost on failure: nothing. A crash costs one period of the outbox's sweep.
Cost of a save: 2 entity writes, 1 for each row that changes; 2 reads; 3 round trips.
Cost of an update: 3 reads at most, 2 writes, one of them the outbox row that goes; and its share of
a fold's writes of the row, and of its 5 round trips. A row with views downstream costs 2 reads
more, and 2 writes, or 1 for its marker and 1 for each row that changes.

Routes: POST /tasks/materialized-views/<group>/fold, .../apply and .../propagate for each group, and
the routes of the queue views-<group>.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Materialized views (transactional sequences)". Why not its code: docs/adr/0008.
"""

from rollforward.materialized_views.group import ViewGroup
from rollforward.materialized_views.maintenance.rebuild import BuildStatus, ViewMaintenance
from rollforward.materialized_views.maintenance.verify import Verification
from rollforward.materialized_views.rows import BadContributionError, Contributions, Row, row_name
from rollforward.materialized_views.updates import Apply
from rollforward.materialized_views.updating.freshness import ConsistencyToken, Reading
from rollforward.materialized_views.view import View

__all__ = [
    "Apply",
    "BadContributionError",
    "BuildStatus",
    "ConsistencyToken",
    "Contributions",
    "Reading",
    "Row",
    "Verification",
    "View",
    "ViewGroup",
    "ViewMaintenance",
    "row_name",
]
