"""Pictures of pipelines in Chromium: no text leaves its box, lies on hatching or covers a bar."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from flask import Flask, get_template_attribute
from playwright.sync_api import Browser, Page, expect

from handlers.shared import formatting
from handlers.shared.incidents import Hits
from handlers.shared.pipeline_graph import BOX_HEIGHT, BOX_WIDTH, Cell, counts_of, picture_of
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.sample import sample_log
from pipelines.zeitgeist.pipeline import ZEITGEIST
from rollforward.streams import Pipeline
from tests.browser.forms import TIMEOUT_MS, press
from tests.infra.documents import ROOT
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

LOG_LINES = 200
WIDEST: list[list[Cell]] = [
    counts_of(count, lag_ms, count, count, count, 999.0)
    for count in (9_999, 999_999)
    for lag_ms in (5_999_999, 359_999_999)
]
SHOW = "(part, html) => { part.innerHTML = html; }"
FAULTS = """(svg) => {
  const meets = (one, other) => one.left < other.right - 1 && other.left < one.right - 1
    && one.top < other.bottom - 1 && other.top < one.bottom - 1;
  const box = (part) => part.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text:not(.hit-count)")];
  const faults = [];
  for (const text of texts) {
    const here = box(text), around = text.parentNode.querySelector(".box");
    const isOutside = around && (here.right > box(around).right || here.left < box(around).left
      || here.bottom > box(around).bottom + 1);
    if (isOutside) faults.push(`${text.textContent} leaves its box`);
    for (const hatched of svg.querySelectorAll(".hatched")) {
      if (meets(here, box(hatched))) faults.push(`${text.textContent} lies on hatching`);
    }
    if (around) continue;
    for (const other of svg.querySelectorAll(".box")) {
      if (meets(here, box(other))) faults.push(`${text.textContent} lies on a box`);
    }
  }
  return faults;
}"""


def drawn(pipeline: Pipeline, cells: list[Cell]) -> str:
    """Return the picture in which each box has been hit and is being retried."""
    app = Flask(__name__, template_folder=str(ROOT / "templates"))
    formatting.register(app)
    picture = picture_of(pipeline)
    names = [box.name for box in picture.boxes]
    with app.app_context():
        graph = get_template_attribute("_pipeline.html", "graph")
        return str(
            graph(
                picture,
                (BOX_WIDTH, BOX_HEIGHT),
                dict.fromkeys(names, Hits(12, is_open=True)),
                "a pipeline",
                dict.fromkeys(names, cells),
            )
        )


@pytest.fixture
def weblog(browser: Browser, stack: Stack) -> Page:
    """The page of the web log in the window of a desktop, with a log that is read."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.goto(f"{stack.app}/streams/weblog")
    return page


def test_texts_of_a_picture_lie_in_their_boxes_and_not_on_hatching(weblog: Page) -> None:
    """The longest lines, in boxes that are all hit; badge and hatching have a key."""
    weblog.locator("[data-live-toggle]").click()  # Or the next update draws it anew.
    faults = {}
    for pipeline, cells in itertools.product((WEBLOG, ZEITGEIST), WIDEST):
        weblog.locator(".graph-part").evaluate(SHOW, drawn(pipeline, cells))
        picture = weblog.locator("svg.pipeline")
        if found := picture.evaluate(FAULTS):
            faults[f"{pipeline.name} {cells[0][0]}"] = found
        expect(picture.locator(".key-of-hits")).to_contain_text("faults that hit")
        expect(picture.locator(".key-of-hits")).to_contain_text("being retried")
    room = "(scroll) => scroll.scrollWidth - scroll.clientWidth"
    beyond = weblog.locator(".graph-part .scroll").evaluate(room)

    assert faults == {}
    assert beyond <= 0
    # The ruler sees a box that is too narrow, and hatching behind a text.
    weblog.locator("rect.box").first.evaluate("(box) => box.setAttribute('width', 60)")
    weblog.locator("rect.hatched").first.evaluate("(part) => part.setAttribute('y', 20)")
    seen = weblog.locator("svg.pipeline").evaluate(FAULTS)
    assert any("leaves its box" in fault for fault in seen)
    assert any("lies on hatching" in fault for fault in seen)
    weblog.close()


def test_the_label_of_the_results_is_above_its_bars(weblog: Page, tmp_path: Path) -> None:
    """Beside the log's own chart, whose key says what its colours are."""
    log = tmp_path / "sample.log"
    log.write_bytes(b"".join(itertools.islice(sample_log(), LOG_LINES)))
    weblog.get_by_label("Common or combined format").set_input_files(log)
    press(weblog, weblog.get_by_role("button", name="Read this file"))
    expect(weblog.locator(".closing")).to_contain_text("counted in", timeout=TIMEOUT_MS)

    label, bars = weblog.locator("#seconds-title"), weblog.locator(".seconds-part svg")
    expect(bars.locator("rect").first).to_be_attached()
    above, below = label.bounding_box(), bars.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"]
    assert bars.locator("text").count() == 0
    expect(weblog.locator("#log-title")).to_contain_text("failed")
    weblog.close()
