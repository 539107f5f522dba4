"""What a run has found: samples of each probe, and what follows from them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.numbers import NumbersRun, numbers_run_key
from pipelines.numbers.probes import PROBES, Probe
from rollforward.datastore import transact

MAX_SAMPLES = 100
DIGITS = 4  # Of a sample in milliseconds: a tenth of a microsecond.


@dataclass(frozen=True)
class Finding:
    """What a run found for a probe.

    Attributes:
        samples_ms: In the order in which they were taken; none: not yet, or not at all.
        note: Why there are none.
        before_ms: The median of the run before.
    """

    probe: Probe
    samples_ms: Sequence[float] = ()
    note: str = ""
    before_ms: float | None = None

    @property
    def p50_ms(self) -> float | None:
        return percentile(self.samples_ms, 0.5)

    @property
    def p95_ms(self) -> float | None:
        return percentile(self.samples_ms, 0.95)

    @property
    def change(self) -> float | None:
        """Return how many times the median of the run before this is."""
        if self.p50_ms is None or not self.before_ms:
            return None
        return self.p50_ms / self.before_ms

    @property
    def times_then(self) -> float | None:
        """Return how many times the talk's number this is."""
        if self.p50_ms is None or self.probe.then_ms is None:
            return None
        return self.p50_ms / self.probe.then_ms


def percentile(samples: Sequence[float], share: float) -> float | None:
    """Return the smallest sample that so large a share does not exceed; None: there is none.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([7.0], 0.95), percentile([], 0.5)
    (2.0, 7.0, None)
    """
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else None


def record(
    run_id: str,
    probe: str,
    samples_s: Sequence[float],
    note: str = "",
    *,
    at: datetime.datetime,
) -> None:
    """Keep the samples of a probe and when they were taken, in the place of any that were there."""
    samples_ms = [_ms(sample) for sample in samples_s[:MAX_SAMPLES]]

    def body() -> None:
        _put(run_id, probe, {"samples_ms": samples_ms, "note": note}, at)

    transact(body)


def append(run_id: str, probe: str, sample_s: float, *, place: int, at: datetime.datetime) -> None:
    """Keep one more sample, which is that of a place; a place that is filled stays as it is."""

    def body() -> None:
        run = numbers_run_key(run_id).get()
        samples = list(run.results.get(probe, {}).get("samples_ms", [])) if run else []
        if len(samples) == place:
            found = {"samples_ms": [*samples, _ms(sample_s)], "note": ""}
            _put(run_id, probe, found, at)

    transact(body)


def _put(run_id: str, probe: str, found: Mapping[str, Any], at: datetime.datetime) -> None:
    run = numbers_run_key(run_id).get()
    if run is not None:  # It may be deleted by now.
        at_ms = round(at.timestamp() * 1000)
        run.results = {**run.results, probe: {**found, "at_ms": at_ms}}
        run.put()


def _ms(sample_s: float) -> float:
    return round(sample_s * 1000, DIGITS)


def last_at_ms(run: NumbersRun) -> int:
    """Return when a run's last sample was kept, in milliseconds since 1970; 0: none was."""
    return max((int(found.get("at_ms", 0)) for found in run.results.values()), default=0)


def findings(run: NumbersRun | None, before: NumbersRun | None = None) -> list[Finding]:
    """Return what a run found, in the order of the probes, beside the run before it."""
    found = run.results if run else {}
    earlier = before.results if before else {}
    return [
        Finding(
            probe,
            found.get(probe.name, {}).get("samples_ms", []),
            found.get(probe.name, {}).get("note", ""),
            percentile(earlier.get(probe.name, {}).get("samples_ms", []), 0.5),
        )
        for probe in PROBES
    ]
