"""The documentation site in a real browser: by day and at night, at a desk and on a phone."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.theme.hooks import MERMAID
from tests.browser.forms import width_beyond
from tests.browser.looks import AXE, LOOKS, RUN_AXE, turn
from tests.documents.built_site import built_site
from tests.infra.documents import DOCUMENTS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

PAGES = ("", "tutorial/", "concepts/outbox/", "reference/api/", "operations/", "howto/deploy/")
# The theme's lists have one label each, and a block of code has the next one's.
PARDONED = ("landmark-unique",)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, served as files."""
    handler = functools.partial(_Quiet, directory=str(built_site(tmp_path_factory)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/dev/"
        server.shutdown()
        thread.join()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("path", PAGES)
def test_everybody_can_read_a_page(tab: Page, site: str, path: str) -> None:
    """axe finds nothing, no page is wider than its window, and no other host is asked."""
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(site + path, wait_until="networkidle")
    tab.evaluate(AXE)

    faults = []
    for window in LOOKS:
        turn(tab, window)
        tab.wait_for_timeout(300)  # The theme fades from one palette to the other.
        found = tab.evaluate(RUN_AXE, None)
        faults += [f"{window} {fault}" for fault in found if not fault.startswith(PARDONED)]
        faults += [f"{window} is too wide"] if width_beyond(tab) > 0 else []

    assert faults == []
    assert [url for url in asked if not url.startswith((site.removesuffix("dev/"), "data:"))] == []


def test_a_search_finds_a_page_by_the_keyboard(tab: Page, site: str) -> None:
    """`/` opens it, and Enter follows the first result."""
    tab.goto(site)
    tab.keyboard.press("/")
    tab.keyboard.type("watermark", delay=20)
    expect(tab.locator(".md-search-result__item").first).to_be_visible()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")

    expect(tab.locator("h1")).not_to_have_text("Documentation")


@pytest.mark.skipif(not MERMAID.exists(), reason="npm ci --prefix docs/theme brings mermaid")
@pytest.mark.parametrize(
    "path",
    [path.stem for path in DOCUMENTS if "```mermaid" in path.read_text()],
)
def test_each_diagram_is_drawn(tab: Page, site: str, path: str) -> None:
    """A mistake in one is shown as an error, and not as a picture."""
    folder = "" if path == "architecture" else "concepts/"
    problems: list[str] = []
    tab.on("console", lambda entry: problems.append(entry.text) if entry.type == "error" else None)
    tab.goto(f"{site}{folder}{path}/")
    expect(tab.locator("div.mermaid").first).to_be_visible()

    assert tab.locator("pre.mermaid").count() == 0
    assert tab.evaluate("document.querySelector('div.mermaid').offsetHeight") > 100
    assert problems == []


def test_a_diagram_stays_text_without_mermaid(tab: Page, site: str) -> None:
    """It is readable, and nothing is fetched from elsewhere."""
    if MERMAID.exists():
        pytest.skip("mermaid is there")
    tab.goto(f"{site}concepts/outbox/")

    expect(tab.locator("pre.diagram-source")).to_contain_text("sequenceDiagram")
