"""A browser on the whole stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from rollforward.local.system import debian
from rollforward.local.system.debian import CHROMIUM_SHELL, CHROMIUMS
from tests.browser.forms import TIMEOUT_MS
from tests.infra.stack import Stack, running_stack

# Of each claim about a page. By itself it is 5 s: on a busy machine a page may need more.
expect.set_options(timeout=TIMEOUT_MS)

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium() -> str | None:
    """Return the path of a Chromium, None if there is none and none can be had."""
    return debian.find(*CHROMIUMS) or debian.install(CHROMIUM_SHELL, *CHROMIUMS)


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    """Not longer than its tests: it works also without visitors."""
    with running_stack() as running:
        yield running


# Not longer: Playwright keeps an event loop in this thread, and `asyncio.run` of other tests fails.
@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    program = chromium()
    if program is None:
        pytest.skip(
            f"Chromium is missing: apt-get install {CHROMIUM_SHELL}, or brew install chromium"
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=QUIET)
        yield launched
        launched.close()


@pytest.fixture
def problems() -> list[str]:
    """Complaints of the page: script errors, refused content."""
    return []


@pytest.fixture(params=[1280, 375], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, browser: Any, problems: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    tab = context.new_page()
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda entry: problems.append(entry.text) if entry.type == "error" else None)
    yield tab
    context.close()
