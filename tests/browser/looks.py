"""Inspection of pages: in windows by day and at night, by axe and by a ruler."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from playwright.sync_api import Page

from tests.browser.forms import width_beyond
from tests.infra.runs.sampling import IS_SAMPLED, sample

WINDOWS: dict[str, Any] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "night": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
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
# Of all pages `make test` looks at one in so many, at others each day.
PAGES_OF = 4


def drawn(pages: Sequence[str]) -> list[str]:
    """Return which pages are looked at; without a sample, all."""
    return sample("pages", pages, PAGES_OF) if IS_SAMPLED else list(pages)


def violations(page: Page, url: str) -> dict[str, list[str]]:
    """Load a page once and look at it, unfolded, in each window; return the faults by window."""
    page.goto(url)
    return shown_violations(page, url)


def shown_violations(page: Page, url: str) -> dict[str, list[str]]:
    """Look at the page that is shown, as `violations` does; its name is for the faults."""
    page.evaluate(OPEN_ALL)
    page.evaluate(AXE)
    faults = {}
    for window in LOOKS:
        turn(page, window)
        look = page.evaluate(LOOK)
        wrong = [*page.evaluate(RUN_AXE, RULES[window]), *look["small"], *look["tiny"]]
        if (more := width_beyond(page)) > 0:
            wrong.append(f"{more} px wider than the window")
        if wrong:
            faults[f"{url} {window}"] = wrong
    return faults


def turn(page: Page, window: str) -> None:
    """Let a page that is shown be looked at through another window."""
    chosen = WINDOWS[window]
    page.set_viewport_size(chosen["viewport"])
    page.emulate_media(color_scheme=chosen.get("color_scheme", "light"))


# What is cut, hidden or outside the window, by the CSS of each part.
CUT = """(names) => names.filter((name) => {
  const part = document.querySelector(name);
  const box = part.getBoundingClientRect();
  const isBlock = getComputedStyle(part).display !== "inline";
  const isCut = isBlock && part.scrollWidth > part.clientWidth + 1;
  return isCut || box.width < 20 || box.height < 10 || box.left < 0 || box.right > innerWidth + 1;
})"""

# What ends beyond the window, and words of which the letters stand below each other.
BEYOND = """() => {
  const wrong = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    const text = texts.currentNode.textContent.trim();
    if (!text || parent.closest(UNCUT)) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const lines = [...range.getClientRects()].filter((box) => box.width > 1);
    if (lines.some((box) => box.right > innerWidth + 1)) wrong.push(`beyond: ${text}`);
    const isLatin = /^[ -~\\s\u202f]+$/.test(text);
    if (isLatin && lines.length > text.split(/[\\s-]+/).length) wrong.push(`torn: ${text}`);
  }
  return wrong;
}""".replace("UNCUT", repr(".unseen, noscript, script, .scroll, pre, code, .menu, .skip"))


def beyond(page: Page) -> list[str]:
    """Return which texts of a page end outside the window, or are torn into letters."""
    wrong: list[str] = page.evaluate(BEYOND)
    return wrong


def cut_parts(page: Page, *names: str) -> list[str]:
    """Return which parts of a page, by their CSS, are cut or lie outside the window."""
    cut: list[str] = page.evaluate(CUT, names)
    return cut


def bottom(page: Page) -> float:
    """Return where what moves ends: the stage without the forms that a phone has below it."""
    return float(
        page.evaluate("document.querySelector('.stage-show').getBoundingClientRect().bottom")
    )
