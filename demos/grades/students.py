"""Students by grade: a chart that costs one read a bar, however many students there are.

Every save of a student goes through `GRADES`, so each bar follows: from an added student, a
change, a student that is gone, and from lists of thousands, whose pages save a hundred
students in one commit.

What a form asks for is done once for its id. A student is known by the form that made them; a
student of a list by the list and the place in it.

Lost on failure: nothing. See pipelines/materialized_views/group.py.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Example materialized view": students per grade.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from google.cloud import ndb

from demos.grades.student_lists import GRADES_TAUGHT, Details, Layout, layout_of, student_rows
from demos.grades.student_lists import Row as ListRow
from models.continuations import FINISHED, RUNNING, ContinuationRun, run_key
from models.demos.grades import (
    SampleStudent,
    School,
    Student,
    Teacher,
    kind_of_students,
    school_key,
    student_key,
    students_of,
    teacher_key,
    teachers_of,
)
from models.demos.uploads import put_upload, read_upload
from models.transactions import transact
from pipelines import continuations
from pipelines.continuations import ItemError, Job, RefusedItemError
from pipelines.continuations.csv_source import CsvSource, normalized
from pipelines.continuations.errors import UnknownRunError
from pipelines.continuations.sources import NumberSource
from pipelines.materialized_views import (
    ConsistencyToken,
    Contributions,
    Row,
    Verification,
    View,
    ViewGroup,
    ViewMaintenance,
)
from pipelines.runtime import Clients, naive_utc
from pipelines.tasks import hashed_name

DEMO = "demo"
MAX_LISTS_KEPT = 20
MAX_TEACHERS = 60
FIRST_NAMES = ("Ada", "Grace", "Emmy", "Chidi", "Lucía", "Linus", "Barbara", "Edsger")
LAST_NAMES = ("Lovelace", "Hopper", "Noether", "Okafor", "García", "Berg", "Liskov", "Novak")
FAMILY_NAMES = ("佐藤", "鈴木", "高橋", "田中", "山本", "渡辺")
GIVEN_NAMES = ("花子", "一郎", "美咲", "蓮", "陽葵", "健太")
TEACHERS = ("Ms. Curie", "Mr. Euler", "湯川先生", "Dr. Johnson", "Mr. Faraday", "猿橋先生")


class Error(Exception):
    """Base class for errors of this module."""


class UnknownStudentError(Error, LookupError):
    """There was never a student of this id."""


class ListGoingOnError(Error):
    """Another list of this school is still being added."""


class TooManyTeachersError(Error):
    """A school has no room for more teachers."""


# Views


class StudentsByGrade(View):
    """How many students a grade of a school has, and their points."""

    source = Student
    ranked = ("points",)
    # A list of a thousand is ten updates a row: ten a second, so that its bars are there within
    # one, and each after the other, since two at a time only race each other. Datastore promises
    # a row one a second for long; what loses a race comes again.
    row_rate = 10.0
    row_burst = 1

    @staticmethod
    def contributions(student: Student) -> Contributions:
        return {(student.school, student.grade): {"points": student.points}}


class ClassSizes(View):
    """Grades with their students, joined with their teachers.

    It is made of the rows of the other view, so a hundred new students are one change here.
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
    """The same for schools that are there to be counted."""

    source = SampleStudent


GRADES = ViewGroup("grades", StudentsByGrade, ClassSizes, SamplesByGrade)
BUILDS = ViewMaintenance(GRADES)
# What a visitor rebuilds and verifies.
SHOWN = (StudentsByGrade, ClassSizes)


def view_of(school: str) -> type[View]:
    """Return the view of a school's students."""
    return SamplesByGrade if kind_of_students(school) is SampleStudent else StudentsByGrade


# Students, one at a time


def add_student(clients: Clients, school: str, form_id: str, details: Details) -> ConsistencyToken:
    """Add a student, once for each form; an empty token says that this was done before."""
    return _save_new(clients, _student(student_key(school, form_id), details))


def _student(key: ndb.Key, details: Details) -> Student:
    kind = kind_of_students(key.id().partition(":")[0])
    return kind(key=key, **asdict(details))


def change_student(
    clients: Clients, school: str, student_id: str, details: Details
) -> ConsistencyToken:
    """Give a student other details, or move them; doing it again changes nothing.

    Raises:
        UnknownStudentError: there is none of this id now.
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
    """Delete a student; an empty token says that they are gone already.

    Raises:
        UnknownStudentError: there was never one of this id.
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
    """Return some students in key order, and where the next page starts, if there is one."""
    found = students_of(school, after=after).fetch(size + 1)
    return found[:size], found[size - 1].student_id if len(found) > size else None


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
    """Save a source unless there is, or ever was, one of its key: its marker would know."""

    def body() -> ConsistencyToken:
        if GRADES.was_saved(source.key):
            return ConsistencyToken()
        return GRADES.save_in_transaction(clients, source)

    return _in_transaction(body)


def _in_transaction(body: Callable[[], ConsistencyToken]) -> ConsistencyToken:
    """Run a body; its token holds what any try has set going: one may be committed unheard."""
    tokens: list[ConsistencyToken] = []
    transact(lambda: tokens.append(body()))
    return ConsistencyToken.of_all(tokens)


# Students, by the list


@dataclass(frozen=True)
class MadeUpArgs:
    """How many students to make up for a school, and in whose name."""

    school: str
    list_id: str
    count: int


@dataclass(frozen=True)
class ListArgs:
    """A stored file of students, and how it is to be read."""

    school: str
    list_id: str
    layout: Layout
    upload_id: str


def add_many(clients: Clients, school: str, list_id: str, count: int) -> bool:
    """Start to add made-up students, once for each list_id; True if this call did.

    Raises:
        ListGoingOnError: the school's last list is still being added.
    """
    args = MadeUpArgs(school, list_id, count)
    run = continuations.new_run(clients, ADD_MANY, args, run_id=list_id, expected=count)
    return _begin(clients, ADD_MANY, school, run, f"{count:,} made-up students")


def import_students(
    clients: Clients, school: str, list_id: str, content: bytes, file_name: str
) -> bool:
    """Store a file and start to add its students, once for each list_id; True if this call did.

    Raises:
        BadFileError: it is no list of students; nothing was stored.
        ListGoingOnError: the school's last list is still being added.
    """
    if run_key(list_id).get() is not None:
        return False
    content = normalized(content)
    layout = layout_of(content)
    _check_no_list_goes_on(school_key(school).get())
    # Named by its content too: another file under the same form must not mix with this one.
    upload_id = f"{list_id}-{hashlib.sha256(content).hexdigest()[:16]}"
    put_upload(upload_id, content, naive_utc(clients.clock.now()))
    args = ListArgs(school, list_id, layout, upload_id)
    run = continuations.new_run(clients, IMPORT, args, run_id=list_id)
    return _begin(clients, IMPORT, school, run, file_name[:200])


def _begin(
    clients: Clients,
    job: Job[MadeUpArgs, int] | Job[ListArgs, ListRow],
    school: str,
    run: ContinuationRun,
    name: str,
) -> bool:
    """Store a run and the school's note of it, then launch it."""

    def begin() -> bool:
        if run.key.get() is not None:
            return False
        noted = school_key(school).get() or School(key=school_key(school))
        _check_no_list_goes_on(noted)
        noted.lists = [*noted.lists, {"run_id": run.key.id(), "name": name}][-MAX_LISTS_KEPT:]
        ndb.put_multi([noted, run])
        return True

    is_new = transact(begin)
    continuations.launch(clients, job, run.key.id())
    return is_new


def _check_no_list_goes_on(school: School | None) -> None:
    if school is None or not school.lists:
        return
    last = run_key(school.lists[-1]["run_id"]).get()
    if last is not None and last.state == RUNNING:
        raise ListGoingOnError(school.key.id())


def _make_up(clients: Clients, args: MadeUpArgs, numbers: Sequence[int]) -> list[ItemError | None]:
    """Save some made-up students, inside the transaction that holds their receipts."""
    students = [made_up(args.school, args.list_id, number) for number in numbers]
    GRADES.save_in_transaction(clients, *students)
    return [None] * len(numbers)


def made_up(school: str, list_id: str, number: int) -> Student:
    """Return a student, the same each time; more in the lower grades, better in the upper."""
    dice = random.Random(f"{list_id}:{number}")
    grade = dice.choices(GRADES_TAUGHT, weights=(9, 9, 10, 9, 8, 9, 8, 7, 7, 6, 5, 4))[0]
    points = min(100, max(0, round(dice.gauss(48 + 2 * grade, 16))))
    name = f"{dice.choice(FIRST_NAMES)} {dice.choice(LAST_NAMES)}"
    if dice.random() < 0.3:
        name = f"{dice.choice(FAMILY_NAMES)} {dice.choice(GIVEN_NAMES)}"
    return _student(_listed_key(school, list_id, number), Details(name, grade, points))


def _add_rows(clients: Clients, args: ListArgs, rows: Sequence[ListRow]) -> list[ItemError | None]:
    """Save the students in some rows, inside the transaction that holds their receipts."""
    students = [
        _student(_listed_key(args.school, args.list_id, row.line), row.details)
        for row in rows
        if row.details
    ]
    GRADES.save_in_transaction(clients, *students)
    return [None if row.details else RefusedItemError(row.problem) for row in rows]


def _listed_key(school: str, list_id: str, number: int) -> ndb.Key:
    return student_key(school, hashed_name("listed", list_id, number)[:32])


def _rows(args: ListArgs) -> CsvSource[ListRow]:
    return student_rows(lambda offset: read_upload(args.upload_id, offset), args.layout)


ADD_MANY = Job(
    name="add-students",
    queue="imports",
    args=MadeUpArgs,
    source=lambda args: NumberSource(args.count),
    apply=_make_up,
)
IMPORT = Job(
    name="import-students",
    queue="imports",
    args=ListArgs,
    source=_rows,
    apply=_add_rows,
)


# Verify


def verify(clients: Clients, school: str, verify_id: str) -> None:
    """Begin to verify what is shown, unless that is going on."""
    if (last := verification(clients, school)) is not None and last.state == RUNNING:
        return

    def note() -> None:
        noted = school_key(school).get() or School(key=school_key(school))
        noted.verify_id = verify_id
        noted.put()

    transact(note)
    for view in SHOWN:
        BUILDS.verify(clients, view, verify_id)


def verification(clients: Clients, school: str) -> Verification | None:
    """Return what the last verification that began here has found; None: there was none."""
    noted = school_key(school).get()
    if noted is None or noted.verify_id is None:
        return None
    try:
        found = [BUILDS.verification(clients, view, noted.verify_id) for view in SHOWN]
    except UnknownRunError:
        return None  # Whoever asked for it died over it.
    return Verification(
        RUNNING if any(each.state == RUNNING for each in found) else FINISHED,
        sum(each.checked for each in found),
        sum(each.expected for each in found),
        [difference for each in found for difference in each.differences],
        sum(each.waiting for each in found),
    )
