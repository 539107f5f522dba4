"""Comparison of the pipeline with a plain run: the same records, one by one, in memory.

In spite of kills, splits, delays and replaced code, the pipeline must have each complete bucket
once, with the same count and the same model. Its detector must have processed the same number of
buckets, and raised the same alerts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.zeitgeist.detector import DIP, SPIKE, Alert, Detector, Kind
from pipelines.zeitgeist.model import Expected, Model
from pipelines.zeitgeist.pipeline import BAND, FEEDS, MAX_ALERTS
from pipelines.zeitgeist.playbacks import Part, Playback
from pipelines.zeitgeist.progress import Point, board_of, points_of, processed_of
from pipelines.zeitgeist.records import records_of
from pipelines.zeitgeist.series import BUCKET_MS
from rollforward.runtime import Clients

# Limit of a query: more would take a page many seconds.
MAX_BUCKETS = 30_000

KindAt = tuple[Kind, int]  # An alert's kind, and the beginning of its bucket.


@dataclass(frozen=True)
class Results:
    """Results of a query.

    Attributes:
        points: Its complete buckets, duplicates included.
        alerts: Its last alerts.
        alert_counts: The number of all its alerts, by kind.
        processed: The number of complete buckets that its detector has processed, and the last one.
    """

    points: Sequence[Point]
    alerts: Sequence[Alert]
    alert_counts: Mapping[Kind, int]
    processed: tuple[int, int | None] = (0, None)


@dataclass(frozen=True)
class Check:
    """Results of a query in the pipeline, compared with a plain run.

    Attributes:
        buckets: The number of complete buckets of the plain run.
        wrong: The beginnings of buckets that differ, are missing, or are duplicates.
        alerts, plain_alerts: The alerts of both.
        miscounted: The names of numbers that differ from the plain run.
    """

    part: Part
    buckets: int
    wrong: Sequence[int]
    alerts: Sequence[KindAt]
    plain_alerts: Sequence[KindAt]
    miscounted: Sequence[str] = ()

    @property
    def is_right(self) -> bool:
        return not self.wrong and self.alerts == self.plain_alerts and not self.miscounted


def check(clients: Clients, playback: Playback, part: Part, watermark: int) -> Check:
    """Compare the buckets of a query that were complete at a watermark.

    Args:
        watermark: The lowest one of history and board, so that everything before it is stored.
    """
    return compared(playback, part, watermark, _results(clients, playback, part.query))


def _results(clients: Clients, playback: Playback, query: str) -> Results:
    points = points_of(clients, [query], playback.begin, playback.last)[query]
    board = board_of(clients, playback)
    alert_counts = {SPIKE: board.spikes[query], DIP: board.dips[query]}
    return Results(points, board.of(query), alert_counts, processed_of(clients, query))


def compared(playback: Playback, part: Part, watermark: int, results: Results) -> Check:
    """Compare the pipeline's results of a query with a plain run.

    Buckets that completed after the watermark was read are not compared.
    """
    processed, last_start = results.processed
    plain = plain_run(playback, part, watermark)
    # The detector may be further by now.
    until = max(watermark, 0 if last_start is None else last_start + BUCKET_MS)
    counted = plain if until == watermark else plain_run(playback, part, until)
    too_new = Counter(alert.kind for alert in results.alerts if not _is_over(alert, watermark))
    numbers = {
        "buckets of the detector": (processed, counted.processed[0]),
        **{
            f"{kind}s": (results.alert_counts[kind] - too_new[kind], plain.alert_counts[kind])
            for kind in (SPIKE, DIP)
        },
    }
    return Check(
        part,
        len(plain.points),
        _different(plain.points, [point for point in results.points if _is_over(point, watermark)]),
        _kinds_at(alert for alert in results.alerts if _is_over(alert, watermark)),
        _kinds_at(plain.alerts[-MAX_ALERTS:]),
        [name for name, (number, plain_number) in numbers.items() if number != plain_number],
    )


def _is_over(event: Point | Alert, watermark: int) -> bool:
    return event.start + BUCKET_MS <= watermark


def _different(plain: Sequence[Point], points: Sequence[Point]) -> list[int]:
    """Return the beginnings of buckets that are not once and equal in both."""
    plain_counts, counts = Counter(plain), Counter(points)
    different = (plain_counts - counts) + (counts - plain_counts)
    return sorted({point.start for point in different})


def _kinds_at(alerts: Iterable[Alert]) -> list[KindAt]:
    return sorted(((alert.kind, alert.start) for alert in alerts), key=lambda pair: pair[::-1])


def plain_run(playback: Playback, part: Part, watermark: int) -> Results:
    """Count, learn and detect, bucket by bucket."""
    model, detector = Model(), Detector()
    points, alerts = list[Point](), list[Alert]()
    for start, count in _counts(playback, part, watermark):
        expected = model.expected(start)
        points.append(Point(start, count, *_band(expected)))
        if expected is not None:
            alerts += detector.complete(start, count, expected)
        model.learn(start, count)
    alert_counts = Counter(alert.kind for alert in alerts)
    return Results(points, alerts, alert_counts, (detector.taken, detector.last))


def _band(expected: Expected | None) -> Iterator[float]:
    if expected is not None:
        yield from (round(expected.count(spreads), 2) for spreads in (-BAND, 0, BAND))


def _counts(playback: Playback, part: Part, watermark: int) -> Iterator[tuple[int, float]]:
    """Yield the complete buckets of a query, without unmeasured ones."""
    counts, gaps, alone = defaultdict[int, float](float), dict[int, int](), (part,)
    for feed in FEEDS:
        played = replace(playback, parts=alone)
        for record in records_of(played, feed, playback.begin, min(watermark, playback.last)):
            start = record.timestamp_ms // BUCKET_MS * BUCKET_MS
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
