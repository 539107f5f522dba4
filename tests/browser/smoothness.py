"""The smoothness of the demo pages in Chromium, as a table: before a change and after it.

    python -m tests.browser.smoothness [drawing stage idle tabs others] [--guests 10000]

- stage: the tasks of a party's page while it loads, runs, is resized and turns dark.
- drawing: the same of a run that is made up, so that no server is in its way.
- idle: ten seconds of each page on which nothing changes, as counts and as a share of a core.
- tabs: pages of one browser that load beside others, and the streams that they hold.
- others: requests of a party's page while another party sends.

A task is measured by the time of its thread as well as by the clock, which a busy machine slows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, TimeoutError, sync_playwright

from handlers.invitations.stage import as_data, packed
from tests.browser.conftest import QUIET, chromium
from tests.infra.pictures import settled, submit
from tests.infra.stack import Stack, running_stack

PARTS = ("drawing", "tabs", "others", "idle", "stage")
CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]
GUESTS = 10_000
# Counts what a page does by itself: long tasks, frames it asked for, and timers that fired.
WATCH = """(() => {
  const seen = window.smoothness = { tasks: [], frames: 0, timers: 0 };
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) seen.tasks.push(Math.round(entry.duration));
  }).observe({ type: "longtask", buffered: true });
  const { requestAnimationFrame: frame, setTimeout: timeout, setInterval: interval } = window;
  window.requestAnimationFrame = (act) => frame((at) => { seen.frames += 1; act(at); });
  window.setTimeout = (act, ...rest) => timeout(() => { seen.timers += 1; act(); }, ...rest);
  window.setInterval = (act, ...rest) => interval(() => { seen.timers += 1; act(); }, ...rest);
})()"""
TAKE = """() => {
  const { tasks, frames, timers } = window.smoothness;
  Object.assign(window.smoothness, { tasks: [], frames: 0, timers: 0 });
  const running = document.getAnimations().filter((each) => each.playState === "running");
  return { tasks, frames, timers, animations: running.length };
}"""
SET_PICTURE = "(canvas, picture) => { canvas.dataset.picture = picture; }"
WINDOWS = ((1280, 900), (1000, 800), (700, 900), (1280, 900))
REST_S = 10
IDLE_PAGES = (
    *("/", "/invitations", "/counters", "/sums", "/sums/visitors", "/grades", "/blog"),
    *("/quilt", "/orders", "/tenants", "/streams/weblog", "/zeitgeist", "/numbers"),
)


@dataclass(frozen=True)
class Task:
    """A task of a page's thread: how long it took by the clock, and of its processor."""

    ms: float
    cpu_ms: float


def watched(page: Page) -> Page:
    """Count from the first script on."""
    page.add_init_script(WATCH)
    return page


def taken(page: Page) -> dict[str, Any]:
    """Return the counts since the last call."""
    counts: dict[str, Any] = page.evaluate(TAKE)
    return counts


def main_thread(trace: bytes) -> list[Task]:
    """Return the tasks of the threads that run pages' scripts."""
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        Task(event["dur"] / 1000, event["tdur"] / 1000)
        for event in events
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in mains and "tdur" in event
    ]


@contextlib.contextmanager
def traced(browser: Browser, page: Page, name: str) -> Iterator[None]:
    """Print the tasks of a page meanwhile."""
    browser.start_tracing(page=page, categories=CATEGORIES)
    yield
    tasks = main_thread(browser.stop_tracing())
    worst = max((task.cpu_ms for task in tasks), default=0)
    slowest = max((task.ms for task in tasks), default=0)
    over = sum(task.cpu_ms > 100 for task in tasks)
    busy_s = sum(task.cpu_ms for task in tasks) / 1000
    said = f"  {name:<16} worst task {worst:6.0f} ms of CPU ({slowest:6.0f} ms by the clock)"
    print(f"{said}  over 100 ms {over:>3}  CPU of all {busy_s:5.1f} s", flush=True)


# As many dots as a party of ten thousand, in one task: by which tasks of a page are judged.
DRAW_AT_ONCE = """(count) => {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: 1280, height: 900 });
  const pen = canvas.getContext("2d");
  for (let i = 0; i < count; i += 1) {
    pen.fillStyle = i % 2 ? "#123456" : "#654321";
    pen.beginPath();
    pen.arc((i * 37) % 1280, (i * 91) % 900, 4, 0, 7);
    pen.fill();
    pen.stroke();
  }
  return pen.getImageData(0, 0, 1, 1).data[0];
}"""


def longest_cpu_ms(browser: Browser, page: Page, act: Callable[[], object]) -> float:
    """Return the processor time of the longest task of a page during an action."""
    browser.start_tracing(page=page, categories=CATEGORIES)
    act()
    return max(task.cpu_ms for task in main_thread(browser.stop_tracing()))


# The parts


def party_of(stack: Stack, guests: int) -> str:
    """Return the page of a new party with guests."""
    party = submit(stack, "/invitations", "/invitations")
    submit(stack, party, "/sample-guests", count=str(guests))
    settled(stack, party)
    return party


def stage(stack: Stack, browser: Browser, guests: int) -> None:
    """Print the tasks of a party's page."""
    party = party_of(stack, guests)
    page = watched(browser.new_page(viewport={"width": 1280, "height": 900}))
    with traced(browser, page, "load, before"):
        page.goto(stack.app + party)
        page.wait_for_timeout(2000)
    _turn(browser, page, "before")
    submit(stack, party, "/send", pace="watch")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    with traced(browser, page, "run"), contextlib.suppress(TimeoutError):
        page.locator("#live[data-moving=yes]").wait_for(timeout=30_000)
        page.locator("#live[data-moving=no]").wait_for(timeout=300_000)
    print(f"  {len(requests)} requests of the run; {page.locator('.numbers').inner_text()!r}")
    with traced(browser, page, "load, after"):
        page.reload()
        page.wait_for_timeout(2000)
    _turn(browser, page, "after")
    page.close()


def _turn(browser: Browser, page: Page, when: str) -> None:
    with traced(browser, page, f"resize, {when}"):
        for width, height in WINDOWS:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(700)
    with traced(browser, page, f"theme, {when}"):
        for _ in range(2):
            page.locator("[data-theme-toggle]").click()
            page.wait_for_timeout(700)


def drawing(stack: Stack, browser: Browser, guests: int) -> None:
    """Print the tasks of a picture of a run that is made up, which no server holds up."""
    page = watched(browser.new_page(viewport={"width": 1280, "height": 900}))
    page.goto(stack.app + submit(stack, "/invitations", "/invitations"))
    page.locator("[data-live-toggle]").click()
    with traced(browser, page, "run"):
        for sent in range(0, guests + 1, guests // 30):
            page.locator("canvas").evaluate(SET_PICTURE, made_up_picture(guests, sent))
            page.wait_for_timeout(500)
    _turn(browser, page, "after")
    page.close()


def made_up_picture(guests: int, sent: int, page_size: int = 100, chains: int = 8) -> str:
    """Return the picture of a run that has sent some of its mails, as the server writes it."""
    length = guests // page_size // chains + 1
    boxes: list[list[Any]] = []
    for place in range(guests // page_size):
        number, chain = divmod(place, chains)
        done = max(
            0, min(page_size, round(sent / guests * length * page_size) - number * page_size)
        )
        letters = packed("d" * done + "." * (page_size - done))
        boxes.append([chain, number, letters, done == page_size])
    hits = {f"{chain}:{number}": 1 + chain % 3 for chain, number, *_ in boxes[::9]}
    run = {"run": "made up", "chains": chains, "size": page_size, "expected": guests}
    return as_data({**run, "waiting": 0, "boxes": boxes, "hits": hits, "is_partial": False})


def idle(stack: Stack, browser: Browser, guests: int) -> None:
    """Print what pages do by themselves."""
    submit(stack, "/sums", "/sums", name="visitors")
    for path in IDLE_PAGES:
        page = watched(browser.new_page(viewport={"width": 1280, "height": 900}))
        page.goto(stack.app + path)
        page.wait_for_timeout(5000)
        requests: list[str] = []
        page.on("request", lambda request, seen=requests: seen.append(request.url))
        taken(page)
        share, styles = at_rest(page, REST_S)
        counts = taken(page)
        print(f"  {path:<18} {share:5.1f} % of a core  styles {styles:>4.0f}", end="")
        print(f"  frames {counts['frames']:>4}  timers {counts['timers']:>3}", end="")
        print(f"  animations {counts['animations']}  requests {len(requests)}", flush=True)
        page.close()


def at_rest(page: Page, seconds: float) -> tuple[float, float]:
    """Return the processor time of a page's tasks in % of a core, and its counts of styles."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, began = _metrics(devtools), time.monotonic()
    page.wait_for_timeout(1000 * seconds)
    after, passed_s = _metrics(devtools), time.monotonic() - began
    devtools.detach()
    share = 100 * (after["TaskDuration"] - before["TaskDuration"]) / passed_s
    return share, after["RecalcStyleCount"] - before["RecalcStyleCount"]


def _metrics(devtools: CDPSession) -> dict[str, float]:
    listed = devtools.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in listed}


def tabs(stack: Stack, browser: Browser, guests: int) -> None:
    """Print how many of ten pages of one browser load, all of them in view."""
    context = browser.new_context()
    loaded = 0
    paths = ("/sums/visitors", "/counters", "/grades", "/streams/weblog", "/zeitgeist")
    submit(stack, "/sums", "/sums", name="visitors")
    for number in range(1, 11):
        page = context.new_page()
        try:
            page.goto(stack.app + paths[number % len(paths)], timeout=15_000)
            page.wait_for_timeout(1000)
            loaded += 1
        except TimeoutError:
            print(f"  page {number} does not load")
    print(f"  {loaded} of 10 pages load", flush=True)
    context.close()


def others(stack: Stack, browser: Browser, guests: int) -> None:
    """Print the requests of a party's page while another party sends."""
    mine, other = party_of(stack, 10), party_of(stack, 1000)
    submit(stack, mine, "/send", pace="fast")
    settled(stack, mine)
    page = watched(browser.new_page())
    page.goto(stack.app + mine)
    page.wait_for_timeout(5000)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    submit(stack, other, "/send", pace="watch")
    ends_at = time.monotonic() + 15
    while time.monotonic() < ends_at:
        page.wait_for_timeout(500)
    print(f"  {len(requests)} requests in 15 s of another party's send", flush=True)
    page.close()
    settled(stack, other)


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=QUIET)
        yield browser
        browser.close()


def main() -> None:
    """Print the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--guests", type=int, default=GUESTS)
    options = parser.parse_args()
    acts = {"drawing": drawing, "stage": stage, "idle": idle, "tabs": tabs, "others": others}
    with running_stack() as stack, opened() as browser:
        for name in options.parts or PARTS:
            print(name, flush=True)
            acts[name](stack, browser, options.guests)


if __name__ == "__main__":
    main()
