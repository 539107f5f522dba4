"""The web log, in a real browser, on the real stack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from handlers.shared.formatting import number, plural
from handlers.weblog.routes import readable_path
from pipelines.weblog.sample import sample_log
from tests.browser.demos.test_sums import keep
from tests.browser.forms import (
    TIMEOUT_MS,
    broken_in_view,
    check_width,
    expect_still,
    not_by_kills,
    one_window,
    press,
    refresh_until_still,
    wait_until,
    without_scripts,
)
from tests.browser.looks import WINDOWS, bottom, turn
from tests.infra.stack import Stack
from tests.pipelines.weblog.test_pipeline import Counts, plain_counts, plain_lines

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

SHARE = re.compile(r"(\d+)\s*%")
BAR_MS = 300_000


def share_read(page: Page) -> int:
    """Return how many percent of the log are read."""
    match = SHARE.search(page.locator(".numbers").inner_text())
    return int(match[1]) if match else 0


def wait_for_share(page: Page, percent: int) -> None:
    wait_until(page, lambda: share_read(page) >= percent)


def expect_counts(page: Page, plain: Counts, requests: int) -> None:
    """Compare the page's counts with a script's counts in memory."""
    closing = f"{plural(requests, 'record')} in = {number(requests)} in windows + 0 late + 0 dead"
    expect(page.locator(".closing")).to_contain_text(closing, timeout=TIMEOUT_MS)
    page.get_by_role("link", name="By computation").click()
    page.wait_for_url("**/streams/weblog#tabs")
    expect(page.locator(".books-table").get_by_text("Adds up")).to_have_count(3)
    written = {
        row.locator("th").inner_text(): row.locator("[data-label=Written]").inner_text()
        for row in page.locator(".stages-table tbody tr").all()
    }
    assert written["hits"] == number(len(plain.hits))
    assert written["sessions"] == number(len(plain.visits))
    assert written["error-rates"] == number(len(plain.rates))
    assert written["top-paths"] == number(len(plain.tops))
    page.get_by_role("link", name="Newest results").click()
    top = page.get_by_role("heading", name="Top paths of an hour")
    expect(top).to_be_visible(timeout=TIMEOUT_MS)
    cells = page.locator("section[aria-labelledby=tops] td").all_inner_texts()
    newest = [plain.tops[hour] for hour in sorted(plain.tops, reverse=True)[:4]]
    assert cells == [
        cell for top in newest for path, hits in top for cell in (readable_path(path), number(hits))
    ]
    bars = page.locator(".scroll.tall td").all_inner_texts()
    series = {at: counts for at, counts in sorted(plain.rates.items()) if at % BAR_MS == 0}
    assert bars == [number(count) for counts in series.values() for count in counts]


@broken_in_view
@one_window
def test_the_sample_is_counted_while_workers_are_killed(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """Every count equals a plain script's over the file; hits are marked, and heal."""
    page.goto(f"{stack.app}/streams/weblog")
    press(page, page.get_by_role("button", name="Sample"))
    expect(page.locator("#live")).to_have_attribute("data-moving", "yes")
    for percent in (25, 60):
        wait_for_share(page, percent)
        stack.control("/api/v1/workers/kill", {})
    expect(page.locator(".log-chart .watermark")).to_be_attached(timeout=TIMEOUT_MS)
    keep(page, "weblog-running")
    check_width(page)

    expect(page.locator(".closing")).to_contain_text("counted in", timeout=TIMEOUT_MS)
    expect_still(page)
    expect(page.locator(".closing")).to_contain_text("2 workers killed")
    lines = list(sample_log())
    expect_counts(page, plain_counts(lines), len(plain_lines(lines)))
    assert page.locator(".pipeline .was-hit").count() > 0
    expect(page.locator(".pipeline .is-open")).to_have_count(0)
    keep(page, "weblog-done")
    assert not_by_kills(problems) == []
    check_width(page)
    for window in ("desktop", "phone"):
        turn(page, window)
        assert bottom(page) <= WINDOWS[window]["viewport"]["height"], window


@without_scripts
def test_an_upload_without_javascript(browser: Browser, stack: Stack, tmp_path: Path) -> None:
    """By a form; a file that is no log is refused with the reason, and a key can be looked up."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{stack.app}/streams/weblog")
    bad, good = tmp_path / "bad.log", tmp_path / "good.log"
    bad.write_text("nothing of the kind\n")
    line = '192.0.2.7 - - [02/Jan/2020:{}:00 +0000] "GET /only HTTP/1.1" 200 5\n'
    good.write_text("".join(line.format(at) for at in ("10:00", "10:01", "10:01")))
    page.get_by_label("Common or combined format").set_input_files(bad)
    press(page, page.get_by_role("button", name="Read this file"))
    expect(page.locator("#log-error")).to_contain_text("“bad.log”: this is no access log")

    page.get_by_label("Common or combined format").set_input_files(good)
    press(page, page.get_by_role("button", name="Read this file"))
    refresh_until_still(page)

    expect(page.locator(".closing")).to_contain_text("3 records in = 3 in windows")
    expect(page.locator("#log-title")).to_contain_text("2 Jan 2020, 10:00")
    press(page, page.get_by_role("link", name="State of a key"))
    page.get_by_label("Computation", exact=True).select_option("board")
    page.get_by_label("Key a path").fill("tops")
    press(page, page.get_by_role("button", name="Look up"))
    expect(page.locator(".key-states")).to_contain_text("tops")
    context.close()
