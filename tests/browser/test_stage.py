"""The stage in a real browser: it fits, it heals in view, and everybody can use it."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.forms import TIMEOUT_MS, check_width, press
from tests.browser.test_blog import publish, say
from tests.browser.test_grades import add_list
from tests.browser.test_sums import open_sum, start_load
from tests.sampling import IS_SAMPLED
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

WINDOWS: dict[str, Any] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "night": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
# Of which all that moves is in the window at once.
FITTING = ("/counters", "/numbers", "/numbers?scale=long", "/sums/visitors", "/streams/weblog")
# A run that is watched, on a machine that does other things as well.
RUN_MS = 150_000
MIN_TARGET_PX = 24
MIN_TEXT_PX = 13
AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
# What may differ in the dark, and on a phone; the other rules read the same document once more.
RULES = {
    "desktop": None,
    "night": ["target-size", "color-contrast"],
    "dark": ["color-contrast"],
    "phone": ["target-size", "color-contrast"],
}
# `make test` looks by day, and on a phone at night.
LOOKS = ("desktop", "night") if IS_SAMPLED else tuple(RULES)
RUN_AXE = """async (rules) => (await axe.run(document, {
    resultTypes: ["violations"], ...(rules && { runOnly: { type: "rule", values: rules } }),
  })).violations
  .map((each) => `${each.id}: ${each.nodes.map((node) => node.target).join(" ")}`)"""
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
# Links in running text are as high as the text: WCAG 2.5.8 lets them.
LOOK = """() => {
  const isShown = (each) => {
    const box = each.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && getComputedStyle(each).visibility !== "hidden";
  };
  const targets = "a, button, select, summary, textarea, input:not([type=hidden])";
  const small = [...document.querySelectorAll(targets)].filter(isShown)
    .filter((each) => !(each.tagName === "A" && each.closest("p, li")))
    .map((each) => [each.textContent.trim() || each.name, each.getBoundingClientRect()])
    .filter(([, box]) => box.width < MIN_TARGET || box.height < MIN_TARGET)
    .map(([name, box]) => `${name}: ${Math.round(box.width)} x ${Math.round(box.height)}`);
  const tiny = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    const text = texts.currentNode.textContent.trim();
    if (!text || !isShown(parent) || parent.closest(".unseen, noscript")) continue;
    const size = parseFloat(getComputedStyle(parent).fontSize);
    if (size < MIN_TEXT - 0.01) tiny.push(`${text.slice(0, 20)}: ${size}`);
  }
  return { small, tiny };
}""".replace("MIN_TARGET", str(MIN_TARGET_PX)).replace("MIN_TEXT", str(MIN_TEXT_PX))


@pytest.fixture(scope="module")
def pages(browser: Browser, stack: Stack) -> list[str]:
    """Every page of the app, with something on it, and one that is not there."""
    context = browser.new_context()
    page = context.new_page()
    found = []
    page.goto(f"{stack.app}/numbers")
    press(page, page.get_by_role("button", name="Measure this stack"))
    page.goto(f"{stack.app}/counters")
    page.get_by_role("slider", name="For seconds").fill("2")
    press(page, page.get_by_role("button", name="Start clicking"))
    publish(page, stack, "On stages")
    post = page.url.partition("#")[0]
    say(page, "Hello")
    open_sum(page, stack, "visitors")
    start_load(page, rate=50, writers=5, seconds=2)
    page.goto(f"{stack.app}/grades")
    add_list(page, 60)
    for button in ("Make a quilt", "Count a sample log", "Run the demo"):
        page.goto(stack.app)
        press(page, page.get_by_role("button", name=button))
        found.append(page.url.partition("#")[0])
    expect(page.locator(".closing")).to_contain_text("0 lost", timeout=RUN_MS)
    party = found[-1]
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
        "/streams/weblog",
        *(f"/streams/weblog?tab={tab}" for tab in ("results", "state", "how", "code")),
        *("/zeitgeist", "/zeitgeist?tab=code"),
    ]


def test_everybody_can_use_every_page(browser: Browser, stack: Stack, pages: list[str]) -> None:
    """axe finds nothing; no target is small, no text is tiny, and no page is too wide."""
    page = browser.new_page()
    found: dict[str, Any] = {}
    for path in pages:
        page.goto(path if path.startswith("http") else stack.app + path)
        page.evaluate(OPEN_ALL)
        page.evaluate(AXE)
        for window in LOOKS:
            turn(page, window)
            look = page.evaluate(LOOK)
            wrong = [*page.evaluate(RUN_AXE, RULES[window]), *look["small"], *look["tiny"]]
            if wrong:
                found[f"{path} {window}"] = wrong
            check_width(page)
    page.close()

    assert found == {}


def turn(page: Page, window: str) -> None:
    """Let a page that is shown be looked at through another window."""
    chosen = WINDOWS[window]
    page.set_viewport_size(chosen["viewport"])
    page.emulate_media(color_scheme=chosen.get("color_scheme", "light"))


def bottom(page: Page) -> float:
    """Return where what moves ends: the stage without the forms that a phone has below it."""
    return float(
        page.evaluate("document.querySelector('.stage-show').getBoundingClientRect().bottom")
    )


@pytest.mark.parametrize("window", ["desktop", "phone"])
def test_it_is_hurt_and_heals_in_view(browser: Browser, stack: Stack, window: str) -> None:
    """Struck, killed and healed: no reload, and the scroll and the focus stay where they were."""
    context = browser.new_context(**WINDOWS[window])
    page = context.new_page()
    page.goto(stack.app)
    press(page, page.get_by_role("button", name="Run the demo"))
    loaded = page.evaluate("performance.timeOrigin")
    errors = page.get_by_role("switch", name="Errors")
    errors.focus()
    press(page, errors)
    expect(errors).to_be_focused()
    expect(errors).to_have_attribute("aria-checked", "true")
    expect(page.locator(".mails b")).to_have_text(re.compile("[1-9]"), timeout=TIMEOUT_MS)
    height = WINDOWS[window]["viewport"]["height"]

    kill = page.get_by_role("button", name="Kill a worker")
    kill.focus()
    press(page, kill)
    killed = re.compile(r"Worker \d+ was killed")
    expect(page.locator(".said")).to_contain_text(killed, timeout=TIMEOUT_MS)
    expect(kill).to_be_focused()
    assert page.evaluate("scrollY") == 0
    assert bottom(page) <= height

    press(page, errors)
    expect(page.locator(".closing")).to_contain_text("0 lost", timeout=RUN_MS)
    expect(page.locator(".closing")).to_contain_text("1 worker killed")
    healed = re.compile(r"^(?!0)(\d+) faults? hit, \1 repaired, 0 lost")
    expect(page.locator("#story summary")).to_have_text(healed, timeout=TIMEOUT_MS)
    assert bottom(page) <= height
    assert page.evaluate("performance.timeOrigin") == loaded
    context.close()


def test_what_moves_fits_the_window(browser: Browser, stack: Stack, pages: list[str]) -> None:
    """With its axis, its closing line and its cost, when a run is over."""
    page = browser.new_page()
    found = {}
    for path in FITTING:
        page.goto(stack.app + path)
        expect(page.locator(".closing")).to_be_attached()
        for window in ("desktop", "phone"):
            turn(page, window)
            if bottom(page) > WINDOWS[window]["viewport"]["height"]:
                found[f"{path} {window}"] = bottom(page)
    page.close()

    assert found == {}


def test_at_rest_a_page_is_told_and_does_not_ask(
    browser: Browser, stack: Stack, pages: list[str]
) -> None:
    """By a stream, or, without one, by a question that costs little; what it shows is not sent."""
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(stack.app + "/sums/visitors")
    expect(page.locator("#live")).to_have_attribute("data-moving", "no", timeout=TIMEOUT_MS)
    page.wait_for_timeout(1500)  # What came to rest just now is told once more.
    assert any("/updates/" in url and "/events" in url for url in asked)
    asked.clear()
    page.wait_for_timeout(3000)
    assert [url for url in asked if url.endswith("/live")] == []

    other = context.new_page()
    other.goto(stack.app + "/sums/visitors")
    other.get_by_label("Amount negative").fill("7")
    press(other, other.get_by_role("button", name="Add it"))

    expect(page.locator(".sum-up")).to_have_text(
        other.locator(".sum-up").inner_text(), use_inner_text=True, timeout=TIMEOUT_MS
    )
    assert any(url.endswith("/live") for url in asked)
    context.close()
