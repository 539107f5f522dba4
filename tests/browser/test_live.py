"""Hidden pages: they request nothing, and listen to nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.browser.demos.test_blog import publish, say
from tests.browser.demos.test_sums import open_sum
from tests.browser.forms import TIMEOUT_MS, press, wait_until
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

# What a browser says of a tab behind another one: a headless one has no tabs.
SHOW = """isShown => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => !isShown });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
# As Chromium is on phones: each page that is in view has a stream of its own.
NO_SHARED_WORKER = "delete window.SharedWorker"
STEP_MS = 15_000
ANSWER_MS = 40  # Of real time, in which an answer comes.
TWO_MINUTES = 8


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose clock is the test's; without shared workers, whose requests nobody sees."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NO_SHARED_WORKER)
    page.clock.install()
    yield page
    context.close()


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    """Somebody else, in a browser of their own."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


def asked(page: Page, steps: int) -> list[str]:
    """Return a page's requests while its clock advances by some steps."""
    seen: list[str] = []

    def note(request: Request) -> None:
        seen.append(request.url)

    page.on("request", note)
    for _ in range(steps):
        page.clock.run_for(STEP_MS)
        page.wait_for_timeout(ANSWER_MS)
    page.remove_listener("request", note)
    return seen


def is_idle(page: Page) -> bool:
    return page.locator("[data-live-status]").inner_text() == "Idle"


def expect_asked_again(page: Page, for_: str) -> None:
    """Wait until a page asks for something, however late it hears of a change."""
    wait_until(page, lambda: any(for_ in url for url in asked(page, 1)), ANSWER_MS)


def add(other: Page) -> str:
    """Add to a sum; return its new total."""
    other.get_by_label("Amount may be negative").fill("7")
    press(other, other.get_by_role("button", name="Add it"))
    return other.locator(".sum-up").inner_text()


def test_a_hidden_page_neither_asks_nor_listens_until_it_is_looked_at(
    page: Page, other: Page, stack: Stack
) -> None:
    """Not even of what changes meanwhile; then it shows that."""
    open_sum(other, stack, "out-of-sight")
    with page.expect_request(lambda request: "/events" in request.url):
        page.goto(other.url)
    asked(page, 1)

    page.evaluate(SHOW, False)
    add(other)
    assert asked(page, TWO_MINUTES) == []

    page.evaluate(SHOW, True)
    expect_asked_again(page, "/live")
    now = other.locator(".sum-up").inner_text()
    expect(page.locator(".sum-up")).to_have_text(now, use_inner_text=True, timeout=TIMEOUT_MS)


def test_a_page_on_which_nothing_changes_stops_until_it_is_looked_at(
    page: Page, other: Page, stack: Stack
) -> None:
    """It says that it is idle; what changes then, it does not see."""
    open_sum(other, stack, "at-rest")
    page.goto(other.url)
    wait_until(page, lambda: asked(page, 1) == [] and is_idle(page), ANSWER_MS)

    add(other)
    assert asked(page, TWO_MINUTES) == []
    page.evaluate(SHOW, True)
    expect_asked_again(page, "/live")
    expect(page.locator("[data-live-status]")).to_have_text("Live")


def test_a_post_that_nobody_touches_asks_for_no_comments(
    page: Page, other: Page, stack: Stack
) -> None:
    """After ten minutes; a key is enough for it to ask again, and to say that there is one."""
    publish(other, stack, "Out of sight")
    page.goto(other.url)
    asked(page, 42)

    say(other, "Hello")
    assert asked(page, TWO_MINUTES) == []
    page.keyboard.press("Shift")
    expect_asked_again(page, "/comments")
    expect(page.locator("[data-arrivals]")).to_contain_text("1 new comment")
