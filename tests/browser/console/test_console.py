"""The console in a real browser, on the real stack."""

from __future__ import annotations

import datetime
import secrets

import pytest
import requests
from playwright.sync_api import Page, expect

from rollforward.outbox import drain
from rollforward.outbox.entities import OutboxTask, RowId
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def strand(stack: Stack) -> str:
    """Leave a row in the outbox, as a process that died half a minute ago; return its body."""
    walk = secrets.token_hex(8)
    created = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=30)
    row = RowId(secrets.token_hex(12), created.replace(tzinfo=None), 0, False, "1a2b3c4d")
    body = f'{{"partition": "0", "walk": "{walk}", "after": ""}}'
    with stack.context():
        OutboxTask(id=row.text, path=drain.path, queue=drain.queue, body=body).put()
    return walk


def test_a_queue_is_paused_and_resumed(page: Page, stack: Stack, problems: list[str]) -> None:
    """A form of ours, sent by a browser, is taken for ours."""
    page.goto(f"{stack.console}/queues")

    page.get_by_role("button", name="Pause imports").click()
    expect(page.get_by_role("status")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume imports").click()
    expect(page.get_by_role("status")).to_contain_text("Resumed")

    assert problems == []


def test_a_stranded_row_is_seen_and_swept(page: Page, stack: Stack, problems: list[str]) -> None:
    """The row is there with its arguments, fits the page, and is gone after the sweep."""
    body = strand(stack)
    page.goto(f"{stack.console}/outbox")

    row = page.get_by_role("row").filter(has_text=body)
    row.get_by_text("Body", exact=True).first.click()
    expect(row).to_contain_text(drain.path)
    width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    page.get_by_role("button", name="Sweep now").click()
    expect(page.get_by_role("status")).to_contain_text("Swept")

    expect(row).to_have_count(0)
    assert width <= 0, "the page is wider than the window"
    assert problems == []


def test_the_console_prints_a_token_by_which_a_program_may_call_the_app(stack: Stack) -> None:
    asked = requests.get(f"{stack.console}/api/v1/identity-token", timeout=30)
    api = f"{stack.app}/api/v1/streams/weblog"

    allowed = requests.get(api, headers={"Authorization": f"Bearer {asked.text}"}, timeout=30)

    assert (allowed.status_code, requests.get(api, timeout=30).status_code) == (200, 403)
