"""Results of a run: the samples of each probe, and their percentiles."""

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
DIGITS = 4  # Decimals of a sample in milliseconds: a tenth of a microsecond.


@dataclass(frozen=True)
class Finding:
    """Samples of one probe in a run.

    Attributes:
        samples_ms: In the order of measurement; empty: not yet measured, or not measurable.
        note: The reason for an empty list.
        before_ms: The median of the previous run.
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
        """Return the ratio to the median of the previous run."""
        if self.p50_ms is None or not self.before_ms:
            return None
        return self.p50_ms / self.before_ms

    @property
    def times_then(self) -> float | None:
        """Return the ratio to the talk's number."""
        if self.p50_ms is None or self.probe.then_ms is None:
            return None
        return self.p50_ms / self.probe.then_ms


def percentile(samples: Sequence[float], share: float) -> float | None:
    """Return the smallest sample that this share does not exceed; None: there is none.

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
    """Store the samples of a probe and their time, in place of earlier ones."""
    samples_ms = [_ms(sample) for sample in samples_s[:MAX_SAMPLES]]

    def body() -> None:
        _put(run_id, probe, {"samples_ms": samples_ms, "note": note}, at)

    transact(body)


def append(run_id: str, probe: str, sample_s: float, *, place: int, at: datetime.datetime) -> None:
    """Store the sample of a place, the next one; a filled place keeps its sample."""

    def body() -> None:
        run = numbers_run_key(run_id).get()
        samples = list(run.results.get(probe, {}).get("samples_ms", [])) if run else []
        if len(samples) == place:
            result = {"samples_ms": [*samples, _ms(sample_s)], "note": ""}
            _put(run_id, probe, result, at)

    transact(body)


def _put(run_id: str, probe: str, result: Mapping[str, Any], at: datetime.datetime) -> None:
    run = numbers_run_key(run_id).get()
    if run is not None:  # The run may be deleted.
        at_ms = round(at.timestamp() * 1000)
        run.results = {**run.results, probe: {**result, "at_ms": at_ms}}
        run.put()


def _ms(sample_s: float) -> float:
    return round(sample_s * 1000, DIGITS)


def last_at_ms(run: NumbersRun) -> int:
    """Return the time of a run's last sample, in milliseconds since 1970; 0: it has none."""
    return max((int(result.get("at_ms", 0)) for result in run.results.values()), default=0)


def findings(run: NumbersRun | None, previous: NumbersRun | None = None) -> list[Finding]:
    """Return the results of a run in the order of the probes, with the previous run's medians."""
    results = run.results if run else {}
    earlier = previous.results if previous else {}
    return [
        Finding(
            probe,
            results.get(probe.name, {}).get("samples_ms", []),
            results.get(probe.name, {}).get("note", ""),
            percentile(earlier.get(probe.name, {}).get("samples_ms", []), 0.5),
        )
        for probe in PROBES
    ]
