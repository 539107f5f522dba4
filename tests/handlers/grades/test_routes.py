"""The page of students by grade: forms act once, and refuse bad input."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from markupsafe import escape
from werkzeug.test import TestResponse

from models.grades import school_key, student_key
from pipelines.grades.students import DEMO
from tests.handlers.conftest import Browser, app_with
from tests.handlers.grades.school import ADA, CHANGE, DELETE, LIST, STUDENT, bars, stored
from tests.handlers.hostile import XSS, tags
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.mark.parametrize("path", ["/grades", "/grades/live", "/grades?school=sample-100"])
def test_what_is_read_changes_nothing(
    world: World, browser: Browser, ada: TestResponse, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, path)


def test_an_empty_school_says_what_to_do(browser: Browser) -> None:
    """Nobody there: a chart of empty bars, and a word what to press."""
    text = browser.get("/grades").text

    assert "No students yet" in text
    assert bars(text) == {}
    assert "up to date" in text


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry."""
    text = browser.get("/").text

    assert text.count('href="/grades"') == 2


@pytest.mark.parametrize("school", ["x", "", "sample-7", "demo:", "a" * 200, "é"])
def test_a_school_that_is_not_there_is_404(browser: Browser, school: str) -> None:
    """S28: reading a school creates none."""
    for path in ("/grades", "/grades/live"):
        response = browser.get(path, query_string={"school": school})
        assert response.status_code == 404


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
    path = "/grades?tab=roster"
    for _ in range(10):
        text = browser.get(path).text
        seen += re.findall(r'name="name" value="(student \d+)"', text)
        following = re.search(r"after=[0-9a-f]{32}", text)
        if following is None:
            break
        path = f"/grades?{following[0]}"

    assert len(seen) == len(set(seen)) == 20


def test_a_student_is_added_moved_and_deleted(
    world: World, browser: Browser, ada: TestResponse
) -> None:
    """Each response leads back to a page that holds the change, with its cost."""
    first = browser.get(ada.headers["Location"])
    assert bars(first.text) == {7: 1}
    assert "Ada was added to grade 7" in first.text

    form = {"name": "Ada L.", "grade": "8", "points": "93", "tab": "roster"}
    moved = browser.post(CHANGE, form)
    world.settle()
    second = browser.get(moved.headers["Location"])
    assert 'value="Ada L."' in second.text
    assert bars(browser.get("/grades").text) == {8: 1}

    deletion = browser.post(DELETE)
    world.settle()
    assert bars(browser.get(deletion.headers["Location"]).text) == {}
    assert browser.post(DELETE).status_code == 303
    assert stored(world) == []


def test_the_page_after_a_save_says_whether_it_holds_it(world: World, browser: Browser) -> None:
    """While the change waits the page says so, in the lane too; then it is in its bar."""
    response = browser.post("/grades/students", STUDENT)

    early = browser.get(response.headers["Location"]).text
    world.settle()
    late = browser.get(response.headers["Location"]).text

    assert "Its bar is not updated yet" in early
    assert '<b>Grade 7</b> <span class="what">+1</span>' in early
    assert " behind</dd>" in early
    assert bars(early) == {}
    assert "Its bar is not updated yet" not in late
    assert bars(late) == {7: 1}


def test_a_form_sent_twice_works_once(
    world: World, browser: Browser, ada: TestResponse, snapshot: Callable[[], Any]
) -> None:
    """S25: add, change and delete again: nothing more is stored, and the page says so."""
    stored = snapshot()

    repeated = browser.post("/grades/students", STUDENT, follow_redirects=True)
    same = browser.post(CHANGE, {"name": "Ada", "grade": "7", "points": "92"})

    assert "was done before" in repeated.text
    assert same.status_code == 303
    world.settle()
    assert snapshot() == stored


BAD_FIELDS = [
    ("name", ""),
    ("name", "   "),
    ("name", "x" * 121),
    ("name", "x" * 1_000),
    ("name", "a\nb"),
    ("name", "a\x00b"),
    ("name", "a\u2028b"),
    ("grade", ""),
    ("grade", "0"),
    ("grade", "13"),
    ("grade", "-7"),
    ("grade", "7.0"),
    ("grade", "7th"),
    ("grade", "9" * 200),
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
    """S15: 400, a sentence at the field, the input kept, and nothing changed."""
    stored = snapshot()
    form = {"id": "b" * 32, "name": "Kept text", "grade": "7", "points": "92", field: value}

    added = browser.post("/grades/students", form)
    changed = browser.post(CHANGE, form)

    assert (added.status_code, changed.status_code) == (400, 400)
    assert f'id="{field}-error"' in added.text
    assert "Kept text" in added.text or field == "name"
    assert "Ada was not saved" in changed.text
    assert snapshot() == stored


@pytest.mark.parametrize("name", ["庭　花子", "👩‍👩‍👧", "x" * 120, "O'Brien", "Ångström"])
def test_names_in_any_script_are_taken(world: World, browser: Browser, name: str) -> None:
    """Wide blanks and joined emoji are what people are called."""
    assert browser.post("/grades/students", {**STUDENT, "name": name}).status_code == 303
    assert stored(world) == [(name, 7, 92)]


@pytest.mark.parametrize("form_id", ["", "x", "A" * 32, "a" * 31, "a" * 31 + "\n", "../../etc"])
def test_a_form_needs_an_id_of_ours(
    browser: Browser, snapshot: Callable[[], Any], form_id: str
) -> None:
    """S25: an id that no page of ours made is refused, and never becomes a key."""
    stored = snapshot()
    forms = {
        "/grades/students": STUDENT,
        "/grades/lists": {"pasted": "Ada,7,92"},
        "/grades/made-up": {},
        "/grades/teachers": {"grade": "7"},
        "/grades/verify": {},
        "/grades/rebuild": {},
        "/grades/compare/sample-100": {},
    }

    responses = [browser.post(path, {**form, "id": form_id}) for path, form in forms.items()]

    assert {response.status_code for response in responses} == {400}
    assert snapshot() == stored


@pytest.mark.parametrize("student_id", ["b" * 32, "x", "A" * 32, "a" * 33, "..%2f..", "é"])
def test_a_student_that_is_not_there_is_404(
    browser: Browser, ada: TestResponse, snapshot: Callable[[], Any], student_id: str
) -> None:
    """S28: no student is changed or deleted, for any other field of the form."""
    stored = snapshot()
    paths = [f"/grades/students/{student_id}/{verb}" for verb in ("change", "delete", "nothing")]
    good = {"name": "Eve", "grade": "7", "points": "1"}

    responses = [browser.post(path, form) for path in paths for form in (good, {"grade": "99"})]

    assert {response.status_code for response in responses} == {404}
    assert snapshot() == stored


@pytest.mark.parametrize(
    "seen",
    [
        "x",
        "IngifA.forged",
        "a" * 3_000,
        "__|20300501T120000000000|h|c0ffee|0003|__",
        "c|20300501T120000000000|h|c0ffee|0003|1a2b3c4d",
        "\x00",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_token_that_is_not_ours_is_400(browser: Browser, seen: str) -> None:
    """S14: a token that was made up, or is cut off, reads nothing."""
    response = browser.get("/grades", query_string={"seen": seen})

    assert response.status_code == 400
    assert "cut off" in response.text


def test_a_token_of_another_key_is_400(world: World, browser: Browser, ada: TestResponse) -> None:
    """S22: signed by this app, or by a key that it still knows."""
    other = ("other-0123456789abcdef-0123456789",)
    changed = Browser(app_with(world, settings=replace(world.settings, secret_keys=other)))
    rotated = replace(world.settings, secret_keys=(*other, *world.settings.secret_keys))

    assert changed.get(ada.headers["Location"]).status_code == 400
    assert (
        Browser(app_with(world, settings=rotated)).get(ada.headers["Location"]).status_code == 200
    )


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
    stored = snapshot()

    responses = [
        browser.client.post(path, data=FORMS[path]),
        browser.post(path, FORMS[path], token="x"),
        browser.post(path, FORMS[path], headers={"Sec-Fetch-Site": "cross-site"}),
    ]

    assert [response.status_code for response in responses] == [403] * 3
    assert snapshot() == stored


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
        pages = [browser.get(path).text for path in ("/grades", "/grades/live")]
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


def test_a_switch_leads_back_to_the_page(world: World) -> None:
    """S20: /grades is a page of ours; what only begins like it is not."""
    url = world.services.cloud_tasks.control_url
    browser = Browser(app_with(world, settings=replace(world.settings, devserver_url=url)))
    backs = {"/grades": "/grades", "/grades/../x": "/", "/gradesx": "/", "//grades": "/"}

    for back, place in backs.items():
        response = browser.post("/break-it/errors/off", {"back": back})
        assert response.headers["Location"] == place


def test_a_page_stops_hurrying_once_only_an_old_change_waits(
    world: World, browser: Browser
) -> None:
    """A parked update may wait for days: it is shown, and no page asks twice a second for it."""
    browser.post("/grades/students", STUDENT)
    young = [browser.get(path).text for path in ("/grades/live", "/live")]

    world.clock.sleep(61)
    old = [browser.get(path).text for path in ("/grades/live", "/live")]

    assert ['data-moving="yes"' in page for page in young] == [True, True]
    assert ['data-moving="no"' in page for page in old] == [True, True]
    assert "behind" in old[0]
