"""Pictures of a run of probes: samples as dots on one logarithmic axis for all rows.

Lengths along the axis are in percent of the picture, heights in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from demos.numbers.results import Finding

# From a microsecond to ten seconds: what lies beyond is drawn at the end.
MIN_MS, MAX_MS = 0.001, 10_000.0
LANES = 5
FIRST_LANE, LANE_HIGH = 6, 5
TICKS = (("1 µs", 0.001), ("10", 0.01), ("100", 0.1), ("1 ms", 1.0), ("10", 10.0), ("100", 100.0))
LATE_TICKS = (("1 s", 1000.0), ("10", 10_000.0))


@dataclass(frozen=True)
class Strip:
    """One row's picture: a dot for each sample, the median, p95, and the talk's number."""

    dots: Sequence[tuple[float, int]]
    p50: float | None
    p95: float | None
    then: float | None
    before: float | None


def place(ms: float) -> float:
    """Return where a time stands on the axis, in percent.

    >>> place(0.001), place(10_000), place(0.0), place(1.0) < place(10.0)
    (0.0, 100.0, 0.0, True)
    """
    low, high = math.log10(MIN_MS), math.log10(MAX_MS)
    at = math.log10(min(MAX_MS, max(MIN_MS, ms)))
    return round(100 * (at - low) / (high - low), 2)


def strip(finding: Finding) -> Strip:
    """Draw what was found for a probe."""
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


def ticks() -> list[tuple[str, float]]:
    """Return the words of the axis, and where each stands."""
    return [(word, place(ms)) for word, ms in (*TICKS, *LATE_TICKS)]


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


def times(ratio: float | None) -> str:
    """Return how many times as long something takes.

    >>> [times(ratio) for ratio in (0.5, 0.987, 1.004, 2.5, 40.0, None)]
    ['0.5 ×', '0.99 ×', '1 ×', '2.5 ×', '40 ×', '–']
    """
    if ratio is None:
        return "–"
    return f"{float(f'{ratio:.2g}'):g} ×"
