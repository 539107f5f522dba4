"""Students by grade: what is saved is in its bar, once, however it was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demos.grades import comparison as comparisons
from demos.grades import students as grades
from demos.grades.comparison import BY_AGGREGATION, FROM_VIEW, ONE_BY_ONE, SAMPLES
from demos.grades.student_lists import BadStudentError, Details, details_of
from demos.grades.students import (
    BUILDS,
    DEMO,
    GRADES,
    ClassSizes,
    ListGoingOnError,
    StudentsByGrade,
    TooManyTeachersError,
    UnknownStudentError,
    view_of,
)
from models.demos.grades import School, Student, Teacher, school_key, student_key, teachers_of
from models.outbox import OutboxTask
from pipelines.continuations.csv_source import BadFileError
from pipelines.continuations.progress import item_issues, progress
from pipelines.materialized_views import ConsistencyToken
from pipelines.runtime import Cost
from tests.faults import REPLY_LOST
from tests.world import World

ADA, BOB = "a" * 32, "b" * 32
LIST = "1" * 32


def bars(world: World, school: str = DEMO) -> dict[int, tuple[int, float]]:
    """Return each grade's students and points, as a reader sees them."""
    with world.context():
        rows = GRADES.read(world.clients, view_of(school), prefix=(school,)).rows
        return {comparisons.grade_of(row): (row.count, row.sum("points")) for row in rows}


def truth(world: World, school: str = DEMO) -> dict[int, tuple[int, float]]:
    """Return the same, counted from the students themselves."""
    counts: Counter[int] = Counter()
    points: Counter[int] = Counter()
    with world.context():
        for student in Student.query().fetch():
            if student.school == school:
                counts[student.grade] += 1
                points[student.grade] += student.points
    return {grade: (counts[grade], points[grade]) for grade in counts}


def asked(world: World, ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Do something in a context of its own, and everything that follows from it."""
    with world.context():
        answer = ask(world.clients, *args, **kwargs)
    world.settle()
    return answer


# One at a time


def test_a_student_is_added_moved_and_deleted_with_their_bar(world: World) -> None:
    """Each save has a token, and when what it stands for is applied the bar is right."""
    tokens = [asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))]
    assert bars(world) == {7: (1, 92)}

    tokens.append(asked(world, grades.change_student, DEMO, ADA, Details("Ada", 8, 92)))
    assert bars(world) == {8: (1, 92)}
    tokens.append(asked(world, grades.change_student, DEMO, ADA, Details("Ada", 8, 50)))
    assert bars(world) == {8: (1, 50)}
    tokens.append(asked(world, grades.delete_student, DEMO, ADA))

    assert bars(world) == {}
    assert [len(token.updates) for token in tokens] == [1, 2, 1, 1]
    with world.context():
        assert all(GRADES.wait(world.clients, token, 0) for token in tokens)


def test_a_form_adds_its_student_once(world: World) -> None:
    """Sent twice, or sent again after the student was moved or deleted, it adds nobody."""
    asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    again = asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    asked(world, grades.change_student, DEMO, ADA, Details("Ada", 8, 92))
    moved = asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    assert bars(world) == {8: (1, 92)}
    asked(world, grades.delete_student, DEMO, ADA)
    gone = asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))

    assert bars(world) == {}
    assert again == moved == gone == ConsistencyToken()


def test_a_save_whose_answer_is_lost_is_made_once_and_known(world: World) -> None:
    """At each call: the second try finds the student there, and its token names the updates."""
    fired = []
    for at in range(6):
        world.plan.calls, world.plan.kind, world.plan.at = [], REPLY_LOST, at
        with world.clients.context(), world.plan.watched():
            form_id = f"{at}" * 32
            token = grades.add_student(world.clients, DEMO, form_id, Details("Ada", 7, 10))
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
        (grades.add_student, DEMO, ADA, Details("Ada", 7, 92)),
        (grades.change_student, DEMO, ADA, Details("Ada", 7, 90)),
        (grades.change_student, DEMO, ADA, Details("Ada", 8, 90)),
        (grades.delete_student, DEMO, ADA),
    ]
    most = Cost()
    with world.context():
        for change, *args in steps:
            change(world.clients, *args)
            while row := OutboxTask.query().get():
                before = world.clients.meter.cost()
                GRADES.apply(world.clients, GRADES.task.read(row.body.encode()))
                cost = world.clients.meter.cost() - before
                most = Cost(max(most.reads, cost.reads), max(most.writes, cost.writes))

    said = Path("templates/grades/_stage.html").read_text()
    assert f"at most {most.reads} reads and {most.writes} writes, after the response" in said


def test_what_was_done_is_done_once(world: World) -> None:
    """A change to what is there already, and a second delete, set nothing going."""
    asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    same = asked(world, grades.change_student, DEMO, ADA, Details("Ada", 7, 92))
    asked(world, grades.delete_student, DEMO, ADA)

    assert not same.updates
    assert asked(world, grades.delete_student, DEMO, ADA) == ConsistencyToken()


def test_a_student_that_never_was_is_unknown(world: World) -> None:
    """Neither changed nor deleted; one who has gone cannot be changed either."""
    with world.context():
        with pytest.raises(UnknownStudentError):
            grades.change_student(world.clients, DEMO, ADA, Details("Ada", 1, 1))
        with pytest.raises(UnknownStudentError):
            grades.delete_student(world.clients, DEMO, ADA)
    asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    asked(world, grades.delete_student, DEMO, ADA)
    with world.context(), pytest.raises(UnknownStudentError):
        grades.change_student(world.clients, DEMO, ADA, Details("Ada", 1, 1))


def test_schools_keep_apart(world: World) -> None:
    """One view holds all schools; a reader of one sees its own."""
    asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    asked(world, grades.add_student, "sample-100", ADA, Details("Ada", 3, 10))

    assert bars(world) == {7: (1, 92)}
    assert bars(world, "sample-100") == {3: (1, 10)}


# What makes a student

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
def test_words_that_make_no_student_are_refused(
    name: str, grade: str, points: str, field: str
) -> None:
    """With the field that has to be mended, and a reason."""
    with pytest.raises(BadStudentError) as refused:
        details_of(name, grade, points)

    assert list(refused.value.errors) == [field]


# Lists


def test_many_are_made_up_once(world: World) -> None:
    """The same press twice adds its students once, the same ones each time, in every bar."""
    with world.context():
        first = grades.add_many(world.clients, DEMO, LIST, 250)
        again = grades.add_many(world.clients, DEMO, LIST, 250)
    world.settle()

    assert (first, again) == (True, False)
    assert sum(count for count, _ in bars(world).values()) == 250
    assert bars(world) == truth(world)
    with world.context():
        names = {student.name for student in Student.query().fetch()}
        assert any(not name.isascii() for name in names)
        assert progress(LIST).totals.done == 250


def test_one_list_at_a_time(world: World) -> None:
    """A second list has to wait for the first; then it is added."""
    with world.context():
        grades.add_many(world.clients, DEMO, LIST, 10)
        with pytest.raises(ListGoingOnError):
            grades.add_many(world.clients, DEMO, "2" * 32, 10)
        with pytest.raises(ListGoingOnError):
            grades.import_students(world.clients, DEMO, "3" * 32, b"Ada,7,92\n", "a.csv")
    world.settle()

    asked(world, grades.add_many, DEMO, "2" * 32, 10)

    assert sum(count for count, _ in bars(world).values()) == 20


FILE = (
    "\ufeff名前,学年,点数\r\n"
    '"Lovelace, Ada",7,92\r\n'
    "佐藤 花子,7,88\r\n"
    "Nobody,13,50\r\n"
    ",7,50\r\n"
    "Bob,8,none\r\n"
    '"open,7,1\r\n'
    "Carol;8;1\r\n"
    "Dave,8,70\r\n"
).encode()


def test_the_good_rows_of_a_file_are_added_and_the_bad_ones_are_listed(world: World) -> None:
    """BOM, header in any language, quoted commas; each bad row by its line and reason."""
    asked(world, grades.import_students, DEMO, LIST, FILE, "class.csv")

    assert bars(world) == truth(world) == {7: (2, 180), 8: (1, 70)}
    with world.context():
        bad = {int(row.name): row.reason for row in item_issues(LIST)}
        assert "Lovelace, Ada" in {student.name for student in Student.query().fetch()}
    assert sorted(bad) == [4, 5, 6, 7, 8]
    assert "grade is a whole number from 1 to 12" in bad[4]
    assert "the name is missing" in bad[5]
    assert "points are a whole number" in bad[6]
    assert "quote" in bad[7]


def test_the_same_file_by_the_same_form_adds_nothing_twice(world: World) -> None:
    """Sent again at once, or when all is done, or with another file in it."""
    with world.context():
        assert grades.import_students(world.clients, DEMO, LIST, FILE, "class.csv")
        assert not grades.import_students(world.clients, DEMO, LIST, FILE, "class.csv")
    world.settle()
    assert not asked(world, grades.import_students, DEMO, LIST, FILE, "class.csv")
    assert not asked(world, grades.import_students, DEMO, LIST, b"Eve,1,1\n", "other.csv")

    assert bars(world) == {7: (2, 180), 8: (1, 70)}
    asked(world, grades.import_students, DEMO, "2" * 32, FILE, "class.csv")
    assert bars(world) == {7: (4, 360), 8: (2, 140)}


NO_LISTS = {
    "empty": b"",
    "UTF-16": "name,grade,points\nAda,7,92".encode("utf-16"),
    "no points": b"name,grade\nAda,7\n",
    "a letter": b"Dear all, please come.",
}


@pytest.mark.parametrize("content", NO_LISTS.values(), ids=NO_LISTS)
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_file_that_is_no_list_is_refused(world: World, content: bytes) -> None:
    """And nothing of it is stored."""
    with world.context():
        with pytest.raises(BadFileError):
            grades.import_students(world.clients, DEMO, LIST, content, "x.csv")
        assert school_key(DEMO).get() is None


def test_lists_are_exact_with_every_delivery_doubled(world: World) -> None:
    """Twice delivered, out of order: each student counts once, and nothing drifts."""
    world.doubles = True
    with world.context():
        grades.add_many(world.clients, DEMO, LIST, 120)
    world.settle()
    asked(world, grades.import_students, DEMO, "2" * 32, FILE, "class.csv")

    assert bars(world) == truth(world)
    assert sum(count for count, _ in bars(world).values()) == 123
    world.doubles = False
    assert drift(world) == []


def drift(world: World) -> list[str]:
    """Verify both views; return what differs."""
    with world.context():
        assert grades.verification(world.clients, DEMO) is None
        grades.verify(world.clients, DEMO, "v1")
        grades.verify(world.clients, DEMO, "v2")  # Does nothing: one is going on.
        running = grades.verification(world.clients, DEMO)
    world.settle()
    with world.context():
        found = grades.verification(world.clients, DEMO)
    assert running is not None
    assert found is not None
    assert (running.state, found.state) == ("running", "finished")
    assert found.checked == found.expected > 0
    return [f"{each.where}: {each.message}" for each in found.differences]


def test_the_roster_shows_each_student_once(world: World) -> None:
    """Page by page, in key order, to the end."""
    asked(world, grades.add_many, DEMO, LIST, 25)
    seen: list[str] = []
    after: str | None = ""

    while after is not None:
        with world.context():
            page, after = grades.students_page(DEMO, after=after, size=10)
        seen += [student.student_id for student in page]

    assert len(seen) == len(set(seen)) == 25


# Teachers


def test_grades_are_joined_with_their_teachers(world: World) -> None:
    """A left join: grades with students have a row, with teachers or without."""
    asked(world, grades.add_student, DEMO, ADA, Details("Ada", 7, 92))
    asked(world, grades.add_student, DEMO, BOB, Details("Bob", 8, 50))
    for form_id, grade in (("c" * 32, 7), ("d" * 32, 7), ("d" * 32, 7), ("e" * 32, 9)):
        asked(world, grades.add_teacher, DEMO, form_id, grade)

    assert joined(world) == {7: (1, 2), 8: (1, 0)}
    asked(world, grades.delete_teacher, DEMO, "c" * 32)
    asked(world, grades.delete_teacher, DEMO, "c" * 32)
    asked(world, grades.change_student, DEMO, BOB, Details("Bob", 9, 50))
    assert joined(world) == {7: (1, 1), 9: (1, 1)}
    with world.context():
        row = GRADES.row(ClassSizes, (DEMO, 7))
        assert [key.id() for key, _ in GRADES.members(ClassSizes, (DEMO, 7), Teacher)] == [
            f"{DEMO}:{'d' * 32}"
        ]
    assert row is not None
    assert row.sum("students") == 1


def joined(world: World) -> dict[int, tuple[float, int]]:
    """Return each grade's students and teachers."""
    with world.context():
        rows = GRADES.read(world.clients, ClassSizes, prefix=(DEMO,)).rows
        return {
            comparisons.grade_of(row): (row.sum("students"), row.counts.get("Teacher", 0))
            for row in rows
        }


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_school_takes_so_many_teachers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more: their names stand on the page."""
    monkeypatch.setattr(grades, "MAX_TEACHERS", 2)
    for form_id in ("c" * 32, "d" * 32):
        asked(world, grades.add_teacher, DEMO, form_id, 7)

    with world.context():
        with pytest.raises(TooManyTeachersError):
            grades.add_teacher(world.clients, DEMO, "e" * 32, 7)
        assert len(teachers_of(DEMO).fetch()) == 2


# Rebuild, compare


def test_a_rebuilt_view_is_the_same(world: World) -> None:
    """Built beside the one that is read; both views agree with their sources afterwards."""
    asked(world, grades.add_many, DEMO, LIST, 60)
    asked(world, grades.add_teacher, DEMO, "c" * 32, 7)
    before, classes = bars(world), joined(world)

    asked(world, BUILDS.rebuild, StudentsByGrade)
    for _ in range(4):
        world.sweep()
        world.settle()

    assert (bars(world), joined(world)) == (before, classes)
    with world.context():
        assert BUILDS.rebuilding(world.clients, StudentsByGrade) is None
        assert GRADES.catalog().live(StudentsByGrade) == "students_by_grade.1.2"
    assert drift(world) == []


def test_a_sample_school_is_filled_once_and_measured(world: World) -> None:
    """All ways say the same; reading the view costs a read a bar, counting one a student."""
    school = "sample-100"
    with world.context():
        assert comparisons.statuses(world.clients, [school])[0].state == "empty"
        comparisons.compare(world.clients, school, "m1")
        assert comparisons.statuses(world.clients, [school])[0].state == "filling"
    world.settle()
    measured = standing(world, school)
    assert measured.state == "measured"
    ways = measured.comparison.ways

    assert ways[ONE_BY_ONE]["reads"] == SAMPLES[school]
    assert ways[FROM_VIEW]["reads"] == len(bars(world, school)) + 2
    assert ways[FROM_VIEW]["agrees"] is True
    if world.services.datastore_kind == "firestore":
        assert ways[BY_AGGREGATION]["agrees"] is True
        assert ways[BY_AGGREGATION]["reads"] == 12
    else:
        assert ways[BY_AGGREGATION] is None

    asked(world, comparisons.compare, school, "m2")
    assert standing(world, school).comparison.measured == "m2"
    assert sum(count for count, _ in bars(world, school).values()) == SAMPLES[school]


def test_what_waits_adds_nothing_to_the_reads_of_a_chart(world: World) -> None:
    """A read a bar and two for the catalog, while changes wait as when none does."""
    asked(world, grades.add_many, DEMO, LIST, 50)
    with world.context():
        grades.add_many(world.clients, DEMO, "2" * 32, 50)
    world.deliver(world.engine.due()[0].task_name)

    with world.context():
        before = world.clients.meter.cost()
        reading = GRADES.read(world.clients, StudentsByGrade, prefix=(DEMO,))
        cost = world.clients.meter.cost() - before

    assert reading.freshness.waiting > 0
    assert (cost.reads, cost.writes) == (len(reading.rows) + 2, 0)


def standing(world: World, school: str) -> Any:
    with world.context():
        [found] = comparisons.statuses(world.clients, [school])
        return found


def test_a_measurement_is_kept_once(world: World) -> None:
    """Asked for twice it is one task; an old one that comes late changes nothing."""
    asked(world, comparisons.compare, "sample-100", "m1")
    with world.context():
        comparisons.compare(world.clients, "sample-100", "m2")
        comparisons.compare(world.clients, "sample-100", "m2")
        assert comparisons.statuses(world.clients, ["sample-100"])[0].state == "measuring"
    world.settle()
    before = standing(world, "sample-100").comparison

    asked(world, comparisons.measure.enqueue, comparisons.Measure("sample-100", "m1"))

    after = standing(world, "sample-100").comparison
    assert (after.measured, after.ways, after.at) == ("m2", before.ways, before.at)


def test_a_school_remembers_its_last_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones are forgotten, and their forms stay used."""
    monkeypatch.setattr(grades, "MAX_LISTS_KEPT", 2)
    for number in range(3):
        asked(world, grades.add_many, DEMO, f"{number}" * 32, 1)

    with world.context():
        school = School.get_by_id(DEMO)
        assert [each["run_id"][0] for each in school.lists] == ["1", "2"]
        assert not grades.add_many(world.clients, DEMO, "0" * 32, 1)
        assert student_key(DEMO, ADA).get() is None


def test_a_fill_waits_for_its_view(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so many updates waiting its next page comes again; nothing is parked or lost."""
    monkeypatch.setattr(comparisons, "MAX_WAITING", 1)
    with world.context():
        comparisons.compare(world.clients, "sample-100", "m1")
        GRADES.save(world.clients, grades.made_up("sample-100", LIST, 1))
    pages = [due for due in world.engine.due() if "/queues/imports/" in due.task_name]

    statuses = [world.deliver(page.task_name) for page in pages]

    assert set(statuses) == {429}
    world.settle()
    assert (
        sum(count for count, _ in bars(world, "sample-100").values()) == SAMPLES["sample-100"] + 1
    )
