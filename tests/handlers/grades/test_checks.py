"""Verify, rebuild and compare, as a visitor of a school sees them; its teachers."""

from __future__ import annotations

import re

import pytest
from werkzeug.test import TestResponse

from models.grades import student_key, teachers_of
from pipelines.grades import students
from pipelines.grades.student_lists import StudentDetails
from pipelines.grades.students import DEMO
from pipelines.grades.views import GRADES, StudentsByGrade
from rollforward.continuations.entities import RUNNING, ContinuationRun
from rollforward.continuations.runs import cancel
from tests.handlers.conftest import Browser, app_with, on_cloud_run
from tests.handlers.grades.school import ADA, LIST, bars
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


def test_teachers_are_joined_to_their_grade(
    world: World, browser: Browser, ada: TestResponse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added once for each form, removed again, and bounded by the room."""
    monkeypatch.setattr(students, "MAX_TEACHERS", 1)
    for _ in range(2):
        browser.post("/grades/teachers", {"id": "c" * 32, "grade": "7"})
    world.settle()
    with world.context():
        [teacher] = teachers_of(DEMO).fetch()
    assert teacher.name in browser.get("/grades?more=teachers").text

    full = browser.post("/grades/teachers", {"id": "d" * 32, "grade": "7"}, follow_redirects=True)
    assert "at most 1 teachers" in full.text
    assert browser.post(f"/grades/teachers/{'c' * 32}/delete").status_code == 303
    world.settle()
    with world.context():
        assert teachers_of(DEMO).fetch() == []
    for grade in ("", "0", "13", "x", "9" * 200):
        response = browser.post("/grades/teachers", {"id": "e" * 32, "grade": grade})
        assert response.status_code == 400


def test_verify_says_that_nothing_drifts_and_rebuild_changes_the_table(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    """Progress while they run; afterwards drift 0, and the same bars from a new table."""
    browser.post("/grades/verify", {"id": "c" * 32})
    assert "Verifying" in browser.get("/grades/live").text
    world.settle()
    assert "Drift 0" in browser.get("/grades").text

    browser.post("/grades/rebuild", {"id": "d" * 32})
    assert "students_by_grade.1.2" in browser.get("/grades/live").text
    for _ in range(3):
        world.sweep()
        world.settle()
    text = browser.get("/grades").text
    assert "from <code>students_by_grade.1.2</code>" in text
    assert bars(text) == {7: 1}


def test_a_verification_says_what_it_waits_for(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    """A pending change itself, not only that there is one."""
    with world.context():
        students.change_student(world.clients, DEMO, ADA, StudentDetails("Ada", 7, 1))
    browser.post("/grades/verify", {"id": "c" * 32})
    for due in world.engine.due():
        if "verify" in world.engine.get_task(due.task_name).http_request.url:
            world.deliver(due.task_name)

    text = browser.get("/grades/live").text
    assert "rechecks 2 with pending changes" in text
    world.settle()
    assert "Drift 0" in browser.get("/grades/live").text


def test_a_verification_that_an_operator_cancels_can_be_made_again(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    browser.post("/grades/verify", {"id": "c" * 32})
    with world.context():
        for walk in ContinuationRun.query(ContinuationRun.state == RUNNING).fetch():
            cancel(walk.key.id())
    world.settle()
    assert "Verification cancelled" in browser.get("/grades").text

    browser.post("/grades/verify", {"id": "d" * 32})
    world.settle()
    assert "Drift 0" in browser.get("/grades").text


def test_what_drifts_is_shown(world: World, browser: Browser, ada: TestResponse) -> None:
    """A student changed behind the view's back is found, and named."""
    with world.context():
        student = student_key(DEMO, ADA).get()
        student.grade = 9
        student.put()

    browser.post("/grades/verify", {"id": "c" * 32})
    world.settle()

    text = browser.get("/grades").text
    assert "Drift 1" in text
    assert f"Student/{DEMO}:{ADA}" in text


def test_a_sample_school_is_compared(world: World, browser: Browser) -> None:
    """Filled, measured, shown in numbers; and it can be looked at."""
    assert "Not filled yet" in browser.get("/grades?tab=compare").text
    browser.post("/grades/compare/sample-100", {"id": "c" * 32})
    assert "Filling" in browser.get("/grades/live?tab=compare").text
    world.settle()

    text = browser.get("/grades?tab=compare").text
    assert "100 reads" in text
    assert "Measure again" in text
    assert sum(bars(browser.get("/grades?school=sample-100").text).values()) == 100
    assert bars(browser.get("/grades").text) == {}
    assert browser.post("/grades/compare/demo", {"id": "c" * 32}).status_code == 404


def test_the_largest_school_is_for_a_deployed_app(world: World, browser: Browser) -> None:
    """An emulator would run out of memory, and everything else with it."""
    local = browser.post("/grades/compare/sample-100000", {"id": "c" * 32})
    assert local.status_code == 404
    assert "sample-100000" not in browser.get("/grades?tab=compare").text

    deployed = Browser(app_with(world, settings=on_cloud_run(world)))
    secure = {"base_url": "https://x.example"}
    page = deployed.get("/grades?tab=compare", **secure).text
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert token is not None

    response = deployed.post(
        "/grades/compare/sample-100000",
        {"id": "c" * 32},
        token=token[1],
        headers={"Referer": "https://x.example/"},
        **secure,
    )

    assert response.status_code == 303
    assert "sample-100000" in page
    assert "Break it" not in deployed.get("/grades", **secure).text


def test_reading_costs_a_read_a_bar(
    world: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's counts equal the view's, with enough students to reach every bar."""
    monkeypatch.setattr("handlers.grades.routes.MADE_UP", 100)
    browser.post("/grades/made-up", {"id": LIST})
    world.settle()

    with world.context():
        rows = GRADES.read(world.clients, StudentsByGrade, prefix=(DEMO,)).rows

    assert f"<dd>{len(rows) + 2} reads</dd>" in browser.get("/grades").text
