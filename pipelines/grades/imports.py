"""Lists of students, made up or from a file: a continuation adds a hundred in each commit.

A school takes one list at a time. The run has the form's id, so a form that is sent twice adds its
students once.

Lost on failure: nothing. See rollforward/continuations/pages/attempt.py.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from models.grades import School, Student, school_key, student_key
from pipelines.grades.student_lists import (
    GRADES_TAUGHT,
    StudentColumns,
    StudentDetails,
    StudentRow,
    columns_of,
    student_rows,
)
from pipelines.grades.students import new_student
from pipelines.grades.views import GRADES
from rollforward.continuations import ItemError, Job, RefusedItemError, job, runs
from rollforward.continuations.csv_source import CsvSource, normalized
from rollforward.continuations.entities import RUNNING, ContinuationRun, run_key
from rollforward.continuations.sources import NumberSource
from rollforward.continuations.upload_entities import put_upload, read_upload
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import hashed_name

MAX_LISTS_KEPT = 20
FIRST_NAMES = ("Ada", "Grace", "Emmy", "Chidi", "Lucía", "Linus", "Barbara", "Edsger")
LAST_NAMES = ("Lovelace", "Hopper", "Noether", "Okafor", "García", "Berg", "Liskov", "Novak")
FAMILY_NAMES = ("佐藤", "鈴木", "高橋", "田中", "山本", "渡辺")
GIVEN_NAMES = ("花子", "一郎", "美咲", "蓮", "陽葵", "健太")


class ListGoingOnError(Exception):
    """Another list of this school is still being added."""


@dataclass(frozen=True)
class MadeUpArgs:
    """School, list, and number of students to make up."""

    school: str
    list_id: str
    count: int


@dataclass(frozen=True)
class ListArgs:
    """A stored file of students, and its columns."""

    school: str
    list_id: str
    columns: StudentColumns
    upload_id: str


def add_many(clients: Clients, school: str, list_id: str, count: int) -> bool:
    """Start to add made-up students, once for each list_id; True if this call did.

    Raises:
        ListGoingOnError: the school's last list is still being added.
    """
    args = MadeUpArgs(school, list_id, count)
    run = runs.new_run(clients, add_made_up_students, args, run_id=list_id, expected=count)
    return _begin(clients, add_made_up_students, school, run, f"{count} made-up students")


def import_students(
    clients: Clients, school: str, list_id: str, content: bytes, file_name: str
) -> bool:
    """Store a file and start to add its students, once for each list_id; True if this call did.

    Raises:
        BadFileError: the file is no list of students; nothing was stored.
        ListGoingOnError: the school's last list is still being added.
    """
    if run_key(list_id).get() is not None:
        # The run may have been stored while Cloud Tasks was unavailable.
        runs.launch(clients, add_listed_students, list_id)
        return False
    content = normalized(content)
    columns = columns_of(content)
    _check_no_list_is_running(school_key(school).get())
    # With a digest of the content: another file of the same form must not mix with this one.
    upload_id = f"{list_id}-{hashlib.sha256(content).hexdigest()[:16]}"
    put_upload(upload_id, content, naive_utc(clients.clock.now()))
    args = ListArgs(school, list_id, columns, upload_id)
    run = runs.new_run(clients, add_listed_students, args, run_id=list_id)
    return _begin(clients, add_listed_students, school, run, file_name[:200])


def _begin(
    clients: Clients,
    students: Job[Any, Any],
    school: str,
    run: ContinuationRun,
    name: str,
) -> bool:
    """Store a run, name it in its school, and launch it."""

    def begin() -> bool:
        if run.key.get() is not None:
            return False
        row = school_key(school).get() or School(key=school_key(school))
        _check_no_list_is_running(row)
        row.lists = [*row.lists, {"run_id": run.key.id(), "name": name}][-MAX_LISTS_KEPT:]
        ndb.put_multi([row, run])
        return True

    is_new = transact(begin)
    runs.launch(clients, students, run.key.id())
    return is_new


def _check_no_list_is_running(school: School | None) -> None:
    if school is None or not school.lists:
        return
    run = run_key(school.lists[-1]["run_id"]).get()
    if run is not None and run.state == RUNNING:
        raise ListGoingOnError(school.key.id())


@job("add-students", queue="imports", source=lambda args: NumberSource(args.count))
def add_made_up_students(clients: Clients, args: MadeUpArgs, numbers: Sequence[int]) -> None:
    """Save some made-up students, inside the transaction that holds their receipts."""
    students = [made_up(args.school, args.list_id, number) for number in numbers]
    GRADES.save_in_transaction(clients, *students)


def made_up(school: str, list_id: str, number: int) -> Student:
    """Return a student, the same each time; more in the lower grades, better in the upper."""
    dice = random.Random(f"{list_id}:{number}")
    grade = dice.choices(GRADES_TAUGHT, weights=(9, 9, 10, 9, 8, 9, 8, 7, 7, 6, 5, 4))[0]
    points = min(100, max(0, round(dice.gauss(48 + 2 * grade, 16))))
    name = f"{dice.choice(FIRST_NAMES)} {dice.choice(LAST_NAMES)}"
    if dice.random() < 0.3:
        name = f"{dice.choice(FAMILY_NAMES)} {dice.choice(GIVEN_NAMES)}"
    return new_student(_listed_key(school, list_id, number), StudentDetails(name, grade, points))


def _rows(args: ListArgs) -> CsvSource[StudentRow]:
    return student_rows(lambda offset: read_upload(args.upload_id, offset), args.columns)


@job("import-students", queue="imports", source=_rows)
def add_listed_students(
    clients: Clients, args: ListArgs, rows: Sequence[StudentRow]
) -> list[ItemError | None]:
    """Save the students in some rows, inside the transaction that holds their receipts."""
    students = [
        new_student(_listed_key(args.school, args.list_id, row.line), row.details)
        for row in rows
        if row.details
    ]
    GRADES.save_in_transaction(clients, *students)
    return [None if row.details else RefusedItemError(row.problem) for row in rows]


def _listed_key(school: str, list_id: str, number: int) -> ndb.Key:
    return student_key(school, hashed_name("listed", list_id, number)[:32])
