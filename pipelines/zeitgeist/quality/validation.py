"""Cross-validation of the thresholds: chosen on all series but one, judged on that one.

Each fold takes the thresholds with the best F1 on the other series; among equals, all count, by
their mean. So a figure of a fold owes nothing to the labels of its own series.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipelines.zeitgeist.detector import Detector, Rules
from pipelines.zeitgeist.model import Expected, Model
from pipelines.zeitgeist.quality.scores import Score, Windows, score, together
from pipelines.zeitgeist.series import BUCKET_MS, Series

# From half as strict to twice, around the thresholds as shipped.
SPIKES = (3.5, 5.0, 7.0)
DIPS = (7.0, 10.0, 14.0)
COUNTS = (1.0, 1.25, 1.5)
EVIDENCES = (1.25, 1.5, 2.0)

Measured = Sequence[tuple[int, float, Expected]]


@dataclass(frozen=True)
class Fold:
    """Result of a series whose labels were not used to choose the thresholds.

    Attributes:
        chosen: All thresholds that were best on the other series.
        hits, false: Means over the chosen ones.
    """

    name: str
    chosen: Sequence[Rules]
    hits: float
    false: float
    windows: int

    @property
    def f1(self) -> float:
        return _f1([self])


@dataclass(frozen=True)
class Validation:
    """All folds, and the F1 of each choice of thresholds on all series together."""

    folds: Sequence[Fold]
    f1_of: Mapping[Rules, float]

    @property
    def f1(self) -> float:
        """F1 of all folds together."""
        return _f1(self.folds)


def validate(
    all_series: Sequence[Series], labels: Mapping[str, Windows], choices: Sequence[Rules] = ()
) -> Validation:
    """Judge each series by thresholds that were chosen on the others.

    Args:
        choices: The thresholds to try; the default is `all_choices()`.
    """
    scores = {rules: dict[str, Score]() for rules in choices or all_choices()}
    for series in all_series:
        measured = measure(series)
        for rules, by_series in scores.items():
            alerts = _alerts(measured, rules)
            by_series[series.name] = score(alerts, labels.get(series.name, ()), series.weeks)
    f1_of = {rules: together(list(by.values())).f1 for rules, by in scores.items()}
    return Validation([_fold(series.name, scores) for series in all_series], f1_of)


def all_choices() -> Iterator[Rules]:
    """Yield all thresholds that are tried."""
    for numbers in itertools.product(SPIKES, DIPS, COUNTS, EVIDENCES):
        yield Rules(*numbers)


def measure(series: Series) -> Measured:
    """Return the buckets of a series, each with its prediction."""
    model, measured = Model(), list[tuple[int, float, Expected]]()
    for start, count in series.buckets:
        expected = model.expected(start)
        if expected is not None:
            measured.append((start, count, expected))
        model.learn(start, count)
    return measured


def _alerts(measured: Measured, rules: Rules) -> list[int]:
    detector = Detector(rules=rules)
    return [
        start + BUCKET_MS
        for start, count, expected in measured
        for _ in detector.complete(start, count, expected)
    ]


def _fold(name: str, scores: Mapping[Rules, Mapping[str, Score]]) -> Fold:
    f1_of = {
        rules: together([part for other, part in by_series.items() if other != name]).f1
        for rules, by_series in scores.items()
    }
    best = max(f1_of.values())
    chosen = [rules for rules, f1 in f1_of.items() if f1 == best]
    judged = [scores[rules][name] for rules in chosen]
    return Fold(
        name,
        chosen,
        sum(single.hits for single in judged) / len(judged),
        sum(len(single.false) for single in judged) / len(judged),
        len(judged[0].windows),
    )


def _f1(folds: Sequence[Fold]) -> float:
    """Return 2 x hits / (alerts + windows), which is the harmonic mean of precision and recall."""
    hits = sum(fold.hits for fold in folds)
    total = hits + sum(fold.false + fold.windows for fold in folds)
    return 2 * hits / total if total else 0.0
