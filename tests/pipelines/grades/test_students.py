"""Students and teachers, one at a time: what is saved is in its bar, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.grades import Teacher, teachers_of
from pipelines.grades import imports, students
from pipelines.grades.student_lists import BadStudentError, StudentDetails, details_of
from pipelines.grades.students import DEMO, TooManyTeachersError, UnknownStudentError
from pipelines.grades.views import GRADES, ClassSizes
from rollforward.materialized_views import ConsistencyToken
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Cost
from rollforward.testing.injection import REPLY_LOST
from rollforward.testing.short_answers import whole
from tests.infra.world import World
from tests.pipelines.grades.schools import ADA, BOB, LIST, bars, joined, settled

pytestmark = pytest.mark.fast


def test_a_student_is_added_moved_and_deleted_with_their_bar(world: World) -> None:
    """Each save has a token, and when what it stands for is applied the bar is right."""
    tokens = [settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))]
    assert bars(world) == {7: (1, 92)}

    tokens.append(settled(world, students.change_student, DEMO, ADA, StudentDetails("Ada", 8, 92)))
    assert bars(world) == {8: (1, 92)}
    tokens.append(settled(world, students.change_student, DEMO, ADA, StudentDetails("Ada", 8, 50)))
    assert bars(world) == {8: (1, 50)}
    tokens.append(settled(world, students.delete_student, DEMO, ADA))

    assert bars(world) == {}
    assert [len(token.updates) for token in tokens] == [1, 2, 1, 1]
    with world.context():
        assert all(GRADES.wait(world.clients, token, 0) for token in tokens)


def test_a_form_adds_its_student_once(world: World) -> None:
    """Sent twice, or sent again after the student was moved or deleted, it adds nobody."""
    settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    again = settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    settled(world, students.change_student, DEMO, ADA, StudentDetails("Ada", 8, 92))
    moved = settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    assert bars(world) == {8: (1, 92)}
    settled(world, students.delete_student, DEMO, ADA)
    gone = settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))

    assert bars(world) == {}
    assert again == moved == gone == ConsistencyToken()


def test_a_save_whose_answer_is_lost_is_made_once_and_known(world: World) -> None:
    """At each call: the second try finds the student there, and its token names the updates."""
    fired = []
    for at in range(6):
        world.plan.calls, world.plan.kind, world.plan.at = [], REPLY_LOST, at
        with world.clients.context(), world.plan.watched():
            form_id = f"{at}" * 32
            token = students.add_student(world.clients, DEMO, form_id, StudentDetails("Ada", 7, 10))
        fired.append(world.plan.fired)
        assert len(token.updates) == 1
    world.plan.at = None
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert any("Commit" in each for each in fired)
    assert bars(world) == {7: (6, 60)}


def test_a_change_costs_no_more_on_its_way_than_the_page_says(world: World) -> None:
    """C1: who enters, who changes, who moves and who leaves, one after the other."""
    steps: list[tuple[Any, ...]] = [
        (students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92)),
        (students.change_student, DEMO, ADA, StudentDetails("Ada", 7, 90)),
        (students.change_student, DEMO, ADA, StudentDetails("Ada", 8, 90)),
        (students.delete_student, DEMO, ADA),
    ]
    most = Cost()
    with world.context(), whole(world):
        for change, *args in steps:
            change(world.clients, *args)
            while row := OutboxTask.query().get():
                before = world.clients.meter.cost()
                GRADES.apply(world.clients, GRADES.task.read(row.body.encode()))
                cost = world.clients.meter.cost() - before
                most = Cost(max(most.reads, cost.reads), max(most.writes, cost.writes))

    page = Path("templates/grades/_more_how.html").read_text()
    assert f"at most {most.reads} reads and {most.writes} writes, in the background" in page


def test_what_was_done_is_done_once(world: World) -> None:
    """A change to what is there already, and a second delete, set nothing going."""
    settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    same = settled(world, students.change_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    settled(world, students.delete_student, DEMO, ADA)

    assert not same.updates
    assert settled(world, students.delete_student, DEMO, ADA) == ConsistencyToken()


def test_a_student_that_never_was_is_unknown(world: World) -> None:
    """Neither changed nor deleted; one who has gone cannot be changed either."""
    with world.context():
        with pytest.raises(UnknownStudentError):
            students.change_student(world.clients, DEMO, ADA, StudentDetails("Ada", 1, 1))
        with pytest.raises(UnknownStudentError):
            students.delete_student(world.clients, DEMO, ADA)
    settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    settled(world, students.delete_student, DEMO, ADA)
    with world.context(), pytest.raises(UnknownStudentError):
        students.change_student(world.clients, DEMO, ADA, StudentDetails("Ada", 1, 1))


def test_schools_keep_apart(world: World) -> None:
    """One view holds all schools; a reader of one sees its own."""
    settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    settled(world, students.add_student, "sample-100", ADA, StudentDetails("Ada", 3, 10))

    assert bars(world) == {7: (1, 92)}
    assert bars(world, "sample-100") == {3: (1, 10)}


BAD = {
    "no name": ("", "7", "92", "name"),
    "blanks": (" \u3000", "7", "92", "name"),
    "a long name": ("x" * 121, "7", "92", "name"),
    "a line break": ("a\nb", "7", "92", "name"),
    "a NUL": ("a\0b", "7", "92", "name"),
    "a paragraph": ("a\u2029b", "7", "92", "name"),
    "half a character": ("a\ud800", "7", "92", "name"),
    "grade 0": ("Ada", "0", "92", "grade"),
    "grade 13": ("Ada", "13", "92", "grade"),
    "grade -1": ("Ada", "-1", "92", "grade"),
    "no grade": ("Ada", "", "92", "grade"),
    "half a grade": ("Ada", "7.5", "92", "grade"),
    "a long number": ("Ada", "7" * 5000, "92", "grade"),
    "an exponent": ("Ada", "1e1", "92", "grade"),
    "no number": ("Ada", "seven", "92", "grade"),
    "no points": ("Ada", "7", "", "points"),
    "101 points": ("Ada", "7", "101", "points"),
    "NaN": ("Ada", "7", "NaN", "points"),
}


@pytest.mark.parametrize(("name", "grade", "points", "field"), BAD.values(), ids=BAD)
def test_texts_that_make_no_student_are_refused(
    name: str, grade: str, points: str, field: str
) -> None:
    """With the field that has to be fixed, and a reason."""
    with pytest.raises(BadStudentError) as refused:
        details_of(name, grade, points)

    assert list(refused.value.errors) == [field]


def test_the_roster_shows_each_student_once(world: World) -> None:
    """Page by page, in key order, to the end."""
    settled(world, imports.add_many, DEMO, LIST, 25)
    seen: list[str] = []
    after: str | None = ""

    while after is not None:
        with world.context():
            page, after = students.students_page(DEMO, after=after, size=10)
        seen += [student.student_id for student in page]

    assert len(seen) == len(set(seen)) == 25


def test_grades_are_joined_with_their_teachers(world: World) -> None:
    """A left join: grades with students have a row, with teachers or without."""
    settled(world, students.add_student, DEMO, ADA, StudentDetails("Ada", 7, 92))
    settled(world, students.add_student, DEMO, BOB, StudentDetails("Bob", 8, 50))
    for form_id, grade in (("c" * 32, 7), ("d" * 32, 7), ("d" * 32, 7), ("e" * 32, 9)):
        settled(world, students.add_teacher, DEMO, form_id, grade)

    assert joined(world) == {7: (1, 2), 8: (1, 0)}
    settled(world, students.delete_teacher, DEMO, "c" * 32)
    settled(world, students.delete_teacher, DEMO, "c" * 32)
    settled(world, students.change_student, DEMO, BOB, StudentDetails("Bob", 9, 50))
    assert joined(world) == {7: (1, 1), 9: (1, 1)}
    with world.context():
        row = GRADES.row(ClassSizes, (DEMO, 7))
        assert [key.id() for key, _ in GRADES.members(ClassSizes, (DEMO, 7), Teacher)] == [
            f"{DEMO}:{'d' * 32}"
        ]
    assert row is not None
    assert row.sum("students") == 1


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_school_takes_so_many_teachers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more: their names stand on the page."""
    monkeypatch.setattr(students, "MAX_TEACHERS", 2)
    for form_id in ("c" * 32, "d" * 32):
        settled(world, students.add_teacher, DEMO, form_id, 7)

    with world.context():
        with pytest.raises(TooManyTeachersError):
            students.add_teacher(world.clients, DEMO, "e" * 32, 7)
        assert len(teachers_of(DEMO).fetch()) == 2
