"""What tests in a browser share: pressing a button, the width of a page, and one window size."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.explorer import IS_EXHAUSTIVE

TIMEOUT_MS = 60_000

# For what does not depend on the window: both sizes with SOAK=1.
one_window = pytest.mark.parametrize(
    "page", [1280, 375] if IS_EXHAUSTIVE else [1280], indirect=True
)


def press(page: Page, button: Locator) -> None:
    """Press a button and wait for the page that it leads to: the old one proves nothing."""
    with page.expect_navigation():
        button.click()


def refresh_until_still(page: Page) -> None:
    """Follow the link that stands in for the script, until nothing changes any more."""
    for _ in range(60):
        press(page, page.get_by_role("link", name="Refresh"))
        if page.locator("#live").get_attribute("data-moving") == "no":
            return
        page.wait_for_timeout(500)


def expect_still(page: Page) -> None:
    """Wait until nothing changes any more."""
    expect(page.locator("#live")).to_have_attribute("data-moving", "no", timeout=TIMEOUT_MS)


def check_width(page: Page) -> None:
    width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, "the page is wider than the window"
