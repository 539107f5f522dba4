"""Lists of students that visitors upload, paste or have made up."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from handlers.grades import routes as grades
from pipelines.grades.views import GRADES
from rollforward.materialized_views import Reading
from tests.handlers.conftest import Browser
from tests.handlers.grades.school import LIST, STUDENT, bars, stored
from tests.handlers.hostile import TOO_LARGE
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


JUNK = {
    "nothing": (b"", "empty"),
    "a zip": (b"PK\x03\x04" + bytes(range(256)) * 50, "UTF-8"),
    "UTF-16": ("name,grade,points\nAda,7,92".encode("utf-16"), "UTF-8"),
    "a letter": (b"Dear all, please come.", "name the columns"),
    "no points": (b"name,grade\nAda,7\n", "name the columns"),
    "too large": (b"Ada,7,92\n" * (10 * 2**20 // 9 + 1), "larger than 10 MiB"),
}


@pytest.mark.parametrize(("content", "message"), JUNK.values(), ids=JUNK)
def test_a_file_that_is_no_list_is_refused_with_a_sentence(
    browser: Browser, snapshot: Callable[[], Any], content: bytes, message: str
) -> None:
    """S23: 400, the reason, and nothing stored."""
    stored = snapshot()

    response = browser.post("/grades/lists", {"id": LIST, "file": (io.BytesIO(content), "x.csv")})

    assert response.status_code == 400
    assert message.casefold() in response.text.casefold()
    assert snapshot() == stored


@pytest.mark.parametrize("form", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_form_that_is_too_large_is_413(
    browser: Browser, snapshot: Callable[[], Any], form: dict[str, Any]
) -> None:
    """S23: refused before it is read to its end."""
    stored = snapshot()
    files = {
        name: (io.BytesIO(b"x" * value[0]), value[1]) if isinstance(value, tuple) else value
        for name, value in form.items()
    }

    assert browser.post("/grades/lists", files).status_code == 413
    assert browser.post("/grades/students", {**STUDENT, "name": "x" * 2**20}).status_code == 413
    assert snapshot() == stored


def test_bad_rows_are_listed_by_line_and_the_others_are_in(world: World, browser: Browser) -> None:
    """Pasted or in a file; the same form again adds nothing."""
    pasted = "name,grade,points\r\nAda,7,92\r\nBob,13,1\r\n佐藤 花子,8,88\r\n"
    for _ in range(2):
        assert browser.post("/grades/lists", {"id": LIST, "pasted": pasted}).status_code == 303
        world.settle()

    text = browser.get("/grades").text
    assert stored(world) == [("Ada", 7, 92), ("佐藤 花子", 8, 88)]
    assert "<b>line 3:</b> grade must be a whole number from 1 to 12" in text
    assert bars(text) == {7: 1, 8: 1}


def test_made_up_students_are_added_by_one_press(
    world: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One press, one list of several commits, whose bars add up; a second list has to wait.

    With SOAK=1 it is the thousand that the button offers.
    """
    count = grades.MADE_UP if IS_EXHAUSTIVE else 300
    monkeypatch.setattr(grades, "MADE_UP", count)
    for _ in range(2):
        assert browser.post("/grades/made-up", {"id": LIST}).status_code == 303
    waits = browser.post("/grades/made-up", {"id": "2" * 32})
    other = browser.post("/grades/lists", {"id": "3" * 32, "pasted": "Ada,7,92"})
    world.settle()

    assert (waits.status_code, other.status_code) == (409, 409)
    assert "is being added" in waits.text
    assert sum(bars(browser.get("/grades").text).values()) == count


def test_a_list_that_grows_while_a_page_is_read_is_never_ahead_of_its_bars(
    world: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a page says that students are added and up to date, and shows none."""
    read = GRADES.read

    def read_and_wait(*args: Any, **kwargs: Any) -> Reading:
        reading = read(*args, **kwargs)
        # Another thread, because this one has the page's context.
        with ThreadPoolExecutor(1) as other:
            other.submit(world.settle).result()
        return reading

    browser.post("/grades/lists", {"id": LIST, "pasted": "name,grade,points\nAda,7,92"})
    monkeypatch.setattr(GRADES, "read", read_and_wait)
    while_added, then = (browser.get("/grades").text for _ in range(2))

    assert bars(while_added) == {}
    assert "0 students added" in while_added
    assert bars(then) == {7: 1}
    assert "1 student added" in then
