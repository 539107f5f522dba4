"""Pictures of a run of probes: samples as dots on one logarithmic axis for all rows.

Lengths along the axis are in percent of the picture, heights in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.numbers.results import Finding

# From a microsecond to ten seconds: what lies beyond is drawn at the end.
MIN_MS, MAX_MS = 0.001, 10_000.0
LANES = 5
FIRST_LANE, LANE_HIGH = 3, 4
TICKS = (("1 µs", 0.001), ("10", 0.01), ("100", 0.1), ("1 ms", 1.0), ("10", 10.0), ("100", 100.0))
LATE_TICKS = (("1 s", 1000.0), ("10", 10_000.0))
THIN = "\u202f"  # Between thousands.
# If a nanosecond were a second: the units that people have for so long, in seconds.
NS_PER_MS = 1_000_000
LONG_UNITS = (
    *(("year", 365.25 * 86400), ("month", 30.44 * 86400), ("day", 86400.0)),
    *(("h", 3600.0), ("min", 60.0), ("s", 1.0)),
)


@dataclass(frozen=True)
class Strip:
    """One row's picture: a dot for each sample, the median, p95, and the talk's number."""

    dots: Sequence[tuple[float, int]]
    p50: float | None
    p95: float | None
    in_talk: float | None
    earlier: float | None


def place(ms: float) -> float:
    """Return the place of a time on the axis, in percent.

    >>> place(0.001), place(10_000), place(0.0), place(1.0) < place(10.0)
    (0.0, 100.0, 0.0, True)
    """
    low, high = math.log10(MIN_MS), math.log10(MAX_MS)
    at = math.log10(min(MAX_MS, max(MIN_MS, ms)))
    return round(100 * (at - low) / (high - low), 2)


def strip(finding: Finding) -> Strip:
    """Draw the samples of a probe."""
    dots = [
        (place(ms), FIRST_LANE + LANE_HIGH * (i % LANES)) for i, ms in enumerate(finding.samples_ms)
    ]
    return Strip(
        dots,
        _place(finding.p50_ms),
        _place(finding.p95_ms),
        _place(finding.probe.then_ms),
        _place(finding.before_ms),
    )


def _place(ms: float | None) -> float | None:
    return None if ms is None else place(ms)


def ticks(*, is_long: bool) -> list[tuple[str, float]]:
    """Return the words of the axis and their places.

    Args:
        is_long: As if a nanosecond were a second.
    """
    marks = (*TICKS, *LATE_TICKS)
    return [(_short(as_long(ms)) if is_long else word, place(ms)) for word, ms in marks]


def _short(text: str) -> str:
    """Return a length of time with its unit in one or two letters, as an axis has room for."""
    for unit, letters in (("year", "y"), ("month", "mo"), ("day", "d")):
        text = text.replace(f"{unit}s", letters).replace(unit, letters)
    return text


def exact(ms: float | None) -> str:
    """Return a time with three digits, in the unit that people read it in.

    >>> [exact(ms) for ms in (0.00412, 0.25, 12.345, 1234.5, None)]
    ['4.12 µs', '250 µs', '12.3 ms', '1.23 s', '–']
    """
    if ms is None:
        return "–"
    for unit, factor in (("s", 1e-3), ("ms", 1.0), ("µs", 1e3)):
        if ms * factor >= 1 or unit == "µs":
            figure = f"{ms * factor:.3g}"
            return f"{float(figure):g} {unit}"
    raise AssertionError(ms)


def as_long(ms: float | None) -> str:
    """Return how long a time would be if a nanosecond were a second.

    >>> [as_long(ms) for ms in (0.0000005, 0.001, 0.25, 12.5, 30.0, 1000.0, 10_000.0, None)]
    ['0.5 s', '17 min', '2.9 days', '4.8 months', '11 months', '32 years', '317 years', '–']
    """
    if ms is None:
        return "–"
    length_s = ms * NS_PER_MS
    unit, size = next(((unit, size) for unit, size in LONG_UNITS if length_s >= size), ("s", 1.0))
    count = length_s / size
    figure = f"{count:,.0f}" if count >= 10 else f"{float(f'{count:.2g}'):g}"
    is_noun = unit in ("year", "month", "day") and figure != "1"
    return f"{figure.replace(',', THIN)} {unit}{'s' if is_noun else ''}"


def timed(ms: float | None, *, is_long: bool) -> str:
    """Return a time as it is, or as if a nanosecond were a second."""
    return as_long(ms) if is_long else exact(ms)


def times(ratio: float | None) -> str:
    """Return how many times as long something takes.

    >>> [times(ratio) for ratio in (0.5, 0.987, 1.004, 2.5, 40.0, None)]
    ['0.5 ×', '0.99 ×', '1 ×', '2.5 ×', '40 ×', '–']
    """
    if ratio is None:
        return "–"
    return f"{float(f'{ratio:.2g}'):g} ×"
