"""Smooth pages: ten thousand dots, ten pages in view at once, and nothing to do at rest.

Work is counted: a busy machine slows a page by the clock, and `python -m tests.browser.smoothness`
measures the time of its thread.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.demos.test_invitations import create_party
from tests.browser.demos.test_sums import open_sum
from tests.browser.forms import TIMEOUT_MS, expect_still, press, wait_until
from tests.browser.smoothness import (
    DRAW_AT_ONCE,
    SET_PICTURE,
    at_rest,
    longest_cpu_ms,
    made_up_picture,
    party_of,
    taken,
    watched,
)
from tests.browser.test_live import NO_SHARED_WORKER, SHOW
from tests.infra.documents import ROOT
from tests.infra.pictures import settled, submit
from tests.infra.runs import sampling
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

DOTS = 10_000
PAGE_SIZE = 100
SLICE_DOTS = 1_000  # Of static/picture.js; the last box of a slice may go beyond it.
REST_MS = 10_000
MAX_SHARE = 5.0  # Of a core, in %.
SCRIPT = "text/javascript"
OPEN_PAGES = (
    *("/sums/smooth", "/invitations", "/counters", "/sums", "/grades", "/blog"),
    *("/quilt", "/orders", "/streams/weblog", "/zeitgeist"),
)
# A new worker that starts slowly, on a busy machine, is not waited for.
ANY_STREAM = re.compile("shared|own")
# What was drawn since the last call; `most` is the largest slice.
TAKE_DRAWN = """() => {
  const { slices, dots, mostDots } = window.stage.drawn;
  Object.assign(window.stage.drawn, { slices: 0, dots: 0, mostDots: 0, mostMs: 0 });
  return { slices, dots, most: mostDots };
}"""


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser of its own, whose pages are all in view."""
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


def drawn(page: Page) -> dict[str, int]:
    """Wait until nothing is left to draw; return what was drawn since the last call."""
    total = {"slices": 0, "dots": 0, "most": 0}

    def rests() -> bool:
        taken_now: dict[str, int] = page.evaluate(TAKE_DRAWN)
        total["slices"] += taken_now["slices"]
        total["dots"] += taken_now["dots"]
        total["most"] = max(total["most"], taken_now["most"])
        return total["slices"] > 0 and taken_now["slices"] == 0

    wait_until(page, rests, 300)
    return total


def test_ten_thousand_dots_are_drawn_in_slices(context: BrowserContext, stack: Stack) -> None:
    """While it loads, is resized and turns dark; and what has not changed is not drawn again."""
    page = watched(context.new_page())
    create_party(page, stack)
    page.locator("[data-live-toggle]").click()
    canvas = page.locator("canvas[data-picture]")
    drawn(page)

    def show(sent: int) -> dict[str, int]:
        canvas.evaluate(SET_PICTURE, made_up_picture(DOTS, sent, PAGE_SIZE))
        return drawn(page)

    def resize() -> dict[str, int]:
        page.set_viewport_size({"width": 1000, "height": 800})
        return drawn(page)

    def turn() -> dict[str, int]:
        page.locator("[data-theme-toggle]").click()
        return drawn(page)

    loaded, resized, dark = show(0), resize(), turn()
    for whole in (loaded, resized, dark):
        assert whole["dots"] >= DOTS
        assert whole["slices"] >= DOTS / (SLICE_DOTS + PAGE_SIZE)
        assert whole["most"] < SLICE_DOTS + PAGE_SIZE
    page.emulate_media(reduced_motion="reduce")  # New dots would glow, frame by frame.
    some = show(PAGE_SIZE)
    assert 0 < some["dots"] < DOTS / 4
    assert canvas.evaluate("(canvas) => canvas.width > 0 && !canvas.hidden")
    sys.stdout.write(f"long tasks in ms: {taken(page)['tasks']}\n")


def longest_tasks(browser: Browser, page: Page) -> dict[str, float]:
    """Return the longest task of each stretch of a run of ten thousand, by processor time."""
    canvas = page.locator("canvas[data-picture]")

    def show(sent: int) -> Callable[[], object]:
        picture = made_up_picture(DOTS, sent, PAGE_SIZE)
        return lambda: (canvas.evaluate(SET_PICTURE, picture), drawn(page))

    def resize() -> None:
        wide = page.viewport_size == {"width": 1280, "height": 900}
        page.set_viewport_size({"width": 1000 if wide else 1280, "height": 800 if wide else 900})
        drawn(page)

    acts = {"load": show(0), "run": show(DOTS // 2), "end": show(DOTS), "resize": resize}
    return {name: longest_cpu_ms(browser, page, act) for name, act in acts.items()}


@pytest.mark.parametrize("is_sliced", [True, False], ids=["sliced", "planted"])
def test_no_task_is_as_long_as_drawing_all_dots_at_once(
    browser: Browser, context: BrowserContext, stack: Stack, is_sliced: bool
) -> None:
    """The page itself draws as many in one task, which it is judged by: 41 ms here, and 5.7 ms.

    Where nothing ends a slice it is 17 ms, and the same measure shows it; the bound is the
    geometric mean of both, so that either side may be off by two thirds.
    """
    page = context.new_page()
    if not is_sliced:
        source = (ROOT / "static/picture.js").read_text(encoding="utf-8")
        whole = re.sub(r"(SLICE_\w+ = )\d+", r"\g<1>1e9", source)
        assert whole != source
        page.route("**/picture.js*", lambda route: route.fulfill(body=whole, content_type=SCRIPT))
    create_party(page, stack)
    page.locator("[data-live-toggle]").click()
    draw_at_once = partial(page.evaluate, DRAW_AT_ONCE, DOTS)
    # A trace may miss one.
    at_once = max(longest_cpu_ms(browser, page, draw_at_once) for _ in range(3))

    rounds = [longest_tasks(browser, page) for _ in range(2)]
    # Collections of garbage come in one of them.
    longest = {act: min(seen[act] for seen in rounds) for act in rounds[0]}

    sys.stdout.write(f"all at once {at_once:.0f} ms of CPU, the page {longest}\n")
    assert (max(longest.values()) < at_once / 4) == is_sliced


@sampling.long
def test_a_party_asks_for_nothing_while_another_one_sends(
    context: BrowserContext, stack: Stack
) -> None:
    """Its page listens to its own updates; the other page asks, as the mails are sent."""
    mine, other = party_of(stack, 10), party_of(stack, 100)
    submit(stack, mine, "/send", pace="fast")
    settled(stack, mine)
    asked: dict[str, list[str]] = {mine: [], other: []}
    for path, urls in asked.items():
        page = context.new_page()
        page.goto(stack.app + path)
        expect(page.locator("#live")).to_have_attribute("data-listens", "shared")
        page.on("request", lambda request, seen=urls: seen.append(request.url))

    def rests() -> bool:
        asked[mine].clear()
        page.wait_for_timeout(REST_MS / 2)
        return not asked[mine]

    wait_until(page, rests)  # It may look once more at what has just ended.
    submit(stack, other, "/send", pace="watch")
    expect(page.locator("#live[data-moving=yes]")).to_be_attached()
    expect_still(page)

    assert [url for url in asked[mine] if "/live" in url] == []
    assert [url for url in asked[other] if "/live" in url] != []


def open_pages(context: BrowserContext, stack: Stack) -> dict[Page, list[str]]:
    """Open ten pages, all of them in view, with the requests that each of them makes."""
    first = context.new_page()
    open_sum(first, stack, "smooth")
    expect_still(first)
    first.close()
    requests: dict[Page, list[str]] = {}
    for path in OPEN_PAGES:
        page = watched(context.new_page())
        requests[page] = []
        page.on("request", lambda request, seen=requests[page]: seen.append(request.url))
        page.goto(stack.app + path, timeout=TIMEOUT_MS)
    return requests


def test_ten_pages_of_a_browser_share_a_connection(context: BrowserContext, stack: Stack) -> None:
    """The seventh loads like the first: none of them has a stream of its own."""
    requests = open_pages(context, stack)

    for page in requests:
        if page.locator("[data-updates]").count():
            listens = page.locator("[data-updates]").first
            expect(listens).to_have_attribute("data-listens", "shared", timeout=TIMEOUT_MS)
    assert not [url for urls in requests.values() for url in urls if "/events" in url]


@sampling.long
def test_at_rest_pages_do_nothing(context: BrowserContext, stack: Stack) -> None:
    """In ten seconds they draw nothing, and run and ask for next to nothing."""
    requests = open_pages(context, stack)
    some_page = next(iter(requests))

    def has_come_to_rest() -> bool:
        for urls in requests.values():
            urls.clear()
        some_page.wait_for_timeout(REST_MS / 2)
        return not any(requests.values())

    wait_until(some_page, has_come_to_rest)
    for page in requests:
        taken(page)
    some_page.wait_for_timeout(REST_MS)

    done: dict[str, Any] = {}
    for page, urls in requests.items():
        counts = taken(page)
        # One look now and then, for what nobody tells.
        is_quiet = counts["timers"] <= 2 and len(urls) <= 2
        if counts["frames"] or counts["animations"] or not is_quiet:
            done[page.url] = counts, urls
    assert done == {}


def test_a_page_that_is_told_of_nothing_new_looks_once(
    context: BrowserContext, stack: Stack
) -> None:
    """It asks once, and rests again: a pipeline at rest, too, is looked after each minute."""
    page = watched(context.new_page())
    open_sum(page, stack, "told")
    expect_still(page)
    expect(page.locator("#live")).to_have_attribute("data-listens", "shared")
    page.wait_for_timeout(REST_MS / 4)
    taken(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    submit(stack, "/sums", "/sums", name="told")  # It exists: nothing changes.
    wait_until(page, lambda: asked != [])
    page.wait_for_timeout(REST_MS / 2)

    assert len(asked) == 1
    assert taken(page)["timers"] == 1


# A page that draws without pause, as one would whose animation is not stopped.
BUSY = """() => {
  const canvas = document.createElement("canvas");
  const pen = Object.assign(canvas, { width: 1280, height: 900 }).getContext("2d");
  const draw = () => {
    for (let i = 0; i < 20000; i += 1) pen.fillRect((i * 37) % 1280, (i * 91) % 900, 4, 4);
    pen.getImageData(0, 0, 1, 1);
    requestAnimationFrame(draw);
  };
  draw();
}"""


@sampling.long
@pytest.mark.parametrize("is_busy", [False, True], ids=["at rest", "planted"])
def test_at_rest_a_page_takes_a_twentieth_of_a_core_at_most(
    context: BrowserContext, stack: Stack, is_busy: bool
) -> None:
    """By the processor time of its tasks; 0.2 % here. One that draws all the time takes more."""
    shares: dict[str, float] = {}
    for page in open_pages(context, stack):
        wait_until(page, lambda page=page: page.locator("#live[data-moving=yes]").count() == 0)
        page.bring_to_front()
        if is_busy:
            page.evaluate(BUSY)
        page.wait_for_timeout(REST_MS / 4)
        shares[page.url], _ = at_rest(page, REST_MS / 2000)
        page.close()
        if is_busy:
            break

    sys.stdout.write(f"% of a core: { {url: round(share, 2) for url, share in shares.items()} }\n")
    assert (max(shares.values()) <= MAX_SHARE) != is_busy


def add(page: Page) -> str:
    """Add to a sum; return its new total."""
    page.get_by_label("Amount may be negative").fill("7")
    press(page, page.get_by_role("button", name="Add it"))
    expect(page.locator(".sum-up")).to_contain_text("Adds up", timeout=TIMEOUT_MS)
    return page.locator(".sum-up").inner_text()


def expect_told(page: Page, total: str) -> None:
    """Wait until a page shows a total that another one has led to."""
    now = page.locator(".sum-up")
    expect(now).to_have_text(total, use_inner_text=True, timeout=TIMEOUT_MS)


def test_pages_come_and_go_and_the_worker_dies(
    browser: Browser, context: BrowserContext, stack: Stack
) -> None:
    """A page that is hidden, closed or gone back to leaves the stream; another worker follows."""
    other = browser.new_page()
    open_sum(other, stack, "shared")
    pages = [context.new_page() for _ in range(3)]
    for page in pages:
        page.goto(other.url)
        expect(page.locator("#live")).to_have_attribute("data-listens", "shared")
    pages[0].close()
    pages[1].evaluate(SHOW, False)
    expect(pages[1].locator("#live[data-listens]")).to_have_count(0)
    expect_told(pages[2], add(other))

    pages[1].evaluate(SHOW, True)
    pages[2].goto(stack.app + "/invitations")
    pages[2].go_back()
    for page in pages[1:]:
        expect(page.locator("#live")).to_have_attribute("data-listens", ANY_STREAM)
        expect_told(page, add(other))

    devtools = browser.new_browser_cdp_session()
    targets = devtools.send("Target.getTargets")["targetInfos"]
    workers = [target for target in targets if target["type"] == "shared_worker"]
    assert workers
    for worker in workers:
        devtools.send("Target.closeTarget", {"targetId": worker["targetId"]})
    total = add(other)
    for page in pages[1:]:
        expect_told(page, total)
        expect(page.locator("#live")).to_have_attribute("data-listens", ANY_STREAM)
    other.close()


# As a browser that stores nothing for the site.
FORBIDDEN_WORKER = "window.SharedWorker = class { constructor() { throw new Error('forbidden'); } }"


NO_LOCKS = NO_SHARED_WORKER + "; Object.defineProperty(navigator, 'locks', { value: undefined });"


def listeners(pages: list[Page]) -> list[int]:
    """Return the indexes of the pages that have a stream."""
    return [i for i, page in enumerate(pages) if page.locator("#live[data-listens]").count()]


@pytest.mark.parametrize("script", [NO_SHARED_WORKER, FORBIDDEN_WORKER], ids=["none", "forbidden"])
def test_without_shared_workers_one_page_in_view_has_a_stream(
    context: BrowserContext, stack: Stack, script: str
) -> None:
    """As in Chromium on phones; eight pages load, hear of changes, and hand the stream on."""
    context.add_init_script(script)
    pages = [context.new_page()]
    open_sum(pages[0], stack, "alone")
    for _ in range(7):
        pages.append(context.new_page())
        pages[-1].goto(pages[0].url)
    wait_until(pages[0], lambda: len(listeners(pages)) == 1)
    total = add(pages[-1])
    for page in pages:
        expect_told(page, total)

    (speaker,) = listeners(pages)
    pages[speaker].evaluate(SHOW, False)
    wait_until(pages[0], lambda: len(listeners(pages)) == 1 and speaker not in listeners(pages))
    hidden = pages.pop(speaker)
    pages.pop(listeners(pages)[0]).close()
    wait_until(hidden, lambda: len(listeners(pages)) == 1)
    assert not listeners([hidden])
    total = add(pages[-1])
    hidden.evaluate(SHOW, True)
    for page in [*pages, hidden]:
        expect_told(page, total)


def test_without_locks_pages_ask(context: BrowserContext, stack: Stack) -> None:
    """As Safari before 15.4: none has a stream, and each shows what changes."""
    context.add_init_script(NO_LOCKS)
    pages = [context.new_page(), context.new_page()]
    open_sum(pages[0], stack, "old")
    pages[1].goto(pages[0].url)

    total = add(pages[1])
    expect_told(pages[0], total)
    assert listeners(pages) == []
