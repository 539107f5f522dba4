"""Lists of students, made up or from a file: each student counts once, in every bar."""

from __future__ import annotations

import pytest

from models.grades import School, Student, school_key, student_key
from pipelines.grades import imports
from pipelines.grades.imports import ListGoingOnError
from pipelines.grades.students import DEMO
from rollforward.continuations.csv_source import BadFileError
from rollforward.continuations.progress import item_issues, progress
from rollforward.tasks.errors import Unavailable
from tests.infra.world import World
from tests.pipelines.grades.schools import ADA, LIST, bars, drift, settled, truth
from tests.pipelines.invitations.host import cloud_tasks_away


def test_many_are_made_up_once(world: World) -> None:
    """The same press twice adds its students once, the same ones each time, in every bar."""
    with world.context():
        first = imports.add_many(world.clients, DEMO, LIST, 250)
        again = imports.add_many(world.clients, DEMO, LIST, 250)
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
        imports.add_many(world.clients, DEMO, LIST, 10)
        with pytest.raises(ListGoingOnError):
            imports.add_many(world.clients, DEMO, "2" * 32, 10)
        with pytest.raises(ListGoingOnError):
            imports.import_students(world.clients, DEMO, "3" * 32, b"Ada,7,92\n", "a.csv")
    world.settle()

    settled(world, imports.add_many, DEMO, "2" * 32, 10)

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
    settled(world, imports.import_students, DEMO, LIST, FILE, "class.csv")

    assert bars(world) == truth(world) == {7: (2, 180), 8: (1, 70)}
    with world.context():
        bad = {int(row.name): row.reason for row in item_issues(LIST)}
        assert "Lovelace, Ada" in {student.name for student in Student.query().fetch()}
    assert sorted(bad) == [4, 5, 6, 7, 8]
    assert "grade must be a whole number from 1 to 12" in bad[4]
    assert "name must not be empty" in bad[5]
    assert "points must be a whole number" in bad[6]
    assert "quote" in bad[7]


def test_the_same_file_by_the_same_form_adds_nothing_twice(world: World) -> None:
    """Sent again at once, or when all is done, or with another file in it."""
    with world.context():
        assert imports.import_students(world.clients, DEMO, LIST, FILE, "class.csv")
        assert not imports.import_students(world.clients, DEMO, LIST, FILE, "class.csv")
    world.settle()
    assert not settled(world, imports.import_students, DEMO, LIST, FILE, "class.csv")
    assert not settled(world, imports.import_students, DEMO, LIST, b"Eve,1,1\n", "other.csv")

    assert bars(world) == {7: (2, 180), 8: (1, 70)}
    settled(world, imports.import_students, DEMO, "2" * 32, FILE, "class.csv")
    assert bars(world) == {7: (4, 360), 8: (2, 140)}


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_the_form_of_a_list_without_a_task_launches_it(world: World) -> None:
    """It was stored when Cloud Tasks did not answer, and whoever sent it sends it again."""
    with cloud_tasks_away(world), world.context(), pytest.raises(Unavailable):
        imports.import_students(world.clients, DEMO, LIST, FILE, "class.csv")

    assert world.live_tasks("imports") == []

    with world.context():
        assert not imports.import_students(world.clients, DEMO, LIST, FILE, "class.csv")

    assert len(world.live_tasks("imports")) == 1


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
            imports.import_students(world.clients, DEMO, LIST, content, "x.csv")
        assert school_key(DEMO).get() is None


def test_lists_are_exact_with_every_delivery_doubled(world: World) -> None:
    """Twice delivered, out of order: each student counts once, and nothing drifts."""
    world.doubles = True
    with world.context():
        imports.add_many(world.clients, DEMO, LIST, 120)
    world.settle()
    settled(world, imports.import_students, DEMO, "2" * 32, FILE, "class.csv")

    assert bars(world) == truth(world)
    assert sum(count for count, _ in bars(world).values()) == 123
    world.doubles = False
    assert drift(world) == []


def test_a_school_remembers_its_last_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones are dropped, and their forms stay used."""
    monkeypatch.setattr(imports, "MAX_LISTS_KEPT", 2)
    for number in range(3):
        settled(world, imports.add_many, DEMO, f"{number}" * 32, 1)

    with world.context():
        school = School.get_by_id(DEMO)
        assert [each["run_id"][0] for each in school.lists] == ["1", "2"]
        assert not imports.add_many(world.clients, DEMO, "0" * 32, 1)
        assert student_key(DEMO, ADA).get() is None
