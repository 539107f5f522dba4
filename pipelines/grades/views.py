"""The views of a school: its bars, and its grades joined with their teachers.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Example materialized view": students per grade.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from models.grades import SampleStudent, Student, Teacher, kind_of_students
from rollforward.materialized_views import Contributions, Row, View, ViewGroup, ViewMaintenance


class StudentsByGrade(View):
    """Number of students of a grade of a school, and their points."""

    source = Student
    ranked = ("points",)
    # A list of a thousand is ten updates a row. At ten a second its bars are complete within one
    # second; one at a time, since two at once only race each other. Datastore promises a row one
    # write a second in the long run; an update that loses a race is retried.
    row_rate = 10.0
    row_burst = 1

    @staticmethod
    def contributions(student: Student) -> Contributions:
        return {(student.school, student.grade): {"points": student.points}}


class ClassSizes(View):
    """Grades with their students, joined with their teachers.

    Its source is the other view, so a hundred new students are one change here.
    """

    source = StudentsByGrade
    row_rate = 10.0
    row_burst = 1

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {row.name: {"students": row.count}}

    @staticmethod
    def from_teacher(teacher: Teacher) -> Contributions:
        return {(teacher.school, teacher.grade): {}}

    joins: ClassVar[Mapping[Any, Any]] = {Teacher: from_teacher}


class SamplesByGrade(StudentsByGrade):
    """`StudentsByGrade` of the sample schools."""

    source = SampleStudent


GRADES = ViewGroup("grades", StudentsByGrade, ClassSizes, SamplesByGrade)
BUILDS = ViewMaintenance(GRADES)
# The views that visitors rebuild and verify.
VISIBLE_VIEWS = (StudentsByGrade, ClassSizes)


def view_of(school: str) -> type[View]:
    """Return the view of a school's students."""
    return SamplesByGrade if kind_of_students(school) is SampleStudent else StudentsByGrade


def grade_of(row: Row) -> int:
    """Return the grade in the name of a row, which is (school, grade)."""
    return int(row.name[1])  # type: ignore[index]
