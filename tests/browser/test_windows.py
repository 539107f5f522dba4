"""Every page of the app, in a real browser: everybody can use it, and what moves fits the window.

The last file of its folder: what the tests before it have done is on the pages, too.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pipelines.weblog.sample import sample_log
from tests.browser.demos.test_blog import publish, say
from tests.browser.demos.test_grades import add_list
from tests.browser.demos.test_invitations import GUESTS, LIST, create_party, send, upload
from tests.browser.demos.test_sums import open_sum, start_load
from tests.browser.demos.test_zeitgeist import play, write_series
from tests.browser.forms import TIMEOUT_MS, expect_still, press
from tests.browser.looks import WINDOWS, beyond, bottom, cut_parts, drawn, turn, violations
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

# Of which all that moves is in the window at once.
FITTING = ("/counters", "/numbers", "/numbers?scale=long", "/sums/visitors", "/streams/weblog")
# On a phone the lanes of a sale stand below each other, and scroll.
FITTING_DESKTOP = ("/orders",)
LOG_LINES = 500
# A busy machine may hit a task of any run, and slow its queue, and other tests may have left runs:
# the page is looked at as if it had all of that.
SUFFER = """() => {
  const slowed = `<p class="slowed"><span class="state is-retrying">Slowed to 50 %</span>
    <span class="quiet">the queue default<span class="long">, since it was answered 503</span>,
    for 30 s more.</span></p>`;
  document.querySelector(".news").innerHTML = slowed + slowed;
  const part = document.querySelector(".closing-part");
  if (part.querySelector("details")) return;
  part.querySelector(".closing").append(", 1 fault");
  const hit = document.createElement("details");
  hit.innerHTML = "<summary>1 fault hit, 1 repaired, 0 lost</summary>";
  part.append(hit);
}"""
# As many as a page lists.
MANY_RUNS = """() => {
  const rows = document.querySelector("#recent .rows");
  while (rows && rows.children.length < 10) rows.append(rows.firstElementChild.cloneNode(true));
}"""

# A message of an action, and three events: what moved the picture by up to 75 px.
MESSAGES = """() => {
  const text = (words) => Object.assign(document.createElement("p"), { textContent: words });
  const message = Object.assign(text("7 is accepted, in 12 ms."), { className: "notice" });
  document.querySelector(".notices").append(message);
  const events = ["Worker 7 was killed at 3 s.", "Slowed to 50 %", "Slowed"];
  document.querySelector(".news").replaceChildren(...events.map(text));
}"""
PLACES = """() => [...document.querySelectorAll("#live > *:not(.notices)")]
  .map((part) => part.getBoundingClientRect()).map(({ top, height }) => [top, height])"""
# The badge is that of the environment: cut, it said "LOC…".
WHOLE = ("h1", ".lead", ".break-it .what", ".menu [aria-current]", ".top .badge", ".top .brand")
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WIDE = {"viewport": {"width": 1440, "height": 900}}
# WCAG 1.4.10: a window of 1280 px that is enlarged four times is 320 px wide.
ENLARGED = {"width": 320, "height": 640}


@pytest.fixture(scope="module")
def pages(browser: Browser, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every page of the app, with something on it, and one that is not there."""
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    if not has_closed(page, stack, "/numbers"):
        press(page, page.get_by_role("button", name="Measure this stack"))
    if not has_closed(page, stack, "/counters"):
        page.get_by_role("slider", name="For seconds").fill("2")
        press(page, page.get_by_role("button", name="Start clicking"))
    if not has_closed(page, stack, "/quilt"):
        page.goto(stack.app)
        press(page, page.get_by_role("button", name="Make a quilt"))
    # A sale of another test may wait for its courier for minutes, and fills in the form.
    page.goto(f"{stack.app}/orders")
    for field, value in {"courier": "two-thirds", "patience": "15", "pace": "fast"}.items():
        page.locator(f"select#{field}").select_option(value)
    press(page, page.get_by_role("button", name="Order", exact=True))
    count_log(page, stack, tmp_path_factory.mktemp("log") / "sample.log")
    publish(page, stack, "On stages")
    post = page.url.partition("#")[0]
    say(page, "Hello")
    open_sum(page, stack, "visitors")
    start_load(page, rate=50, writers=5, seconds=2)
    page.goto(f"{stack.app}/grades")
    add_list(page, 60)
    page.goto(f"{stack.app}/zeitgeist")
    play(page, [write_series(tmp_path_factory.mktemp("series"), "two-days", 5, days=2)])
    party = sent_party(page, stack)
    for path in ("/quilt", "/orders", "/streams/weblog", "/numbers", "/counters"):
        page.goto(stack.app + path)
        expect_still(page)
    for path in ("/sums/visitors", "/grades"):
        page.goto(stack.app + path)
        expect_still(page)
    context.close()
    return [
        *("/", "/invitations", "/sums", "/grades", "/sums/visitors", "/nothing"),
        *(f"{party}?tab={tab}" for tab in ("how", "code", "guests", "table", "told")),
        *("/grades?tab=roster", "/grades?tab=compare", "/grades?school=sample-100"),
        *(f"/grades?more={more}" for more in ("code", "table", "teachers")),
        *(f"/sums/visitors?tab={tab}" for tab in ("code", "batches", "decided")),
        f"{party}?tour=2",
        *("/counters", "/numbers", "/numbers?scale=long", "/blog", "/blog/new", "/blog/cost", post),
        *(f"/counters?tab={tab}" for tab in ("how", "code", "tables")),
        *(f"/numbers?tab={tab}" for tab in ("how", "code", "limits")),
        *("/blog?tab=cache", "/blog?tab=code"),
        *(f"/quilt?tab={tab}" for tab in ("how", "code", "table")),
        *(f"/orders?tab={tab}" for tab in ("how", "code", "table")),
        *(f"/tenants?tab={tab}" for tab in ("how", "code", "table")),
        "/streams/weblog",
        *(f"/streams/weblog?tab={tab}" for tab in ("results", "state", "how", "code")),
        *("/zeitgeist", "/zeitgeist?tab=compare", "/zeitgeist?tab=code"),
        "/zeitgeist?tab=quality",
    ]


def has_closed(page: Page, stack: Stack, path: str) -> bool:
    """Open a page; return whether a run on it has ended."""
    page.goto(stack.app + path)
    return page.locator(".closing").count() > 0


def count_log(page: Page, stack: Stack, log: Path) -> None:
    """Count a part of the sample, without kills of workers."""
    log.write_bytes(b"".join(itertools.islice(sample_log(), LOG_LINES)))
    page.goto(f"{stack.app}/streams/weblog")
    page.get_by_label("Common or combined format").set_input_files(log)
    press(page, page.get_by_role("button", name="Read this file"))
    expect(page.locator(".closing")).to_contain_text("counted in", timeout=TIMEOUT_MS)


def sent_party(page: Page, stack: Stack) -> str:
    """Invite guests to a party of which all mails are out; return its page."""
    create_party(page, stack)
    party = page.url.partition("#")[0]
    upload(page, LIST)
    expect(page.locator("#live")).to_contain_text(f"{GUESTS} guests", timeout=TIMEOUT_MS)
    send(page)
    expect(page.locator("#live")).to_contain_text(f"{GUESTS} sent", timeout=TIMEOUT_MS)
    return party


def test_everybody_can_use_every_page(browser: Browser, stack: Stack, pages: list[str]) -> None:
    """axe finds nothing; no target is small, no text is tiny, and no page is too wide."""
    page = browser.new_page(reduced_motion="reduce")
    faults: dict[str, list[str]] = {}
    for path in drawn(pages):
        faults |= violations(page, path if path.startswith("http") else stack.app + path)
    page.close()

    assert faults == {}


def test_what_moves_fits_the_window(browser: Browser, stack: Stack, pages: list[str]) -> None:
    """With its axis, its closing line, faults that were hit and its cost, when a run is over."""
    page = browser.new_page()
    faults = {}
    for path in (*FITTING, *FITTING_DESKTOP):
        page.goto(stack.app + path)
        expect(page.locator(".closing")).to_be_attached()
        page.evaluate(SUFFER)
        page.evaluate(MANY_RUNS)
        for window in ("desktop", "phone")[: 1 if path in FITTING_DESKTOP else 2]:
            turn(page, window)
            if bottom(page) > WINDOWS[window]["viewport"]["height"]:
                faults[f"{path} {window}"] = bottom(page)
    page.close()

    assert faults == {}


def test_the_explanation_is_whole_in_each_window(
    browser: Browser, stack: Stack, pages: list[str]
) -> None:
    """The lead, the label of the faults and the badge on a phone too, and the current page."""
    page = browser.new_page()
    faults = {}
    for path in ("/counters", "/streams/weblog", "/zeitgeist", "/sums/visitors", "/grades"):
        page.goto(stack.app + path)
        for name, window in {**WINDOWS, "wide": WIDE}.items():
            page.set_viewport_size(window["viewport"])
            page.evaluate(TWO_FRAMES)  # The menu follows its width.
            if cut := cut_parts(page, *WHOLE):
                faults[f"{path} {name}"] = cut
    page.close()

    assert faults == {}


def test_no_text_is_cut_or_torn_where_a_page_is_enlarged(
    browser: Browser, stack: Stack, pages: list[str]
) -> None:
    """A party's page said nothing of its state, and the costs of a page stood letter by letter."""
    page = browser.new_page(viewport=ENLARGED, reduced_motion="reduce")
    faults = {}
    [party, *_] = (path for path in pages if "/invitations/" in path)
    for path in (*FITTING, *FITTING_DESKTOP, "/blog/cost", "/zeitgeist", "/grades", party):
        page.goto(path if path.startswith("http") else stack.app + path)
        if wrong := beyond(page):
            faults[path] = wrong
    page.close()

    assert faults == {}


@pytest.mark.parametrize("window", ["desktop", "phone"])
def test_messages_and_events_move_no_picture(
    browser: Browser, stack: Stack, pages: list[str], window: str
) -> None:
    """They have a place of their own."""
    page = browser.new_page(reduced_motion="reduce")
    for path in ("/counters", "/zeitgeist", "/sums/visitors"):
        page.goto(stack.app + path)
        turn(page, window)
        before = page.evaluate(PLACES)

        page.evaluate(MESSAGES)

        assert page.evaluate(PLACES) == before
        assert page.locator(".notices .notice").is_visible()
    page.close()
