"""The console in a real browser: axe finds nothing, targets and letters are large enough."""

from __future__ import annotations

import re

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from tests.browser.looks import drawn, violations
from tests.infra.stack import Stack, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

PAGES = (
    *("/", "/queues", "/queues/default/purge", "/tasks", "/tasks/all/retry/confirm"),
    *("/data", "/data/kind/ContinuationPage", "/logs", "/mail", "/cron"),
    *("/faults", "/nothing"),
)
# Pages of one thing, which are there when the app has worked: where they are linked, and how.
OTHER_PAGES = (
    ("/runs", '/runs/continuations/[^"]+'),
    ("/tasks?state=done", '/tasks/imports/[^"]+'),
    ("/data/kind/ContinuationPage", '/data/entity[^"]+'),
)


@pytest.fixture(scope="package")
def busy(stack: Stack) -> Stack:
    """A stack that has worked: a run with its tasks, mails and lines."""
    page = stack.visitor.get(f"{stack.app}/invitations", timeout=30).text
    csrf, form_id = (
        re.search(rf'name="{n}" value="([^"]+)"', page)[1] for n in ("csrf_token", "id")
    )  # type: ignore[index]
    party = {"title": "T", "host": "H", "place": "P", "when": "2030-05-01T19:30", "note": ""}
    stack.visitor.post(
        f"{stack.app}/invitations", data={"csrf_token": csrf, "id": form_id, **party}, timeout=30
    )
    url = f"{stack.app}/invitations/{form_id}"
    stack.post(f"{url}/guests", page=url, pasted="name,email\nAda,ada@example.com\nNo,nothing")
    until(lambda: all(links(stack, path, pattern) for path, pattern in OTHER_PAGES), 60)
    return stack


def links(stack: Stack, path: str, pattern: str) -> list[str]:
    text = requests.get(stack.console + path, timeout=30).text
    return [link.replace("&amp;", "&") for link in re.findall(rf'href="({pattern})"', text)]


def test_every_page_is_accessible(busy: Stack, browser: Browser) -> None:
    """No violation of WCAG 2.2 AA nor of axe's best practice: by day, and on a phone at night."""
    paths = [*PAGES, *(links(busy, path, pattern)[0] for path, pattern in OTHER_PAGES)]
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
    page.locator("section[aria-labelledby=its-tasks] th a").first.click()
    page.get_by_role("link", name="Its log lines").click()

    expect(page).to_have_url(re.compile("/logs[?]task="))
    expect(page.locator(".log")).to_contain_text("/tasks/continuations/import-guests: 20")


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
