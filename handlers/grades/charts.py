"""Pictures of a school: a bar per grade, the changes on their way to it, and class sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.grades import Teacher
from pipelines.grades.student_lists import GRADES_TAUGHT
from pipelines.grades.views import grade_of
from rollforward.materialized_views import Apply, Reading, row_name

# What waits longer is parked, or its queue is paused: only a person moves it.
MAX_WAIT_S = 60.0


def is_catching_up(reading: Reading) -> bool:
    """Return whether a view gets its changes now, so that its part is worth asking for often."""
    return reading.freshness.waiting > 0 and reading.freshness.oldest_s < MAX_WAIT_S


@dataclass(frozen=True)
class Bar:
    """A grade in the chart. `share` and `coming` are parts of the longest bar, in percent."""

    grade: int
    count: int
    mean: float | None
    share: float
    coming: float
    waiting: int


@dataclass(frozen=True)
class Chip:
    """A change of a bar that is on its way: who enters, leaves or stays with other points."""

    grade: int
    enter: int
    leave: int
    change: int
    age_s: float

    @classmethod
    def of(cls, update: Apply, age_s: float) -> Chip:
        measured = [change for change in update.updates if change.measures is not None]
        enter = sum(change.is_first for change in measured)
        leave = len(update.updates) - len(measured)
        grade = row_name(update.row)[1]  # type: ignore[index]
        return cls(int(grade), enter, leave, len(measured) - enter, age_s)


@dataclass(frozen=True)
class ClassSize:
    """A grade with its students, joined with its teachers."""

    grade: int
    students: int
    teachers: int
    names: Sequence[Teacher]


def bars(reading: Reading, chips: Sequence[Chip]) -> list[Bar]:
    """Return a bar per grade, with the students who are coming."""
    rows = {grade_of(row): row for row in reading.rows}
    coming = {
        grade: sum(chip.enter - chip.leave for chip in chips if chip.grade == grade)
        for grade in GRADES_TAUGHT
    }
    counts = {grade: rows[grade].count if grade in rows else 0 for grade in GRADES_TAUGHT}
    longest = max([1, *(counts[grade] + max(0, coming[grade]) for grade in GRADES_TAUGHT)])
    return [
        Bar(
            grade,
            counts[grade],
            rows[grade].mean("points") if grade in rows else None,
            round(100 * counts[grade] / longest, 2),
            round(100 * max(0, coming[grade]) / longest, 2),
            sum(chip.grade == grade for chip in chips),
        )
        for grade in GRADES_TAUGHT
    ]


def class_sizes(reading: Reading, teachers: Sequence[Teacher]) -> list[ClassSize]:
    """Return the grades of a school with their teachers."""
    return [
        ClassSize(
            grade_of(row),
            int(row.sum("students")),
            row.counts.get("Teacher", 0),
            [teacher for teacher in teachers if teacher.grade == grade_of(row)],
        )
        for row in reading.rows
    ]
