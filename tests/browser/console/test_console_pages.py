"""The console in a real browser: axe finds nothing, targets and letters are large enough."""

from __future__ import annotations

import re

import pytest
import requests
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.console.conftest import OTHER_PAGES, links
from tests.browser.forms import wait_until, width_beyond
from tests.browser.looks import cut_parts, drawn, violations
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

PAGES = (
    *("/", "/queues", "/queues/default/purge", "/tasks", "/tasks/all/retry/confirm"),
    *("/data", "/data/kind/ContinuationPage", "/logs", "/traces", "/mail", "/cron"),
    *("/latency", "/workers", "/limits", "/costs", "/faults", "/nothing"),
)


def test_every_page_is_accessible(busy: Stack, browser: Browser) -> None:
    """No violation of WCAG 2.2 AA nor of axe's best practice: by day, and on a phone at night."""
    others = [links(busy, path, pattern)[0] for path, pattern in OTHER_PAGES]
    run = links(busy, others[0], '/runs/continuations/[^"]+')[0]
    paths = [*PAGES, *others, run.replace("/runs/", "/attempts/")]
    page = browser.new_page(reduced_motion="reduce")
    faults: dict[str, list[str]] = {}
    for path in drawn(paths):
        faults |= violations(page, busy.console + path)
    page.close()

    assert faults == {}


def test_why_it_failed_is_found_from_the_run(busy: Stack, page: Page) -> None:
    """The run says which item failed and why, and leads to its task and to what that logged."""
    page.goto(f"{busy.console}/runs")

    page.get_by_role("link", name="import-guests").first.click()
    row = page.get_by_role("row").filter(has_text="Failed")
    expect(row.first).to_contain_text("nothing")
    page.get_by_role("link", name="tasks and attempts").click()
    page.locator("section[aria-labelledby=its-tasks] th a").first.click()
    page.get_by_role("link", name="Its log lines").click()

    expect(page).to_have_url(re.compile("/logs[?]task="))
    expect(page.locator(".log")).to_contain_text("/tasks/continuations/import-guests: 20")


def test_a_list_that_was_waited_for_is_shown_and_not_asked_for_again(
    page: Page, stack: Stack
) -> None:
    """A page of data whose query takes long; the address is asked for until the list is there."""
    asked: list[str] = []
    whole = re.compile('<div id="live-data">.*</div>', re.DOTALL)

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        # The server has only the whole list: it would answer that nothing has changed.
        headers = {**route.request.headers, "if-none-match": ""}
        response = route.fetch(headers=headers)
        waiting = '<div id="live-data" data-live><p class="empty">Reading.</p></div>'
        body = response.text() if len(asked) > 2 else whole.sub(waiting, response.text())
        route.fulfill(response=response, body=body, headers={"Content-Type": "text/html"})

    page.clock.install()
    page.route(f"{stack.console}/data", answer)
    page.goto(f"{stack.console}/data")
    expect(page.get_by_text("Reading.")).to_be_visible()
    expect(page.locator("[data-live-toggle]")).to_be_visible()

    def is_shown() -> bool:
        page.clock.run_for(1000)
        return page.get_by_text("Reading.").count() == 0

    wait_until(page, is_shown)
    expect(page.locator("[data-live-toggle]")).to_be_hidden()
    asked_until_shown = len(asked)  # On a busy machine Datastore may be slow itself.
    page.clock.run_for(60_000)
    page.wait_for_timeout(500)
    assert len(asked) == asked_until_shown >= 3


def test_a_long_path_and_a_long_queue_of_faults_fit_a_phone(stack: Stack, browser: Browser) -> None:
    """On the page of faults, on that of tasks, and in the notice of the app's pages."""
    fault = {"id": "long", "kind": "delay", "rate": 0.01, "path": "/tasks/" + "x" * 490}
    stack.control("/api/v1/faults", fault)
    page = browser.new_page(viewport={"width": 390, "height": 844})
    beyond = {}
    for url in (f"{stack.console}/faults", f"{stack.app}/", f"{stack.app}/counters"):
        page.goto(url)
        expect(page.get_by_text("xxxxxxxx").first).to_be_visible()
        beyond[url] = width_beyond(page)
    page.close()
    requests.delete(f"{stack.console}/api/v1/faults/long", json={}, timeout=30)

    assert {url: more for url, more in beyond.items() if more > 0} == {}


def test_the_head_of_the_console_is_whole_on_a_phone(busy: Stack, browser: Browser) -> None:
    """Its name, the badge of the environment and the current page of its menu."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    cut = {}
    for url in (busy.console, f"{busy.console}/faults", f"{busy.app}/rollforward/audit"):
        page.goto(url)
        cut[url] = cut_parts(page, ".top .brand", ".top .badge", ".rail [aria-current]", "h1")
    page.close()

    assert {url: parts for url, parts in cut.items() if parts} == {}


def test_the_theme_is_switched_and_kept(page: Page, stack: Stack) -> None:
    """On the next page as well; pressed again, the system's choice holds."""
    page.goto(stack.console)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)

    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(ground)
    page.goto(f"{stack.console}/logs")

    assert dark != light
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(ground) == light
    expect(page.get_by_role("button", name="Dark")).to_be_visible()
