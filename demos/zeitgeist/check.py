"""Whether the pipeline has what a plain run has: the same records, one after the other, in memory.

Whatever was killed, split, delayed or replaced meanwhile, each complete bucket must have the same
count and the same model, and the same must have been told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from demos.zeitgeist.detector import Alert, Detector, Kind
from demos.zeitgeist.model import Expected, Model
from demos.zeitgeist.pipeline import BAND, FEEDS, MAX_ALERTS
from demos.zeitgeist.playbacks import Part, Playback
from demos.zeitgeist.progress import Point, board_of, points_of
from demos.zeitgeist.records import records_of
from demos.zeitgeist.series import BUCKET_MS
from pipelines.runtime import Clients

# Of a query: more would take a page many seconds.
MAX_BUCKETS = 30_000

Told = tuple[Kind, int]  # And the beginning of its bucket.


@dataclass(frozen=True)
class Check:
    """What a query has in the pipeline, beside what it has in a plain run.

    Attributes:
        buckets: How many complete ones a plain run has.
        wrong: Where the pipeline has something else, or nothing, or one too many.
        told, plain: The alerts of both.
    """

    part: Part
    buckets: int
    wrong: Sequence[int]
    told: Sequence[Told]
    plain: Sequence[Told]

    @property
    def is_right(self) -> bool:
        return not self.wrong and self.told == self.plain


def check(clients: Clients, playback: Playback, part: Part, watermark: int) -> Check:
    """Compare the buckets of a query that were complete at a watermark.

    Args:
        watermark: Of those that keep history and alerts, so that all before it is there.
    """
    plain, alerts = plain_run(playback, part, watermark)
    # What has become complete since the watermark was read is not compared.
    found = {
        point.start: point
        for point in points_of(clients, [part.query], playback.begin, playback.last)[part.query]
        if point.start + BUCKET_MS <= watermark
    }
    told = [
        (alert.kind, alert.start)
        for alert in board_of(clients, playback).of(part.query)
        if alert.start + BUCKET_MS <= watermark
    ]
    return Check(
        part,
        len(plain),
        [at for at in sorted({*plain, *found}) if plain.get(at) != found.get(at)],
        sorted(told, key=_time),
        sorted(((alert.kind, alert.start) for alert in alerts[-MAX_ALERTS:]), key=_time),
    )


def _time(told: Told) -> tuple[int, Kind]:
    return told[1], told[0]


def plain_run(
    playback: Playback, part: Part, watermark: int
) -> tuple[dict[int, Point], list[Alert]]:
    """Count a query, learn and tell, bucket by bucket; return its points and alerts."""
    model, detector = Model(), Detector()
    points, alerts = dict[int, Point](), list[Alert]()
    for start, count in _counts(playback, part, watermark):
        expected = model.expected(start)
        points[start] = Point(start, count, *_band(expected))
        if expected is not None:
            alerts += detector.complete(start, count, expected)
        model.learn(start, count)
    return points, alerts


def _band(expected: Expected | None) -> Iterator[float]:
    if expected is not None:
        yield from (round(expected.count(spreads), 2) for spreads in (-BAND, 0, BAND))


def _counts(playback: Playback, part: Part, watermark: int) -> Iterator[tuple[int, float]]:
    """Yield the buckets of a query that are complete; those that were not measured are left out."""
    counts, gaps, alone = defaultdict[int, float](float), dict[int, int](), (part,)
    for feed in FEEDS:
        played = replace(playback, parts=alone)
        for record in records_of(played, feed, playback.begin, min(watermark, playback.last)):
            start = record.at // BUCKET_MS * BUCKET_MS
            if "until" in record.value:
                gaps[start] = record.value["until"] or playback.last
            else:
                counts[start] += record.value["n"]
    at = min(counts, default=watermark)
    while at + BUCKET_MS <= watermark:
        if at in gaps:
            at = max(at + BUCKET_MS, gaps[at])
        else:
            yield at, counts.get(at, 0)
            at += BUCKET_MS
