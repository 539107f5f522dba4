"""Students by grade: a chart that costs one read per bar, however many students there are.

Every save of a student or a teacher goes through `GRADES`, so each bar follows it. Lists of
students are saved by pipelines/grades/imports.py, a hundred in one commit.

Each form is idempotent by its id. A student's key comes from the form's id, or from the list's id
and the line number.

Lost on failure: nothing. See rollforward/materialized_views/group.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict

from google.cloud import ndb

from models.grades import (
    Student,
    Teacher,
    kind_of_students,
    student_key,
    students_of,
    teacher_key,
    teachers_of,
)
from pipelines.grades.student_lists import StudentDetails
from pipelines.grades.views import GRADES
from rollforward.datastore import transact
from rollforward.materialized_views import ConsistencyToken
from rollforward.runtime import Clients

DEMO = "demo"
MAX_TEACHERS = 60
TEACHERS = ("Ms. Curie", "Mr. Euler", "湯川先生", "Dr. Johnson", "Mr. Faraday", "猿橋先生")


class UnknownStudentError(LookupError):
    """No student ever had this id."""


class TooManyTeachersError(Exception):
    """A school has no room for more teachers."""


def add_student(
    clients: Clients, school: str, form_id: str, details: StudentDetails
) -> ConsistencyToken:
    """Add a student, once for each form; return an empty token if it was added before."""
    return _save_new(clients, new_student(student_key(school, form_id), details))


def new_student(key: ndb.Key, details: StudentDetails) -> Student:
    """Return a student, of its school's kind."""
    kind = kind_of_students(key.id().partition(":")[0])
    return kind(key=key, **asdict(details))


def change_student(
    clients: Clients, school: str, student_id: str, details: StudentDetails
) -> ConsistencyToken:
    """Change a student's details; a repeated call changes nothing.

    Raises:
        UnknownStudentError: no student has this id now.
    """
    key = student_key(school, student_id)

    def body() -> ConsistencyToken:
        student = key.get()
        if student is None:
            raise UnknownStudentError(student_id)
        student.populate(**asdict(details))
        return GRADES.save_in_transaction(clients, student)

    return _in_transaction(body)


def delete_student(clients: Clients, school: str, student_id: str) -> ConsistencyToken:
    """Delete a student; return an empty token if it was deleted before.

    Raises:
        UnknownStudentError: no student ever had this id.
    """
    key = student_key(school, student_id)

    def body() -> ConsistencyToken:
        if key.get() is not None:
            return GRADES.delete_in_transaction(clients, key)
        if not GRADES.was_saved(key):
            raise UnknownStudentError(student_id)
        return ConsistencyToken()

    return _in_transaction(body)


def students_page(school: str, *, after: str, size: int) -> tuple[list[Student], str | None]:
    """Return a page of students in key order, and the start of the next page; None: it is last."""
    students = students_of(school, after=after).fetch(size + 1)
    return students[:size], students[size - 1].student_id if len(students) > size else None


# Teachers


def add_teacher(clients: Clients, school: str, form_id: str, grade: int) -> ConsistencyToken:
    """Add a made-up teacher to a grade, once for each form.

    Raises:
        TooManyTeachersError: nothing was added.
    """
    if len(teachers_of(school).fetch(MAX_TEACHERS, keys_only=True)) == MAX_TEACHERS:
        raise TooManyTeachersError(school)
    name = random.Random(form_id).choice(TEACHERS)
    return _save_new(clients, Teacher(key=teacher_key(school, form_id), name=name, grade=grade))


def delete_teacher(clients: Clients, school: str, teacher_id: str) -> ConsistencyToken:
    """Delete a teacher, if there is one."""
    key = teacher_key(school, teacher_id)

    def body() -> ConsistencyToken:
        return GRADES.delete_in_transaction(clients, key) if key.get() else ConsistencyToken()

    return _in_transaction(body)


def _save_new(clients: Clients, source: Student | Teacher) -> ConsistencyToken:
    """Save a source, unless a marker shows that its key was saved before."""

    def body() -> ConsistencyToken:
        if GRADES.was_saved(source.key):
            return ConsistencyToken()
        return GRADES.save_in_transaction(clients, source)

    return _in_transaction(body)


def _in_transaction(body: Callable[[], ConsistencyToken]) -> ConsistencyToken:
    """Run a body; the token covers all attempts, since one may have committed without a reply."""
    tokens: list[ConsistencyToken] = []
    transact(lambda: tokens.append(body()))
    return ConsistencyToken.of_all(tokens)
