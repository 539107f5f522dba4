"""A trace in a real browser: a waterfall by keyboard, on a phone and in the dark."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.forms import width_beyond
from tests.browser.looks import violations
from tests.infra.stack import Stack, until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


@pytest.fixture(scope="package")
def trace_url(busy: Stack) -> str:
    """The trace of the request that pasted a list of guests, with the tasks that it caused."""
    pasted: list[str] = []

    def has_arrived() -> bool:
        traces = busy.control("/api/v1/traces?q=import-guests")["traces"]
        pasted[:] = [trace["id"] for trace in traces if trace["name"].startswith("POST /")]
        return bool(pasted)

    until(has_arrived, 60)
    return f"{busy.console}/traces/{pasted[0]}"


def test_a_waterfall_is_accessible(trace_url: str, browser: Browser) -> None:
    """No violation by axe, by day and on a phone at night, with each span open."""
    page = browser.new_page(reduced_motion="reduce")
    faults = violations(page, trace_url)
    page.close()

    assert faults == {}


def test_a_trace_leads_by_keyboard_from_the_request_to_its_task(trace_url: str, page: Page) -> None:
    """Each line is a stop of the tab key, enter opens it, and its task is a link in it."""
    page.goto(trace_url)
    line = page.locator(".waterfall summary").filter(has_text="import-guests").first

    line.focus()
    page.keyboard.press("Enter")
    task = page.get_by_role("link", name="Its task", exact=True).first
    expect(task).to_be_visible()
    assert width_beyond(page) == 0
    task.press("Enter")

    expect(page).to_have_url(re.compile("/tasks/[^/]+/[^/]+$"))
    page.get_by_role("link", name="What caused it").click()
    expect(page).to_have_url(trace_url)


def test_a_waterfall_needs_no_script(trace_url: str, browser: Browser) -> None:
    """Lines open, and bars have their places: they are not drawn by a style or a script."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(trace_url)
    first = page.locator(".waterfall li").first

    first.locator("summary").click()
    expect(first.get_by_text("Kind")).to_be_visible()
    box = first.locator("svg").bounding_box()
    context.close()

    assert box is not None
    assert box["width"] > 100
