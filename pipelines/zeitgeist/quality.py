"""How well spikes and dips are told, on series in which somebody has labelled what is odd.

A labelled window is found if there is an alert in it, from its begin to its end; the first one
counts, and what follows in the same window is neither right nor wrong. An alert outside of all
windows is false. Precision is windows found / (windows found + false alerts), recall is windows
found / windows, F1 their harmonic mean.

Labels are read here, after all alerts are known, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.zeitgeist.baselines import SIGMAS, TIMES, MovingAverage, SeasonalMean
from pipelines.zeitgeist.detector import Alert, Detector, Kind
from pipelines.zeitgeist.model import Model
from pipelines.zeitgeist.series import BUCKET_MS, Series

Windows = Sequence[tuple[int, int]]


class Looks(Protocol):
    """What looks at the buckets of one series, one after the other."""

    def look(self, start: int, count: float) -> Sequence[Kind]: ...


class Zeitgeist:
    """The model and the detector of one series, as the pipeline runs them."""

    def __init__(self) -> None:
        self.model, self.detector = Model(), Detector()

    def alerts(self, start: int, count: float) -> list[Alert]:
        """Take a complete bucket in; return what is told."""
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
    """A labelled window, and how long after its begin the first alert came; None: none came."""

    begin: int
    end: int
    delay_ms: int | None


@dataclass(frozen=True)
class Score:
    """How well alerts fit labels; of one series, or of several together."""

    windows: Sequence[Found]
    false: Sequence[int]  # When false alerts were told.
    weeks: float

    @property
    def hits(self) -> int:
        return sum(each.delay_ms is not None for each in self.windows)

    @property
    def precision(self) -> float:
        told = self.hits + len(self.false)
        return self.hits / told if told else 0.0

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
    """Return when a method tells something of a series: at the ends of buckets."""
    looks = method()
    return [start + BUCKET_MS for start, count in series.buckets for _ in looks.look(start, count)]


def score(alerts: Sequence[int], windows: Windows, weeks: float) -> Score:
    """Compare the alerts of a series with its labelled windows."""
    found = []
    for begin, end in windows:
        first = min((at for at in alerts if begin <= at <= end), default=None)
        found.append(Found(begin, end, None if first is None else first - begin))
    false = [at for at in alerts if not any(begin <= at <= end for begin, end in windows)]
    return Score(found, false, weeks)


def together(scores: Sequence[Score]) -> Score:
    """Return the score of several series: their windows and false alerts, all counted alike."""
    return Score(
        [window for each in scores for window in each.windows],
        [at for each in scores for at in each.false],
        sum(each.weeks for each in scores),
    )
