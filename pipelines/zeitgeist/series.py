"""Files of series of counts, and of labelled windows.

A series is a CSV file of two columns, in the format of the Numenta Anomaly Benchmark:

    timestamp,value
    2015-02-26 21:42:53,104

Labels are a JSON file: by the name of a series a list of [begin, end], in the same form of time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipelines.times import read_time
from rollforward.continuations.csv_source import BadFileError, CsvRecord, records_in

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
BUCKET_MS = 5 * MINUTE_MS
MAX_SPAN_MS = 370 * DAY_MS
MAX_COUNT = 1e9
MAX_NAME_CHARS = 60


class BadSeriesError(ValueError):
    """The file is no series, or has no labels; the text has the reason."""


@dataclass(frozen=True)
class Series:
    """Counts by bucket.

    Attributes:
        buckets: Begin in milliseconds since 1970, and count, in order of time. A missing bucket
            was not measured.
    """

    name: str
    buckets: Sequence[tuple[int, float]]

    @property
    def weeks(self) -> float:
        return (self.buckets[-1][0] + BUCKET_MS - self.buckets[0][0]) / WEEK_MS

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The gaps: the beginnings of the first missing bucket, and of the next one present.

        >>> Series("s", [(0, 1), (BUCKET_MS, 1), (4 * BUCKET_MS, 1)]).gaps
        [(600000, 1200000)]
        """
        return [
            (previous + BUCKET_MS, following)
            for (previous, _), (following, _) in pairwise(self.buckets)
            if following > previous + BUCKET_MS
        ]


def read_series(name: str, content: bytes) -> Series:
    """Read a series; rows may be in any order, and counts of one bucket add up.

    Raises:
        BadSeriesError: the content is no series.
    """
    counts: dict[int, float] = {}
    try:
        for record in records_in(content):
            if record.line == 1 and _is_header(record):
                continue
            start, count = _read_row(record)
            counts[start] = counts.get(start, 0) + count
    except BadFileError as error:
        raise BadSeriesError(str(error)) from error
    if not counts:
        raise BadSeriesError("a series must have at least one row, got none")
    buckets = sorted(counts.items())
    if (span_ms := buckets[-1][0] - buckets[0][0]) > MAX_SPAN_MS:
        limit, days = MAX_SPAN_MS // DAY_MS, -(-span_ms // DAY_MS)
        raise BadSeriesError(f"a series must span at most {limit} days, got {days}")
    return Series(name[:MAX_NAME_CHARS], buckets)


def _is_header(record: CsvRecord) -> bool:
    return bool(record.cells) and record.cells[0].strip().lower() == "timestamp"


def _read_row(record: CsvRecord) -> tuple[int, float]:
    line, cells = record.line, record.cells
    if record.problem:
        raise BadSeriesError(f"line {line}: {record.problem}")
    if len(cells) != 2:
        raise BadSeriesError(f"line {line} must have 2 columns (timestamp,value), got {len(cells)}")
    try:
        at, count = read_time(cells[0]), float(cells[1])
    except (ValueError, OverflowError) as error:
        raise BadSeriesError(f"line {line} must be timestamp,value: {error!s:.200}") from error
    if not (math.isfinite(count) and 0 <= count <= MAX_COUNT):
        raise BadSeriesError(f"line {line}: count must be from 0 to {MAX_COUNT:.0f}, got {count:g}")
    return at // BUCKET_MS * BUCKET_MS, int(count) if count.is_integer() else count


def read_labels(content: bytes) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Return the labelled windows by the name of their series.

    Raises:
        BadSeriesError: the content has no labels.
    """
    try:
        labels: dict[str, list[tuple[int, int]]] = {
            name.rpartition("/")[2].removesuffix(".csv"): [
                (read_time(begin), read_time(end)) for begin, end in windows
            ]
            for name, windows in json.loads(content).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise BadSeriesError(f"labels must be {{name: [[begin, end], ...]}}: {error}") from error
    return labels
