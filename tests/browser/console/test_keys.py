"""Keys of the console: they search, walk and open; in a field they are letters."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.console.conftest import links
from tests.browser.forms import one_window, width_beyond
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

MAX_ROW_PX = 90
LISTS = (
    *(
        f"{{console}}/{name}"
        for name in ("tasks", "queues", "latency", "limits", "costs", "traces")
    ),
    *("{console}/cron", "{console}/data/kind/ContinuationPage"),
    *(f"{{app}}/{name}" for name in ("runs", "lanes", "waiting", "schedules", "enqueue", "lag")),
    "{app}/runs?pattern=streams",
)
HEIGHTS = """() => [...document.querySelectorAll("table.compact tbody tr")]
  .map((row) => row.getBoundingClientRect().height)"""


def expect_keys(page: Page) -> None:
    """Wait for the script: it shows the button of its help."""
    expect(page.get_by_role("button", name="Keys")).to_be_visible()


@one_window
def test_a_list_is_searched_walked_and_opened_without_a_mouse(busy: Stack, page: Page) -> None:
    """`g t` opens the tasks, `/` its search; `j`, `k` and Enter open the first queue."""
    page.goto(busy.console)
    expect_keys(page)
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page).to_have_url(f"{busy.console}/tasks")
    expect_keys(page)

    page.keyboard.press("/")
    expect(page.get_by_label("Text in name, path, error or body")).to_be_focused()
    page.keyboard.type("gt?jk")
    expect(page.get_by_label("Text in name, path, error or body")).to_have_value("gt?jk")

    page.goto(f"{busy.console}/queues")
    expect_keys(page)
    links_of_rows = page.locator("main tbody th a")
    for key, place in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        expect(links_of_rows.nth(place)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/tasks[?]queue="))


@one_window
def test_the_help_lists_the_keys_and_turns_them_off(busy: Stack, page: Page) -> None:
    """Also in the console of the app; off, a letter does nothing, and the button brings it back."""
    page.goto(f"{busy.app}/rollforward/")
    expect_keys(page)
    page.keyboard.press("?")
    help_text = page.get_by_role("dialog", name="Keys")
    expect(help_text).to_contain_text("Dead tasks")
    help_text.get_by_label("Use these keys in this browser").uncheck()
    page.keyboard.press("Escape")

    page.keyboard.press("?")
    expect(help_text).to_be_hidden()
    page.get_by_role("button", name="Keys").click()
    help_text.get_by_label("Use these keys in this browser").check()
    help_text.get_by_role("button", name="Close").click()
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page).to_have_url(f"{busy.app}/rollforward/dead")


def test_a_phone_shows_a_row_of_a_list_in_ninety_pixels(busy: Stack, browser: Browser) -> None:
    """With its state, its time and its last error; no row makes the page wider."""
    assert links(busy, "/tasks", '/tasks/imports/[^"]+')
    page = browser.new_page(viewport={"width": 390, "height": 844})
    heights: dict[str, list[float]] = {}
    for path in LISTS:
        page.goto(path.format(console=busy.console, app=f"{busy.app}/rollforward"))
        expect(page.get_by_text("Reading. ")).to_have_count(0, timeout=60_000)
        heights[path] = page.evaluate(HEIGHTS)
        assert width_beyond(page) <= 0, path
    page.close()

    assert {path for path, rows in heights.items() if not rows} == set()
    assert {path: max(rows) for path, rows in heights.items() if max(rows) > MAX_ROW_PX} == {}
