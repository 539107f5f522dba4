"""The page of students by grade: what its forms do once, and what they refuse."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from markupsafe import escape
from werkzeug.test import TestResponse

from demos.grades import students as grades
from demos.grades.student_lists import Details
from demos.grades.students import DEMO, GRADES, StudentsByGrade
from handlers.security import CONTENT_SECURITY_POLICY
from models.demos.grades import Student, school_key, student_key, teachers_of
from tests.handlers.conftest import Browser, app_with, on_cloud_run
from tests.handlers.pages.test_invitations import TOO_LARGE, XSS, tags
from tests.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

ADA, LIST = "a" * 32, "1" * 32
STUDENT = {"id": ADA, "name": "Ada", "grade": "7", "points": "92"}
CHANGE = f"/grades/students/{ADA}/change"
DELETE = f"/grades/students/{ADA}/delete"


@pytest.fixture
def ada(browser: Browser, world: World) -> TestResponse:
    """One student, saved and in her bar; the answer to the form that added her."""
    answer = browser.post("/grades/students", STUDENT)
    assert answer.status_code == 303, answer.text
    world.settle()
    return answer


def students(world: World) -> list[tuple[str, int, int]]:
    with world.context():
        found = Student.query().fetch()
    return sorted((student.name, student.grade, student.points) for student in found)


def bars(text: str) -> dict[int, int]:
    """Return the chart of a page, from the table that tells the same."""
    row = r'<tr><th scope="row">(\d+)</th><td class="n">(\d+)</td><td class="n">[\d.–]+</td>'
    return {int(grade): int(count) for grade, count in re.findall(row, text) if count != "0"}


# Reading


@pytest.mark.parametrize("path", ["/grades", "/grades/stage", "/grades?school=sample-100"])
def test_what_is_read_changes_nothing(
    world: World, browser: Browser, ada: TestResponse, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every answer is dressed."""
    before = snapshot()

    answers = [browser.client.open(path, method=method) for method in ("GET", "HEAD", "OPTIONS")]

    assert snapshot() == before
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", answers[0].text)


def test_an_empty_school_says_what_to_do(browser: Browser) -> None:
    """Nobody there: a chart of empty bars, and a word what to press."""
    text = browser.get("/grades").text

    assert "Nobody yet" in text
    assert bars(text) == {}
    assert "up to date" in text


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry."""
    text = browser.get("/").text

    assert text.count('href="/grades"') == 2


@pytest.mark.parametrize("school", ["x", "", "sample-7", "demo:", "a" * 5000, "é"])
def test_a_school_that_is_not_there_is_404(browser: Browser, school: str) -> None:
    """S28: nobody makes a school by asking for it."""
    for path in ("/grades", "/grades/stage"):
        answer = browser.get(path, query_string={"school": school})
        assert answer.status_code == 404


@pytest.mark.parametrize("after", ["x", "0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n"])
def test_a_page_of_students_that_is_no_place_is_400(browser: Browser, after: str) -> None:
    """S14: a place that is no hash runs no query."""
    assert browser.get("/grades", query_string={"after": after}).status_code == 400


def test_every_student_is_on_one_page_of_the_roster(browser: Browser, world: World) -> None:
    """I2: paging shows each once, and ends."""
    rows = "".join(f"student {i},{i % 12 + 1},{i}\n" for i in range(20))
    browser.post("/grades/lists", {"id": LIST, "pasted": rows})
    world.settle()

    seen: list[str] = []
    path = "/grades"
    for _ in range(10):
        text = browser.get(path).text
        seen += re.findall(r'name="name" value="(student \d+)"', text)
        following = re.search(r"\?after=[0-9a-f]{32}", text)
        if following is None:
            break
        path = "/grades" + following[0]

    assert len(seen) == len(set(seen)) == 20


# Saving


def test_a_student_is_added_moved_and_deleted(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    """Each answer leads back to a page that holds the change, with its receipt."""
    first = browser.get(ada.headers["Location"])
    assert bars(first.text) == {7: 1}
    assert "Ada was added to grade 7" in first.text

    moved = browser.post(CHANGE, {"name": "Ada L.", "grade": "8", "points": "93"})
    world.settle()
    second = browser.get(moved.headers["Location"])
    assert bars(second.text) == {8: 1}
    assert 'value="Ada L."' in second.text

    gone = browser.post(DELETE)
    world.settle()
    assert bars(browser.get(gone.headers["Location"]).text) == {}
    assert browser.post(DELETE).status_code == 303
    assert students(world) == []


def test_the_page_after_a_save_says_whether_it_holds_it(world: World, browser: Browser) -> None:
    """While the change waits the page says so, in the lane too; then it is in its bar."""
    answer = browser.post("/grades/students", STUDENT)

    early = browser.get(answer.headers["Location"]).text
    world.settle()
    late = browser.get(answer.headers["Location"]).text

    assert "on its way to its bar" in early
    assert '<b>Grade 7</b> <span class="what">+1</span>' in early
    assert " behind</dd>" in early
    assert bars(early) == {}
    assert "on its way to its bar" not in late
    assert bars(late) == {7: 1}


def test_a_form_sent_twice_works_once(
    world: World, browser: Browser, ada: TestResponse, snapshot: Callable[[], Any]
) -> None:
    """S25: add, change and delete again: nothing more is stored, and the page says so."""
    before = snapshot()

    again = browser.post("/grades/students", STUDENT, follow_redirects=True)
    same = browser.post(CHANGE, {"name": "Ada", "grade": "7", "points": "92"})

    assert "had been done before" in again.text
    assert same.status_code == 303
    world.settle()
    assert snapshot() == before


BAD_FIELDS = [
    ("name", ""),
    ("name", "   "),
    ("name", "x" * 121),
    ("name", "x" * 100_000),
    ("name", "a\nb"),
    ("name", "a\x00b"),
    ("name", "a\u2028b"),
    ("grade", ""),
    ("grade", "0"),
    ("grade", "13"),
    ("grade", "-7"),
    ("grade", "7.0"),
    ("grade", "7th"),
    ("grade", "9" * 5000),
    ("points", ""),
    ("points", "101"),
    ("points", "-1"),
    ("points", "1e1"),
    ("points", "NaN"),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda text: repr(text[:12]))
def test_words_that_make_no_student_are_sent_back(
    browser: Browser, ada: TestResponse, snapshot: Callable[[], Any], field: str, value: str
) -> None:
    """S15: 400, a sentence at the field, what was typed still there, and nothing changed."""
    before = snapshot()
    form = {"id": "b" * 32, "name": "Kept words", "grade": "7", "points": "92", field: value}

    added = browser.post("/grades/students", form)
    changed = browser.post(CHANGE, form)

    assert (added.status_code, changed.status_code) == (400, 400)
    assert f'id="{field}-error"' in added.text
    assert "Kept words" in added.text or field == "name"
    assert "Ada was not saved" in changed.text
    assert snapshot() == before


@pytest.mark.parametrize("name", ["庭　花子", "👩‍👩‍👧", "x" * 120, "O'Brien", "Ångström"])
def test_names_in_any_script_are_taken(world: World, browser: Browser, name: str) -> None:
    """Wide blanks and joined emoji are what people are called."""
    assert browser.post("/grades/students", {**STUDENT, "name": name}).status_code == 303
    assert students(world) == [(name, 7, 92)]


@pytest.mark.parametrize("form_id", ["", "x", "A" * 32, "a" * 31, "a" * 31 + "\n", "../../etc"])
def test_a_form_needs_an_id_of_ours(
    browser: Browser, snapshot: Callable[[], Any], form_id: str
) -> None:
    """S25: an id that no page of ours made is refused, and never becomes a key."""
    before = snapshot()
    forms = {
        "/grades/students": STUDENT,
        "/grades/lists": {"pasted": "Ada,7,92"},
        "/grades/made-up": {},
        "/grades/teachers": {"grade": "7"},
        "/grades/verify": {},
        "/grades/rebuild": {},
        "/grades/compare/sample-100": {},
    }

    answers = [browser.post(path, {**form, "id": form_id}) for path, form in forms.items()]

    assert {answer.status_code for answer in answers} == {400}
    assert snapshot() == before


@pytest.mark.parametrize("student_id", ["b" * 32, "x", "A" * 32, "a" * 33, "..%2f..", "é"])
def test_a_student_that_is_not_there_is_404(
    browser: Browser, ada: TestResponse, snapshot: Callable[[], Any], student_id: str
) -> None:
    """S28: nobody is changed or deleted, whatever the rest of the form says."""
    before = snapshot()
    paths = [f"/grades/students/{student_id}/{verb}" for verb in ("change", "delete", "nothing")]
    good = {"name": "Eve", "grade": "7", "points": "1"}

    answers = [browser.post(path, form) for path in paths for form in (good, {"grade": "99"})]

    assert {answer.status_code for answer in answers} == {404}
    assert snapshot() == before


# Tokens in addresses


@pytest.mark.parametrize(
    "seen",
    [
        "x",
        "IngifA.forged",
        "a" * 10_000,
        "__|20300501T120000000000|h|c0ffee|0003|__",
        "c|20300501T120000000000|h|c0ffee|0003|1a2b3c4d",
        "\x00",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_token_that_is_not_ours_is_400(browser: Browser, seen: str) -> None:
    """S14: a token that was made up, or is cut off, reads nothing."""
    answer = browser.get("/grades", query_string={"seen": seen})

    assert answer.status_code == 400
    assert "cut off" in answer.text


def test_a_token_of_another_key_is_400(world: World, browser: Browser, ada: TestResponse) -> None:
    """S22: signed by this app, or by a key that it still knows."""
    other = ("other-0123456789abcdef-0123456789",)
    changed = Browser(app_with(world, settings=replace(world.settings, secret_keys=other)))
    rotated = replace(world.settings, secret_keys=(*other, *world.settings.secret_keys))

    assert changed.get(ada.headers["Location"]).status_code == 400
    assert (
        Browser(app_with(world, settings=rotated)).get(ada.headers["Location"]).status_code == 200
    )


# Forms that are not ours

FORMS = {
    "/grades/students": {**STUDENT, "id": "d" * 32},
    CHANGE: {"name": "Eve", "grade": "1", "points": "1"},
    DELETE: {},
    "/grades/lists": {"id": "d" * 32, "pasted": "Eve,1,1"},
    "/grades/made-up": {"id": "d" * 32},
    "/grades/teachers": {"id": "d" * 32, "grade": "7"},
    f"/grades/teachers/{ADA}/delete": {},
    "/grades/verify": {"id": "d" * 32},
    "/grades/rebuild": {"id": "d" * 32},
    "/grades/compare/sample-100": {"id": "d" * 32},
}


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_our_token_does_nothing(
    browser: Browser, ada: TestResponse, snapshot: Callable[[], Any], path: str
) -> None:
    """S19: no token, a wrong one, or one from elsewhere."""
    before = snapshot()

    answers = [
        browser.client.post(path, data=FORMS[path]),
        browser.post(path, FORMS[path], token="x"),
        browser.post(path, FORMS[path], headers={"Sec-Fetch-Site": "cross-site"}),
    ]

    assert [answer.status_code for answer in answers] == [403] * 3
    assert snapshot() == before


@pytest.mark.parametrize("text", XSS)
def test_what_people_type_is_shown_as_text(world: World, browser: Browser, text: str) -> None:
    """S16: in a name, a file's name or a reason: text alone."""

    def shown(word: str, form_id: str) -> list[list[tuple[str, str]]]:
        browser.post("/grades/students", {**STUDENT, "id": form_id, "name": word})
        cell = word.replace('"', '""')
        content = f'name,grade,points\n"{cell}",7,92\nb,"{cell}",1\n'.encode()
        file = (io.BytesIO(content), word.replace('"', "%22") + ".csv")
        assert browser.post("/grades/lists", {"id": form_id, "file": file}).status_code == 303
        world.settle()
        pages = [browser.get(path).text for path in ("/grades", "/grades/stage")]
        pages.append(browser.post("/grades/students", {"id": form_id, "name": word}).text)
        pages.append(browser.post(f"/grades/students/{form_id}/change", {"name": word}).text)
        assert all(str(escape(word)) in page for page in pages)
        return [tags(page) for page in pages]

    plain = shown("harmless", "1" * 32)
    with world.context():
        school_key(DEMO).delete()
        student_key(DEMO, "1" * 32).delete()
    nasty = shown(text, "2" * 32)

    assert [sorted(set(page)) for page in nasty] == [sorted(set(page)) for page in plain]


# Lists

JUNK = {
    "nothing": (b"", "empty"),
    "a zip": (b"PK\x03\x04" + bytes(range(256)) * 50, "UTF-8"),
    "UTF-16": ("name,grade,points\nAda,7,92".encode("utf-16"), "UTF-8"),
    "a letter": (b"Dear all, please come.", "name the columns"),
    "no points": (b"name,grade\nAda,7\n", "name the columns"),
    "too large": (b"Ada,7,92\n" * (10 * 2**20 // 9 + 1), "larger than 10 MiB"),
}


@pytest.mark.parametrize(("content", "words"), JUNK.values(), ids=JUNK)
def test_a_file_that_is_no_list_is_refused_with_a_sentence(
    browser: Browser, snapshot: Callable[[], Any], content: bytes, words: str
) -> None:
    """S23: 400, what is wrong with it, and nothing stored."""
    before = snapshot()

    answer = browser.post("/grades/lists", {"id": LIST, "file": (io.BytesIO(content), "x.csv")})

    assert answer.status_code == 400
    assert words.casefold() in answer.text.casefold()
    assert snapshot() == before


@pytest.mark.parametrize("form", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_form_that_is_too_large_is_413(
    browser: Browser, snapshot: Callable[[], Any], form: dict[str, Any]
) -> None:
    """S23: refused before it is read to its end."""
    before = snapshot()
    files = {
        name: (io.BytesIO(b"x" * value[0]), value[1]) if isinstance(value, tuple) else value
        for name, value in form.items()
    }

    assert browser.post("/grades/lists", files).status_code == 413
    assert browser.post("/grades/students", {**STUDENT, "name": "x" * 2**20}).status_code == 413
    assert snapshot() == before


def test_bad_rows_are_listed_by_line_and_the_others_are_in(world: World, browser: Browser) -> None:
    """Pasted or in a file; the same form again adds nothing."""
    pasted = "name,grade,points\r\nAda,7,92\r\nBob,13,1\r\n佐藤 花子,8,88\r\n"
    for _ in range(2):
        assert browser.post("/grades/lists", {"id": LIST, "pasted": pasted}).status_code == 303
        world.settle()

    text = browser.get("/grades").text
    assert students(world) == [("Ada", 7, 92), ("佐藤 花子", 8, 88)]
    assert "<b>line 3:</b> grade is a whole number from 1 to 12" in text
    assert bars(text) == {7: 1, 8: 1}


def test_a_thousand_are_added_by_one_press(world: World, browser: Browser) -> None:
    """One press, one list, whose bars add up; a second list has to wait."""
    for _ in range(2):
        assert browser.post("/grades/made-up", {"id": LIST}).status_code == 303
    waits = browser.post("/grades/made-up", {"id": "2" * 32})
    other = browser.post("/grades/lists", {"id": "3" * 32, "pasted": "Ada,7,92"})
    world.settle()

    assert (waits.status_code, other.status_code) == (409, 409)
    assert "still being added" in waits.text
    assert sum(bars(browser.get("/grades").text).values()) == 1000


# Teachers, checks, comparisons


def test_teachers_are_joined_to_their_grade(
    world: World, browser: Browser, ada: TestResponse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added once for each form, let go, and no more than there is room for."""
    monkeypatch.setattr(grades, "MAX_TEACHERS", 1)
    for _ in range(2):
        browser.post("/grades/teachers", {"id": "c" * 32, "grade": "7"})
    world.settle()
    with world.context():
        [teacher] = teachers_of(DEMO).fetch()
    assert teacher.name in browser.get("/grades").text

    full = browser.post("/grades/teachers", {"id": "d" * 32, "grade": "7"}, follow_redirects=True)
    assert "at most 1 teachers" in full.text
    assert browser.post(f"/grades/teachers/{'c' * 32}/delete").status_code == 303
    world.settle()
    with world.context():
        assert teachers_of(DEMO).fetch() == []
    for grade in ("", "0", "13", "x", "9" * 5000):
        answer = browser.post("/grades/teachers", {"id": "e" * 32, "grade": grade})
        assert answer.status_code == 400


def test_verify_says_that_nothing_drifts_and_rebuild_changes_the_table(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    """Progress while they go on; drift 0, and the same bars from a new table, afterwards."""
    browser.post("/grades/verify", {"id": "c" * 32})
    assert "Verifying" in browser.get("/grades/stage").text
    world.settle()
    assert "Drift 0" in browser.get("/grades").text

    browser.post("/grades/rebuild", {"id": "d" * 32})
    assert "students_by_grade.1.2" in browser.get("/grades/stage").text
    for _ in range(3):
        world.sweep()
        world.settle()
    text = browser.get("/grades").text
    assert "from <code>students_by_grade.1.2</code>" in text
    assert bars(text) == {7: 1}


def test_a_verification_says_what_it_waits_for(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    """A change on its way, and not just that it goes on."""
    with world.context():
        grades.change_student(world.clients, DEMO, ADA, Details("Ada", 7, 1))
    browser.post("/grades/verify", {"id": "c" * 32})
    for due in world.engine.due():
        if "verify" in world.engine.get_task(due.task_name).http_request.url:
            world.deliver(due.task_name)

    text = browser.get("/grades/stage").text
    assert "looks again at 2: a change is on its way" in text
    world.settle()
    assert "Drift 0" in browser.get("/grades/stage").text


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
    assert "Not filled yet" in browser.get("/grades").text
    browser.post("/grades/compare/sample-100", {"id": "c" * 32})
    assert "Filling" in browser.get("/grades/stage").text
    world.settle()

    text = browser.get("/grades").text
    assert "100 reads" in text
    assert "Measure again" in text
    assert sum(bars(browser.get("/grades?school=sample-100").text).values()) == 100
    assert bars(text) == {}
    assert browser.post("/grades/compare/demo", {"id": "c" * 32}).status_code == 404


def test_the_largest_school_is_for_a_deployed_app(world: World, browser: Browser) -> None:
    """An emulator would run out of memory, and everything else with it."""
    local = browser.post("/grades/compare/sample-100000", {"id": "c" * 32})
    assert local.status_code == 404
    assert "sample-100000" not in browser.get("/grades").text

    deployed = Browser(app_with(world, settings=on_cloud_run(world)))
    secure = {"base_url": "https://x.example"}
    page = deployed.get("/grades", **secure).text
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert token is not None

    answer = deployed.post(
        "/grades/compare/sample-100000",
        {"id": "c" * 32},
        token=token[1],
        headers={"Referer": "https://x.example/"},
        **secure,
    )

    assert answer.status_code == 303
    assert "sample-100000" in page
    assert "Break it" not in page


def test_a_switch_leads_back_to_the_page(world: World) -> None:
    """S20: /grades is a page of ours; what only begins like it is not."""
    url = world.services.cloud_tasks.control_url
    browser = Browser(app_with(world, settings=replace(world.settings, devserver_url=url)))
    backs = {"/grades": "/grades", "/grades/../x": "/", "/gradesx": "/", "//grades": "/"}

    for back, place in backs.items():
        answer = browser.post("/break-it/errors/off", {"back": back})
        assert answer.headers["Location"] == place


def test_reading_costs_a_read_a_bar(world: World, browser: Browser) -> None:
    """What the page says of itself is what the view says."""
    browser.post("/grades/made-up", {"id": LIST})
    world.settle()

    with world.context():
        rows = GRADES.read(world.clients, StudentsByGrade, prefix=(DEMO,)).rows

    assert f"<dd>{len(rows) + 2} reads</dd>" in browser.get("/grades").text
