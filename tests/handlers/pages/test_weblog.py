"""The page of the web log: its form, what it shows, and that its numbers add up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from demos.weblog import loads
from demos.weblog.lines import read_log
from demos.weblog.pipeline import WEBLOG
from demos.weblog.sample import sample_log
from handlers.pages.formatting import number
from handlers.pages.weblog_charts import picture_of
from tests.handlers.conftest import Browser
from tests.handlers.pages.looking import look_only
from tests.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = "a" * 32


def test_looking_at_it_before_any_log_says_what_to_press(browser: Browser) -> None:
    page = browser.get("/streams/weblog")

    assert page.status_code == 200
    assert "Nothing was read yet" in page.text
    assert page.text.count('class="box') == 1 + len(WEBLOG.computations)


def test_the_sample_is_counted_once_and_adds_up(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first lines."""
    lines = list(itertools.islice(sample_log(), 60))
    monkeypatch.setattr(loads, "sample_log", lambda: lines)
    for _ in range(2):
        response = browser.post("/streams/weblog/logs", {"id": FORM, "sample": "yes"})
        assert response.status_code == 303, response.text
    world.settle()

    requests = len(read_log(lines).requests)
    page = browser.get("/streams/weblog").text
    assert page.count("Adds up") == 3
    assert page.count(f">{number(requests)}</td>") >= 9
    assert "Nothing was read yet" not in page
    assert browser.get("/streams/weblog/live").status_code == 200


def test_a_file_that_is_no_log_is_refused_and_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any]
) -> None:
    before = snapshot()
    response = browser.post("/streams/weblog/logs", {"id": FORM})
    assert response.status_code == 400
    assert "hoose a file" in response.text
    assert snapshot() == before


def test_every_computation_stands_right_of_what_it_reads(services: object) -> None:
    picture = picture_of(WEBLOG)

    assert all(line.x1 < line.x2 for line in picture.lines)
    assert {box.name for box in picture.boxes} == {*WEBLOG.sources, *WEBLOG.computations}
    places = [(box.x, box.y) for box in picture.boxes]
    assert len(set(places)) == len(places)


def test_what_is_read_changes_nothing(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, "/streams/weblog")
