"""Helpers for tests in a browser: a press of a button, a page's width, one window size."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.infra.faults.explorer import IS_EXHAUSTIVE

TIMEOUT_MS = 120_000
IS_IN_PLACE = "button => Boolean(window.live && button.form?.matches('[data-in-place]'))"

# For what does not depend on the window: both sizes with SOAK=1.
one_window = pytest.mark.parametrize(
    "page", [1280, 375] if IS_EXHAUSTIVE else [1280], indirect=True
)

# Of the demos, each of which works without a script, `make test` tries one in three; and of those
# that are broken while one looks, too.
without_scripts = pytest.mark.one_of("without scripts", 3)
broken_in_view = pytest.mark.one_of("broken in view", 3)

# A worker that is killed cuts what it has begun to answer, as the stream by which a page
# listens, and leaves what it has read without any answer.
CUT_BY_A_KILL = ("ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")


def not_by_kills(problems: list[str]) -> list[str]:
    """Return the complaints of a page that no killed worker explains."""
    return [problem for problem in problems if not any(error in problem for error in CUT_BY_A_KILL)]


def press(page: Page, button: Locator) -> None:
    """Press a button and wait for its page, or for the new stage."""
    if not button.evaluate(IS_IN_PLACE):
        with page.expect_navigation():
            button.click()
        return
    with page.expect_response(lambda response: response.request.method == "POST"):
        button.click()
    # Not a function to wait for: the page's policy allows none that is made of text.
    expect(page.locator("html:not([data-busy])")).to_be_attached(timeout=TIMEOUT_MS)


def refresh_until_still(page: Page) -> None:
    """Follow the link that replaces the script, until nothing changes any more."""
    live = page.locator("#live")
    refresh_until(page, lambda: live.get_attribute("data-moving") == "no")


def refresh_until(page: Page, claim: Callable[[], bool]) -> None:
    """Follow the link that replaces the script, until a claim holds."""

    def holds_now() -> bool:
        press(page, page.get_by_role("link", name="Refresh"))
        return claim()

    wait_until(page, holds_now)


def wait_until(page: Page, claim: Callable[[], bool], every_ms: int = 200) -> None:
    """Wait until a claim holds that `expect` has no words for; the page goes on meanwhile."""
    ends_at = time.monotonic() + TIMEOUT_MS / 1000
    while not claim():
        assert time.monotonic() < ends_at, "it did not happen"
        page.wait_for_timeout(every_ms)


def expect_still(page: Page) -> None:
    """Wait until nothing changes any more."""
    expect(page.locator("#live")).to_have_attribute("data-moving", "no", timeout=TIMEOUT_MS)


def check_width(page: Page) -> None:
    assert width_beyond(page) <= 0, "the page is wider than the window"


def width_beyond(page: Page) -> int:
    """Return how many pixels of a page are right of the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
