"""Quality of the detection: alerts compared with the labelled windows of series.

A labelled window is found if there is an alert in it, from its begin to its end; the first one
counts, and later ones in the same window are neither right nor wrong. An alert outside of all
windows is false. Precision is windows found / (windows found + false alerts), recall is windows
found / windows, F1 their harmonic mean.

Only this module uses labels, after all alerts are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.zeitgeist.detector import Alert, Detector, Kind
from pipelines.zeitgeist.model import Model
from pipelines.zeitgeist.quality.baselines import SIGMAS, TIMES, MovingAverage, SeasonalMean
from pipelines.zeitgeist.series import BUCKET_MS, Series

Windows = Sequence[tuple[int, int]]


class Looks(Protocol):
    """A detection method for the buckets of one series, one after the other."""

    def look(self, start: int, count: float) -> Sequence[Kind]: ...


class Zeitgeist:
    """Model and detector of one series, in the order of the pipeline."""

    def __init__(self) -> None:
        self.model, self.detector = Model(), Detector()

    def alerts(self, start: int, count: float) -> list[Alert]:
        """Process a complete bucket; return its alerts."""
        expected = self.model.expected(start)
        alerts = [] if expected is None else self.detector.complete(start, count, expected)
        self.model.learn(start, count)
        return alerts

    def look(self, start: int, count: float) -> Sequence[Kind]:
        return [alert.kind for alert in self.alerts(start, count)]


METHODS: Mapping[str, Callable[[], Looks]] = {
    "zeitgeist": Zeitgeist,
    f"moving average, {TIMES:g} times": MovingAverage,
    f"seasonal mean, {SIGMAS:g} sigma": SeasonalMean,
}


@dataclass(frozen=True)
class Found:
    """A labelled window, and the delay of its first alert; None: there was none."""

    begin: int
    end: int
    delay_ms: int | None


@dataclass(frozen=True)
class Score:
    """Score of the alerts against the labels, of one series or several."""

    windows: Sequence[Found]
    false: Sequence[int]  # Times of the false alerts.
    weeks: float

    @property
    def hits(self) -> int:
        return sum(window.delay_ms is not None for window in self.windows)

    @property
    def precision(self) -> float:
        alerts = self.hits + len(self.false)
        return self.hits / alerts if alerts else 0.0

    @property
    def recall(self) -> float:
        return self.hits / len(self.windows) if self.windows else 0.0

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    @property
    def false_a_week(self) -> float:
        return len(self.false) / self.weeks if self.weeks else 0.0


def alerts_of(method: Callable[[], Looks], series: Series) -> list[int]:
    """Return the times of a method's alerts in a series: the ends of buckets."""
    looks = method()
    return [start + BUCKET_MS for start, count in series.buckets for _ in looks.look(start, count)]


def score(alerts: Sequence[int], windows: Windows, weeks: float) -> Score:
    """Compare the alerts of a series with its labelled windows."""
    outcomes = []
    for begin, end in windows:
        alert_at = min((at for at in alerts if begin <= at <= end), default=None)
        outcomes.append(Found(begin, end, None if alert_at is None else alert_at - begin))
    false = [at for at in alerts if not any(begin <= at <= end for begin, end in windows)]
    return Score(outcomes, false, weeks)


def together(scores: Sequence[Score]) -> Score:
    """Return the joint score of several series: all windows and false alerts count alike."""
    return Score(
        [window for part in scores for window in part.windows],
        [at for part in scores for at in part.false],
        sum(part.weeks for part in scores),
    )
