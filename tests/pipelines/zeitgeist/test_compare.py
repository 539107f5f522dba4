"""Compare: one record that is lost, or comes twice, is noticed wherever it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.zeitgeist import check
from pipelines.zeitgeist.check import Results, compared
from pipelines.zeitgeist.detector import DIP, SPIKE, Detector, Side
from pipelines.zeitgeist.highs import Highs
from pipelines.zeitgeist.model import Expected
from pipelines.zeitgeist.pipeline import (
    FEEDS,
    Board,
    Counter,
    History,
    Usual,
    Watcher,
    alert_of,
)
from pipelines.zeitgeist.playbacks import Playback, sample_parts
from pipelines.zeitgeist.progress import _points
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, MINUTE_MS
from rollforward.streams import Context, Pipeline, PushSource, Record, StreamTest

PLAYBACK = "0" * 32
BUCKETS = 4 * DAY_MS // BUCKET_MS + 60
DIP_AT = BUCKETS - 6


def series() -> Iterator[tuple[int, int]]:
    """Yield the counts of four days with a rhythm, and of an outage at their end."""
    for number in range(BUCKETS):
        wave = math.sin(2 * math.pi * number * BUCKET_MS / DAY_MS)
        yield number, 0 if number >= DIP_AT else round(100 + 30 * wave)


class Tampered:
    """The pipeline, in which one record of a stage is lost, or comes twice."""

    def __init__(self, stage: str, times: int, query: str, begin: int) -> None:
        self.stage, self.times, self.query, self.begin = stage, times, query, begin
        self.hit = 0
        kinds = [self._tampered(kind) for kind in (Counter, Usual, Watcher, History, Board)]
        self.test = StreamTest(Pipeline("zeitgeist", *kinds, sources=[PushSource("queries")]))

    def _tampered(self, kind: Any) -> Any:
        outer = self

        class Stage(kind):  # type: ignore[misc]
            name = kind().name

            def record(self, ctx: Context, record: Record) -> None:
                for _ in range(outer.times_of(self.name, record.value)):
                    super().record(ctx, record)

        return Stage

    def times_of(self, stage: str, value: Any) -> int:
        """Return how often a stage gets a record: once, but for one of them."""
        is_it = stage == "board" or value.get("is_complete", True)
        if stage != self.stage or not is_it:
            return 1
        self.hit += 1
        return self.times if self.hit == (1 if stage == "board" else DIP_AT - 30) else 1

    def run(self) -> int:
        """Play all; return the watermark at its end."""
        for number, n in series():
            at = self.begin + number * BUCKET_MS
            self.test.push("queries", {"query": self.query, "n": n}, timestamp_ms=at + MINUTE_MS)
        end = self.begin + BUCKETS * BUCKET_MS
        self.test.advance_watermark(end)
        return end

    def results(self) -> Results:
        test, query = self.test, self.query
        days = sorted(int(key.rpartition("|")[2]) for key in test.keys("history"))
        points = [
            point for day in days for point in _points(test.state("history", f"{query}|{day}"), day)
        ]
        board = test.state("board", query) if query in test.keys("board") else {}
        kept = test.state("detector", query)["detector"]
        alerts = [alert_of(value) for value in board.get("alerts", ())]
        told = {SPIKE: board.get(SPIKE, 0), DIP: board.get(DIP, 0)}
        return Results(points, alerts, told, (kept["taken"], kept["last"]))


@pytest.mark.parametrize("times", [0, 1, 2], ids=["lost", "once", "twice"])
@pytest.mark.parametrize("stage", ["counter", "model", "detector", "history", "board"])
def test_one_record_that_is_lost_or_comes_twice_is_noticed(
    stage: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared has each record once at each stage."""
    part = sample_parts(PLAYBACK)[0]
    begin = part.first // DAY_MS * DAY_MS
    end = begin + BUCKETS * BUCKET_MS
    records = [
        Record(part.query, {"query": part.query, "n": n}, begin + at * BUCKET_MS + MINUTE_MS, "")
        for at, n in series()
    ]
    monkeypatch.setattr(check, "records_of", lambda _, feed, *span: records * (feed == FEEDS[0]))
    playback = Playback(
        PLAYBACK, "t", (part,), 0, begin, end, 60, 0, begin, dict.fromkeys(FEEDS, begin)
    )
    tampered = Tampered(stage, times, part.query, begin)

    watermark = tampered.run()

    found = compared(playback, part, watermark, tampered.results())
    assert tampered.hit
    assert DIP in [kind for kind, _ in found.plain_alerts]
    assert found.is_right == (times == 1), found


def test_the_first_bucket_of_a_day_has_one_bar_before_and_after_it_is_complete() -> None:
    """A spike is told of what is counted so far only where it is told of the complete bucket."""
    day, expected = 19_000 * DAY_MS, Expected(math.log1p(10), 0.2)

    def detector() -> Detector:
        days = [4.0, 4.0, 4.0]
        spikes = Side(SPIKE, 0.0, day - 36 * 3_600_000, Highs(9.0, days), Highs(1e6, [1e6] * 3))
        return Detector(
            {SPIKE: spikes, DIP: Side(DIP, 0.0, None, Highs(0.0, days))}, day - BUCKET_MS
        )

    def told(spreads: float) -> tuple[list[Any], list[Any]]:
        count = math.expm1(expected.mean + spreads * expected.spread)
        soon, later = detector(), detector()
        return (
            [(each.start, each.bar) for each in soon.partial(day, day + 60_000, count, expected)],
            [(each.start, each.bar) for each in later.complete(day, count, expected)],
        )

    for spreads in (5.5, 7.5, 15.0):
        partial, complete = told(spreads)
        assert partial == complete
    assert (told(7.5)[0], told(15.0)[0][0][1]) == ([], 13.5)
