"""Charts of zeitgeist: bands, gaps, the axis of counts, and which alerts are false."""

from __future__ import annotations

import re

import pytest

from handlers.zeitgeist import routes as zeitgeist
from handlers.zeitgeist.charts import SPARK_BUCKETS, chart_of, spark_of
from pipelines.zeitgeist.detector import Alert
from pipelines.zeitgeist.playbacks import current
from pipelines.zeitgeist.progress import Board, Point, QueryAlert
from pipelines.zeitgeist.sample import sample_events
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS
from tests.handlers.conftest import Browser
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = "a" * 32


def test_a_chart_has_a_band_where_something_is_known_and_ends_its_line_at_a_gap(
    services: object,
) -> None:
    usual = [Point(n * BUCKET_MS, 10, 5, 10, 20) for n in (3, 4, 5, 9, 10)]
    points = [*(Point(n * BUCKET_MS, 10) for n in range(3)), *usual]
    alert = Alert("spike", 4 * BUCKET_MS, 5 * BUCKET_MS, 10, 5, 9, 6)
    chart = chart_of(
        points, [Point(11 * BUCKET_MS, 4)], [alert],
        span=(0, 20 * BUCKET_MS), watermark=11 * BUCKET_MS, front=12 * BUCKET_MS, shift=0,
    )  # fmt: skip

    assert (chart.band.count("M"), chart.line.count("M"), chart.open.count("M")) == (2, 2, 1)
    assert (chart.watermark, chart.front) == (55.0, 60.0)
    assert [(flag.kind, flag.x) for flag in chart.flags] == [("spike", 22.5)]
    assert [y for y, _ in chart.levels] == [0, 100, 150]
    top, quarter, sixteenth = (count for _, count in chart.levels)
    assert top >= 20
    assert (quarter, sixteenth) == (top / 4, top / 16)


def test_a_small_chart_has_the_means_of_half_hours(services: object) -> None:
    """A band where all of them are known, and where something was not measured an end."""
    usual = [Point(n * BUCKET_MS, 10.0 + n, 5, 10, 20) for n in range(12, 18)]
    points = [Point(n * BUCKET_MS, 10) for n in (0, 1, 2)] + usual
    alert = Alert("dip", 13 * BUCKET_MS, 14 * BUCKET_MS, 1, 5, 9, 6)
    spark = spark_of(points, [alert], span=(0, 36 * BUCKET_MS), watermark=-1, shift=0)

    assert SPARK_BUCKETS == 6
    assert (spark.line.count("M"), spark.line.count("L"), spark.band.count("M")) == (2, 0, 1)
    assert (spark.latest, spark.watermark, len(spark.flags)) == (27, None, 1)


def test_the_page_marks_a_false_alert_and_no_other(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dip that was planted, a dip of the same query a day later, and one a visitor caused."""
    browser.post("/zeitgeist/playbacks", {"id": FORM, "speed": "3000", "sample": "yes"})
    with world.context():
        playback = current()
        assert playback is not None
    event, begin, _ = next(
        known for known in sample_events(playback.shift) if known[0].kind == "dip"
    )
    part = next(part for part in playback.parts if part.name == event.query)
    other = next(part for part in playback.parts if part.name != event.query)
    browser.post(f"/zeitgeist/playbacks/{FORM}/quiet", {"query": other.query})
    with world.context():
        change = current().changes[-1]  # type: ignore[union-attr]
    starts = {part: (begin + DAY_MS, begin), other: (change.begin,)}
    alerts = [
        QueryAlert(of, Alert("dip", start, start, 1, 9, 6, 5))
        for of, all_starts in starts.items()
        for start in all_starts
    ]
    empty = {part.query: 0 for part in playback.parts}
    monkeypatch.setattr(zeitgeist, "board_of", lambda *_: Board(empty, empty, alerts))

    page = browser.get("/zeitgeist").text

    listed = re.findall(r"<li>(.*?)</li>", page.partition('class="told-list"')[2], re.DOTALL)
    causes = ("false alert", "planted", "caused here")
    assert [[cause for cause in causes if cause in row] for row in listed[:3]] == [
        ["false alert"],
        ["planted"],
        ["caused here"],
    ]
    assert 'class="state is-failed"' in listed[0]
    assert "Any other alert is marked as false." in page
