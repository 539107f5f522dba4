"""Whether the pipeline has what a plain run has: the same records, one after the other, in memory.

Whatever was killed, split, delayed or replaced meanwhile, each complete bucket must be there once,
with the same count and the same model; the detector must have taken in as many; and the same must
have been told, as often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.zeitgeist.detector import DIP, SPIKE, Alert, Detector, Kind
from pipelines.zeitgeist.model import Expected, Model
from pipelines.zeitgeist.pipeline import BAND, FEEDS, MAX_ALERTS
from pipelines.zeitgeist.playbacks import Part, Playback
from pipelines.zeitgeist.progress import Point, board_of, points_of, taken_of
from pipelines.zeitgeist.records import records_of
from pipelines.zeitgeist.series import BUCKET_MS
from rollforward.runtime import Clients

# Of a query: more would take a page many seconds.
MAX_BUCKETS = 30_000

Told = tuple[Kind, int]  # And the beginning of its bucket.


@dataclass(frozen=True)
class Results:
    """What there is of a query.

    Attributes:
        points: Its complete buckets, each as often as there is one.
        alerts: The last ones that were told of it.
        told: How many there were of each kind.
        taken: How many complete buckets its detector has taken in, and which was the last one.
    """

    points: Sequence[Point]
    alerts: Sequence[Alert]
    told: Mapping[Kind, int]
    taken: tuple[int, int | None] = (0, None)


@dataclass(frozen=True)
class Check:
    """What a query has in the pipeline, beside what it has in a plain run.

    Attributes:
        buckets: How many complete ones a plain run has.
        wrong: Where the pipeline has something else, or nothing, or one too many.
        told, plain: The alerts of both.
        miscounted: What there are more or fewer of than in a plain run.
    """

    part: Part
    buckets: int
    wrong: Sequence[int]
    told: Sequence[Told]
    plain: Sequence[Told]
    miscounted: Sequence[str] = ()

    @property
    def is_right(self) -> bool:
        return not self.wrong and self.told == self.plain and not self.miscounted


def check(clients: Clients, playback: Playback, part: Part, watermark: int) -> Check:
    """Compare the buckets of a query that were complete at a watermark.

    Args:
        watermark: Of those that keep history and alerts, so that all before it is there.
    """
    return compared(playback, part, watermark, _results(clients, playback, part.query))


def _results(clients: Clients, playback: Playback, query: str) -> Results:
    points = points_of(clients, [query], playback.begin, playback.last)[query]
    board = board_of(clients, playback)
    told = {SPIKE: board.spikes[query], DIP: board.dips[query]}
    return Results(points, board.of(query), told, taken_of(clients, query))


def compared(playback: Playback, part: Part, watermark: int, found: Results) -> Check:
    """Compare what the pipeline has of a query with a plain run.

    What has become complete since the watermark was read is not compared.
    """
    taken, last = found.taken
    plain = plain_run(playback, part, watermark)
    # The detector may have gone on since.
    until = max(watermark, 0 if last is None else last + BUCKET_MS)
    counted = plain if until == watermark else plain_run(playback, part, until)
    later = Counter(each.kind for each in found.alerts if each.start + BUCKET_MS > watermark)
    numbers = {
        "buckets of the detector": (taken, counted.taken[0]),
        "spikes": (found.told[SPIKE] - later[SPIKE], plain.told[SPIKE]),
        "dips": (found.told[DIP] - later[DIP], plain.told[DIP]),
    }
    return Check(
        part,
        len(plain.points),
        _different(plain.points, [each for each in found.points if _is_over(each, watermark)]),
        _told(each for each in found.alerts if _is_over(each, watermark)),
        _told(plain.alerts[-MAX_ALERTS:]),
        [name for name, (here, there) in numbers.items() if here != there],
    )


def _is_over(each: Point | Alert, watermark: int) -> bool:
    return each.start + BUCKET_MS <= watermark


def _different(plain: Sequence[Point], found: Sequence[Point]) -> list[int]:
    """Return the beginnings of buckets that are not once in both, and the same."""
    plain_count, found_count = Counter(plain), Counter(found)
    different = (plain_count - found_count) + (found_count - plain_count)
    return sorted({each.start for each in different})


def _told(alerts: Iterable[Alert]) -> list[Told]:
    return sorted(((each.kind, each.start) for each in alerts), key=_time)


def _time(told: Told) -> tuple[int, Kind]:
    return told[1], told[0]


def plain_run(playback: Playback, part: Part, watermark: int) -> Results:
    """Count a query, learn and tell, bucket by bucket."""
    model, detector = Model(), Detector()
    points, alerts = list[Point](), list[Alert]()
    for start, count in _counts(playback, part, watermark):
        expected = model.expected(start)
        points.append(Point(start, count, *_band(expected)))
        if expected is not None:
            alerts += detector.complete(start, count, expected)
        model.learn(start, count)
    told = Counter(each.kind for each in alerts)
    return Results(points, alerts, told, (detector.taken, detector.last))


def _band(expected: Expected | None) -> Iterator[float]:
    if expected is not None:
        yield from (round(expected.count(spreads), 2) for spreads in (-BAND, 0, BAND))


def _counts(playback: Playback, part: Part, watermark: int) -> Iterator[tuple[int, float]]:
    """Yield the buckets of a query that are complete; those that were not measured are left out."""
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
