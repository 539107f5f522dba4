"""The console in a real browser, on the real stack."""

from __future__ import annotations

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def test_a_queue_is_paused_and_resumed(page: Page, stack: Stack, problems: list[str]) -> None:
    """A form of ours, sent by a browser, is taken for ours."""
    page.goto(f"{stack.console}/queues")

    page.get_by_role("button", name="Pause imports").click()
    expect(page.get_by_role("status")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume imports").click()
    expect(page.get_by_role("status")).to_contain_text("Resumed")

    assert problems == []


def test_the_console_prints_a_token_by_which_a_program_may_call_the_app(stack: Stack) -> None:
    asked = requests.get(f"{stack.console}/api/v1/identity-token", timeout=30)
    api = f"{stack.app}/api/v1/streams/weblog"

    allowed = requests.get(api, headers={"Authorization": f"Bearer {asked.text}"}, timeout=30)

    assert (allowed.status_code, requests.get(api, timeout=30).status_code) == (200, 403)
