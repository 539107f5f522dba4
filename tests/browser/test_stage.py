"""The stage in a real browser: it heals in view, and announces the end."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.demos.test_sums import open_sum
from tests.browser.forms import (
    TIMEOUT_MS,
    broken_in_view,
    expect_still,
    one_window,
    press,
    wait_until,
)
from tests.browser.looks import WINDOWS, bottom
from tests.infra.runs import sampling
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

# A run that is watched, on a machine that does other things as well.
RUN_MS = 150_000
REST_MS = 5_000


@broken_in_view
@sampling.long
@pytest.mark.parametrize("window", ["desktop", "phone"])
def test_it_is_hurt_and_heals_in_view(browser: Browser, stack: Stack, window: str) -> None:
    """Struck, killed and healed: no reload, and the scroll and the focus stay where they were."""
    context = browser.new_context(**WINDOWS[window])
    page = context.new_page()
    page.goto(stack.app)
    press(page, page.get_by_role("button", name="Run the demo"))
    loaded = page.evaluate("performance.timeOrigin")
    errors = page.get_by_role("switch", name="Errors")
    errors.focus()
    press(page, errors)
    expect(errors).to_be_focused()
    expect(errors).to_have_attribute("aria-checked", "true")
    expect(page.locator(".mails b")).to_have_text(re.compile("[1-9]"), timeout=TIMEOUT_MS)
    height = WINDOWS[window]["viewport"]["height"]

    kill = page.get_by_role("button", name="Kill a worker")
    kill.focus()
    press(page, kill)
    killed = re.compile(r"Worker \d+ was killed")
    expect(page.locator(".said")).to_contain_text(killed, timeout=TIMEOUT_MS)
    expect(kill).to_be_focused()
    assert page.evaluate("scrollY") == 0
    assert bottom(page) <= height

    press(page, errors)
    expect(page.locator(".closing")).to_contain_text("0 lost", timeout=RUN_MS)
    expect(page.locator(".closing")).to_contain_text("1 worker killed")
    healed = re.compile(r"^(?!0)(\d+) faults? hit, \1 repaired, 0 lost")
    expect(page.locator("#story summary")).to_have_text(healed, timeout=TIMEOUT_MS)
    assert bottom(page) <= height
    assert page.evaluate("performance.timeOrigin") == loaded
    context.close()


def test_at_rest_a_page_is_told_and_does_not_ask(browser: Browser, stack: Stack) -> None:
    """By a stream, or, without one, by a question that costs little; what it shows is not sent."""
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    open_sum(page, stack, "visitors")
    expect(page.locator("#live")).to_have_attribute("data-moving", "no", timeout=TIMEOUT_MS)
    expect(page.locator("#live")).to_have_attribute("data-listens", "shared", timeout=TIMEOUT_MS)

    def rests() -> bool:
        asked.clear()
        page.wait_for_timeout(REST_MS)
        return not any(url.endswith("/live") for url in asked)

    wait_until(page, rests)  # What came to rest just now is told once more.

    other = context.new_page()
    other.goto(stack.app + "/sums/visitors")
    other.get_by_label("Amount may be negative").fill("7")
    press(other, other.get_by_role("button", name="Add it"))
    # Not while it waits to be folded: the page may learn of it later than that lasts.
    expect(other.locator(".sum-up")).to_contain_text("Adds up", timeout=TIMEOUT_MS)

    expect(page.locator(".sum-up")).to_have_text(
        other.locator(".sum-up").inner_text(), use_inner_text=True, timeout=TIMEOUT_MS
    )
    assert any(url.endswith("/live") for url in asked)
    context.close()


@one_window
def test_a_press_without_a_response_is_repeated_as_the_same_request(
    page: Page, stack: Stack
) -> None:
    """The page says that nothing came; what was done already would not be done twice."""
    open_sum(page, stack, "unanswered")
    sent: list[str | None] = []
    page.on("request", lambda r: sent.append(r.post_data) if r.method == "POST" else None)
    page.route("**/additions", lambda route: route.abort("connectionreset"), times=1)
    page.get_by_label("Amount may be negative").fill("7")
    add = page.get_by_role("button", name="Add it")

    add.click()
    expect(page.locator("[data-part=notices]")).to_contain_text("There was no response.")
    press(page, add)

    expect(page.locator("[data-part=notices]")).to_contain_text("7 is accepted")
    assert len(sent) == 2
    assert sent[0] == sent[1]


@one_window
def test_what_an_action_says_is_announced(page: Page, stack: Stack) -> None:
    """By the region that stands there: one that comes with its text may be passed over."""
    open_sum(page, stack, "announced")
    page.get_by_label("Amount may be negative").fill("7")

    with page.expect_response(lambda response: response.url.endswith("/live")):
        press(page, page.get_by_role("button", name="Add it"))

    said = page.locator("[data-part=notices]").inner_text()
    assert "7 is accepted" in said
    expect(page.locator("[data-live-announcer]")).to_have_text(said)


@one_window
def test_the_answer_to_a_wrong_form_stays_connected(page: Page, stack: Stack) -> None:
    """Its address takes forms alone: what is asked for is the page's."""
    open_sum(page, stack, "wrong-first")
    page.get_by_label("Amount may be negative").fill("seven")
    with page.expect_navigation():
        page.get_by_role("button", name="Add it").click()
    assert page.url.endswith("/additions")
    refused: list[str] = []
    page.on("response", lambda r: refused.append(r.url) if r.status >= 400 else None)

    page.get_by_label("Amount may be negative").fill("7")
    with page.expect_response(lambda response: response.url.endswith("/sums/wrong-first")):
        press(page, page.get_by_role("button", name="Add it"))
        expect_still(page)

    assert refused == []


@one_window
def test_a_page_of_what_was_deleted_says_so_and_asks_no_more(page: Page, stack: Stack) -> None:
    """It is not said to be without a connection, and asked for every three seconds for ever."""
    open_sum(page, stack, "deleted")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.route("**/live", lambda route: route.fulfill(status=404))

    page.reload()
    expect(page.locator("[data-live-problem]")).to_have_text(re.compile("This was deleted"))
    expect(page.locator("[data-live-status]")).to_have_text("Deleted")
    asked.clear()
    page.wait_for_timeout(REST_MS)

    assert asked == []


@one_window
def test_a_page_whose_address_is_limited_says_so_and_waits_as_it_is_told(
    page: Page, stack: Stack
) -> None:
    """It is not said to be without a connection, and does not use the limit up by its retries."""
    open_sum(page, stack, "limited")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.route("**/live", lambda route: route.fulfill(status=429, headers={"Retry-After": "41"}))

    page.reload()
    expect(page.locator("[data-live-problem]")).to_have_text(
        re.compile("Too many requests from your address, retrying in 41 s")
    )
    asked.clear()
    page.wait_for_timeout(REST_MS)

    assert [url for url in asked if url.endswith("/live")] == []


SELECT = """() => {
  const range = document.createRange();
  range.selectNodeContents(document.querySelector("#live .numbers dd"));
  document.getSelection().addRange(range);
}"""


@one_window
def test_a_page_of_which_a_text_is_selected_says_that_it_is_paused(
    page: Page, stack: Stack
) -> None:
    """It shows nothing newer, and said that it was live; then it shows what it has missed."""
    open_sum(page, stack, "selected")
    expect_still(page)
    status, total = page.locator("[data-live-status]"), page.locator("#live .numbers dd").first
    expect(status).to_have_text("Live")
    page.evaluate(SELECT)
    expect(status).to_have_text("Paused")

    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_label("Amount may be negative").fill("7")
    press(other, other.get_by_role("button", name="Add it"))
    expect(other.locator("#live .numbers dd").first).to_have_text("7", timeout=TIMEOUT_MS)
    expect_still(other)
    expect(total).to_have_text("0")

    page.evaluate("document.getSelection().empty()")
    expect(status).to_have_text("Live")
    expect(total).to_have_text("7", timeout=REST_MS)


@one_window
def test_each_stop_of_the_tab_key_is_seen(page: Page, stack: Stack) -> None:
    """Also the list of events, which the arrow keys scroll."""
    open_sum(page, stack, "by-keyboard")
    page.locator(".news").focus()
    page.keyboard.press("Shift+Tab")

    page.keyboard.press("Tab")

    expect(page.locator(".news")).to_be_focused()
    expect(page.locator(".news")).to_have_css("outline-style", "solid")


@one_window
def test_fresh_events_keep_the_keyboard_and_the_scroll(page: Page, stack: Stack) -> None:
    """A queue that is slowed counts its seconds there, so they are replaced once a second."""
    open_sum(page, stack, "many-events")
    expect_still(page)

    def many_events(route: Route) -> None:
        whole = {**route.request.headers, "if-none-match": ""}
        text = route.fetch(headers=whole).text()
        head, part, rest = text.partition('data-part="news" data-same="')
        opening, _, events = rest.partition(">")
        body = f"{head}{part}{len(text)} {opening}><p>{'<p>Killed'.join(' ' * 40)}</p>{events}"
        route.fulfill(body=body, content_type="text/html")

    page.route("**/live", many_events)
    page.evaluate("window.live.refresh()")
    news = page.locator(".news")
    expect(news).to_contain_text("Killed")
    news.focus()
    news.evaluate("each => { each.scrollTop = 10; each.dataset.same = 'another second'; }")

    page.evaluate("window.live.refresh()")

    expect(news).not_to_have_attribute("data-same", "another second")
    expect(news).to_be_focused()
    assert news.evaluate("each => each.scrollTop") == 10


@one_window
def test_the_tab_that_was_pressed_last_is_shown(page: Page, stack: Stack) -> None:
    """Whichever answer comes first; and the address is that tab's."""
    open_sum(page, stack, "in-tabs")
    held: list[Route] = []
    page.route("**/*tab=code*", lambda route: held.append(route))
    page.get_by_role("link", name="The code that ran").click()
    wait_until(page, lambda: bool(held))
    page.get_by_role("link", name="Batches").click()
    expect(page.locator("#batches-title")).to_be_visible()

    with page.expect_response(re.compile("tab=code")):
        held[0].continue_()
    page.wait_for_timeout(500)

    expect(page.locator("#batches-title")).to_be_visible()
    assert "tab=batches" in page.url


@one_window
def test_a_press_of_the_right_button_does_not_stop_a_page(page: Page, stack: Stack) -> None:
    """Its menu opens with the press on some systems, and the page is not told of the release."""
    open_sum(page, stack, "right-button")
    expect_still(page)
    page.locator("#live .numbers").hover()
    page.mouse.down(button="right")

    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_label("Amount may be negative").fill("7")
    press(other, other.get_by_role("button", name="Add it"))

    expect(page.locator("#live .numbers dd").first).to_have_text("7", timeout=30_000)
