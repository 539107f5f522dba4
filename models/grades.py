"""Schools, their students and teachers, and the cost of counting them.

School
    Key: its name, DEMO of pipelines/grades/students.py, or a sample of
        pipelines/grades/comparison.py.
    Queries: none. Growth: one row per school.

Student
    Key: "<school>:<random hex>": a school's students are one key range, spread evenly, and
    can be cut without looking.
    Queries: that key range, for the roster and for counting them one by one; grade = n within
    it, for counting queries. Single-property index.
    Growth: one row per student.

SampleStudent
    As Student, in a sample school: a kind of its own, so that verifying the others does not walk
    over a hundred thousand of these.

Teacher
    Key: "<school>:<random hex>".
    Queries: that key range. Growth: one row per teacher, at most 60 per school.

Comparison
    Key: the school's name. The cost of counting its students, in several ways.
    Queries: none. Growth: one row per sample school.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

# What the name of a sample school begins with.
SAMPLE = "sample-"


class School(ndb.Model):
    """A school, and the runs that were started for it."""

    lists = ndb.JsonProperty(default=[])  # {"run_id", "name"} of the last ones, oldest first.
    verify_id = ndb.TextProperty()  # The last verification.


class Student(ndb.Model):
    """A student in a grade."""

    name = ndb.TextProperty(required=True)
    grade = ndb.IntegerProperty(required=True)
    points = ndb.IntegerProperty(indexed=False, required=True)

    @property
    def school(self) -> str:
        return str(self.key.id().partition(":")[0])

    @property
    def student_id(self) -> str:
        return str(self.key.id().partition(":")[2])


class SampleStudent(Student):
    """A student of a sample school."""


class Teacher(ndb.Model):
    """A teacher of a grade."""

    name = ndb.TextProperty(required=True)
    grade = ndb.IntegerProperty(indexed=False, required=True)

    @property
    def school(self) -> str:
        return str(self.key.id().partition(":")[0])

    @property
    def teacher_id(self) -> str:
        return str(self.key.id().partition(":")[2])


class Comparison(ndb.Model):
    """The cost of counting a school's students; none yet, until `measured` is `asked`."""

    asked = ndb.TextProperty(required=True)  # The id of the last measurement asked for.
    measured = ndb.TextProperty()  # The id of the measurement that `ways` is of.
    ways = ndb.JsonProperty(default={})  # {way: {"took_s", "reads", "round_trips", "agrees"}}
    at = ndb.DateTimeProperty(indexed=False)


def school_key(school: str) -> Any:
    """Return the key of a school."""
    return ndb.Key(School, school)


def kind_of_students(school: str) -> type[Student]:
    """Return the kind of a school's students.

    >>> kind_of_students("demo").__name__, kind_of_students("sample-100").__name__
    ('Student', 'SampleStudent')
    """
    return SampleStudent if school.startswith(SAMPLE) else Student


def student_key(school: str, student_id: str) -> Any:
    """Return the key of a student."""
    return ndb.Key(kind_of_students(school), f"{school}:{student_id}")


def teacher_key(school: str, teacher_id: str) -> Any:
    """Return the key of a teacher."""
    return ndb.Key(Teacher, f"{school}:{teacher_id}")


def comparison_key(school: str) -> Any:
    """Return the key of the cost of counting a school's students."""
    return ndb.Key(Comparison, school)


def students_of(school: str, *, after: str = "") -> Any:
    """Return the query for a school's students in key order, those behind the id `after`."""
    kind = kind_of_students(school)
    start, end = student_key(school, after), ndb.Key(kind, f"{school};")
    return kind.query(kind._key > start, kind._key < end).order(kind._key)


def teachers_of(school: str) -> Any:
    """Return the query for a school's teachers in key order."""
    start, end = teacher_key(school, ""), ndb.Key(Teacher, f"{school};")
    return Teacher.query(Teacher._key > start, Teacher._key < end).order(Teacher._key)
