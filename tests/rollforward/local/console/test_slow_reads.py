"""Lists of the data browser that Datastore takes long for."""

import threading
from types import SimpleNamespace

import pytest
from google.api_core.exceptions import ServiceUnavailable

from rollforward.local.console import slow_reads
from rollforward.local.console.reading.entities import Entities, Kind, Page


@pytest.fixture
def held(browser, monkeypatch):
    """Queries for lists that wait for the test."""
    go, asked = threading.Event(), []

    def held_up(result):
        def query(*args, **how):
            asked.append(args)
            assert go.wait(60)
            return result

        return query

    monkeypatch.setattr(Entities, "page", held_up(Page([], "")))
    monkeypatch.setattr(Entities, "kinds", held_up([Kind("Late", 300)]))
    monkeypatch.setattr(Entities, "namespaces", lambda *args: [""])
    yield SimpleNamespace(go=go, asked=asked)
    go.set()


def is_reading(page):
    return " data-live>" in page and "Reading. " in page


@pytest.mark.parametrize(
    ("path", "shown"),
    [("/data?counts=yes", "Late</a>"), ("/data/kind/Late", "No entity."), ("/data", "Late</a>")],
)
def test_a_page_answers_while_a_large_kind_is_read(browser, held, path, shown):
    """It asks again, for the same read, and shows the rows once they are there."""
    first, again = browser.get(path), browser.get(path)

    assert (first.status, is_reading(first.text), shown in first.text) == (200, True, False)
    assert is_reading(again.text)
    held.go.set()
    page = until_read(browser, path)
    assert shown in page
    assert len(held.asked) == 1

    browser.get(path)
    assert len(held.asked) == 2  # What was shown is not kept.


def until_read(browser, path):
    for _ in range(100):
        page = browser.get(path).text
        if not is_reading(page):
            return page
    raise AssertionError("still reading")


def test_a_few_kinds_are_read_at_once_and_a_page_beyond_them_waits(browser, held):
    """Each read takes a thread, and the emulator's whole attention."""
    for number in range(slow_reads.MAX_READS + 2):
        assert is_reading(browser.get(f"/data/kind/K{number}").text)
    assert len(held.asked) == slow_reads.MAX_READS

    held.go.set()
    until_read(browser, "/data/kind/K0")
    until_read(browser, f"/data/kind/K{slow_reads.MAX_READS + 1}")


def test_a_result_that_no_page_fetches_is_dropped(browser, held, monkeypatch):
    """Its page was closed; another one takes its place."""
    for number in range(slow_reads.MAX_READS):
        browser.get(f"/data/kind/K{number}")
    held.go.set()
    for number in range(1, slow_reads.MAX_READS):
        until_read(browser, f"/data/kind/K{number}")
    monkeypatch.setattr(slow_reads, "KEPT_S", 0.0)
    until_read(browser, "/data/kind/Other")

    until_read(browser, "/data/kind/K0")
    read = [asked.kind for *_, asked in held.asked]
    assert read.count("K0") == 2


def test_a_read_that_takes_longer_than_a_result_is_kept_is_shown(browser, held, monkeypatch):
    """Its page still asks for it; it was begun anew each time, and never shown."""
    monkeypatch.setattr(slow_reads, "KEPT_S", 0.0)
    for _ in range(3):
        assert is_reading(browser.get("/data/kind/Late").text)
    held.go.set()

    assert "No entity." in until_read(browser, "/data/kind/Late")
    assert len(held.asked) == 1


def test_results_that_nobody_fetches_leave_room_for_other_reads(browser, held):
    """As closed pages leave them, for as long as they are kept."""
    for number in range(slow_reads.MAX_READS):
        browser.get(f"/data/kind/K{number}")
    held.go.set()
    until_read(browser, "/data/kind/K0")
    until_read(browser, "/data/kind/Other")


def test_a_read_that_fails_later_says_so_on_the_page(browser, held, monkeypatch):
    """And the next page reads again."""

    def failing(*args):
        assert held.go.wait(60)
        raise ServiceUnavailable("gone")

    monkeypatch.setattr(Entities, "page", failing)
    assert is_reading(browser.get("/data/kind/Book").text)
    held.go.set()
    assert "Datastore does not answer: 503 gone" in until_read(browser, "/data/kind/Book")
