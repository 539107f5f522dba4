"""Zeitgeist, in a real browser, on the real stack: broken in each way, and the same in the end."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from handlers.shared.formatting import number
from pipelines.zeitgeist.playbacks import Playback, current
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS
from tests.browser.demos.test_sums import keep
from tests.browser.forms import (
    TIMEOUT_MS,
    broken_in_view,
    check_width,
    expect_still,
    not_by_kills,
    one_window,
    press,
)
from tests.infra.stack import Stack, until
from tests.pipelines.zeitgeist.test_detector import series

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

FEEDS = ("tokyo", "paris", "austin")
DAYS = 7
# By then the detector knows each series.
KNOWN_DAYS = 3.2
FIRST = datetime.datetime(2015, 3, 2, tzinfo=datetime.UTC)


def write_series(folder: Path, name: str, seed: int, days: int = DAYS) -> Path:
    """Write counts with a daily rhythm, in which nothing is odd."""
    rows = [
        f"{FIRST + datetime.timedelta(milliseconds=at):%Y-%m-%d %H:%M:%S},{count}"
        for at, count in series(days, seed=seed)
    ]
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["timestamp,value", *rows]) + "\n")
    return path


def play(page: Page, files: list[Path]) -> None:
    page.get_by_label("CSV files").set_input_files(files)
    page.locator("#files-speed").select_option("100000")
    press(page, page.get_by_role("button", name="Play these files"))


def playback(stack: Stack) -> Playback:
    with stack.context():
        playback = current()
    assert playback is not None
    return playback


def wait_for(stack: Stack, claim: Callable[[Playback], bool]) -> Playback:
    until(lambda: claim(playback(stack)), timeout_s=TIMEOUT_MS / 1000, every_s=0.1)
    return playback(stack)


def set_speed(page: Page, speed: int) -> None:
    page.locator("#live #speed").select_option(str(speed))
    press(page, page.get_by_role("button", name="Set speed"))


def push_button(page: Page, name: str, role: str = "button") -> None:
    press(page, page.locator("#live").get_by_role(role, name=name))  # type: ignore[arg-type]


def came(page: Page) -> int:
    """Return how many records have come in since the pipeline began."""
    match = re.match(r"[\d\u202f]+", page.locator("#graph-title .quiet").inner_text())
    assert match is not None
    return int(match[0].replace("\u202f", ""))


def told(page: Page) -> list[str]:
    """Return the alerts, the newest first: kind and query."""
    return [
        f"{row.locator('.told').inner_text().split()[-1]} {row.locator('a').inner_text()}"
        for row in page.locator(".told-list li").all()
    ]


@broken_in_view
@one_window
def test_it_is_broken_in_each_way_and_has_what_a_plain_run_has(
    page: Page, stack: Stack, problems: list[str], tmp_path: Path
) -> None:
    """G10, G15: a delayed feed is no dip and an outage is one, under any fault of the pipeline."""
    refused: list[str] = []
    page.on(
        "response",
        lambda response: refused.append(response.url) if response.status == 503 else None,
    )
    page.goto(f"{stack.app}/zeitgeist")
    earlier = came(page)  # Of other tests.
    play(page, [write_series(tmp_path, name, seed) for seed, name in enumerate(FEEDS)])
    wait_for(stack, lambda now: now.front >= now.begin + KNOWN_DAYS * DAY_MS)
    set_speed(page, 3_000)

    push_button(page, "Overlaps", "switch")
    push_button(page, "Delay tokyo", "switch")
    push_button(page, "Add a worker")
    push_button(page, "Split an interval")
    expect(page.locator(".notices")).to_contain_text("4 intervals before, 5 now")
    push_button(page, "Detector v1 → v2")
    wait_for(stack, lambda now: now.front >= now.reached["tokyo"] + HOUR_MS)
    expect(page.locator("#graph-title")).to_contain_text("tokyo delayed")
    expect(page.locator(".pipeline")).to_contain_text("detector v2", timeout=TIMEOUT_MS)
    assert [alert for alert in told(page) if alert.startswith("dip")] == []
    keep(page, "zeitgeist-held")

    push_button(page, "Delay tokyo", "switch")
    push_button(page, "Start a rumour ×10")
    expect(page.locator(".told-list")).to_contain_text("spike tokyo", timeout=TIMEOUT_MS)
    page.locator(".queries").get_by_role("link", name="paris").click()
    expect(page.locator("#chart-title")).to_contain_text("paris")
    push_button(page, "Outage")
    push_button(page, "Kill a worker")
    expect(page.locator(".told-list")).to_contain_text("dip paris", timeout=TIMEOUT_MS)
    expect(page.locator(".told-list li", has_text="dip paris")).to_contain_text("by v2")
    expect(page.locator(".said")).to_contain_text("was killed", timeout=TIMEOUT_MS)
    assert playback(stack).ended_ms is None  # They were told of while the feeds still played.
    check_width(page)
    set_speed(page, 100_000)
    expect_still(page)
    push_button(page, "Overlaps", "switch")

    records = DAYS * DAY_MS // BUCKET_MS * len(FEEDS) + len(FEEDS)  # Each says that it has ended.
    counted = rf"= {number(earlier + records)} counted \+ 0 late \+ 0 dead .*played in"
    expect(page.locator(".closing")).to_have_text(re.compile(counted))
    page.get_by_role("link", name="Compare", exact=True).click()
    for name in ("tokyo", "austin", "paris"):
        if name != "tokyo":
            page.get_by_role("link", name=f"Compare {name}").click()
        compared = page.locator("#compared", has_text=name)
        expect(compared).to_contain_text("The same", timeout=TIMEOUT_MS)
        cells = compared.locator("td").all_inner_texts()
        assert cells[1] == "0"
        assert cells[2] == cells[3]
    keep(page, "zeitgeist-done")
    push_button(page, "Undo splits")
    push_button(page, "Remove one")
    push_button(page, "Detector v2 → v1")
    # A worker that ends takes no stream of events any more.
    assert [url for url in refused if "/events" not in url] == []
    assert [problem for problem in not_by_kills(problems) if "503" not in problem] == []


def test_the_past_is_looked_at_by_keyboard_and_without_javascript(
    browser: Browser, stack: Stack, tmp_path: Path
) -> None:
    """The slider shows a day at once; without a script its form does."""
    page = browser.new_page()
    page.goto(f"{stack.app}/zeitgeist")
    play(page, [write_series(tmp_path, "three-days", 4, days=3)])
    expect_still(page)
    loaded = page.evaluate("performance.timeOrigin")
    slider = page.get_by_role("slider", name="Day")
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator("#chart-title")).to_contain_text("day 2 and the one before it")
    slider.press("ArrowLeft")
    expect(page.locator("#chart-title")).to_contain_text("day 1 and")
    expect(slider).to_be_focused()
    assert page.url.endswith("day=1")
    assert page.evaluate("performance.timeOrigin") == loaded
    address = page.url
    page.close()

    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    expect(page.locator("#chart-title")).to_contain_text("three-days day 1 and")
    page.get_by_role("slider", name="Day").fill("3")
    press(page, page.get_by_role("button", name="Show"))
    expect(page.locator("#chart-title")).to_contain_text("day 3 and")
    press(page, page.get_by_role("link", name="Refresh"))
    context.close()
