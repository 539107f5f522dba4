"""Quality of the spike and dip detection, compared with two baselines.

    python -m pipelines.zeitgeist AAPL.csv AMZN.csv labels.json

Files ending in .json are labels, all others are series in the format of the Numenta Anomaly
Benchmark. The default is the made-up sample. All series get the same parameters; the scores use
labels only after all alerts are computed. With --cross-validate, thresholds are chosen on all
series but one and judged on that one, for each in turn.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pipelines.zeitgeist.quality.baselines import MovingAverage, SeasonalMean
from pipelines.zeitgeist.quality.scores import (
    METHODS,
    Looks,
    Score,
    Windows,
    alerts_of,
    score,
    together,
)
from pipelines.zeitgeist.quality.validation import validate
from pipelines.zeitgeist.sample import sample_labels, sample_series
from pipelines.zeitgeist.series import BadSeriesError, Series, read_labels, read_series

# Further thresholds of the baselines, to show the effect of tuning them.
OTHER_TIMES = (2, 4, 6, 8, 12)
OTHER_SIGMAS = (4, 6, 8, 12, 16)


def main() -> int:
    """Print the tables; 1 when a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.zeitgeist",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, help="series (.csv) and labels (.json)")
    parser.add_argument("--tuned", action="store_true", help="baselines at other thresholds, too")
    parser.add_argument(
        "--cross-validate", action="store_true", help="thresholds chosen without the judged series"
    )
    args = parser.parse_args()
    try:
        series, labels = _read(args.files)
    except (BadSeriesError, OSError) as error:
        print(f"this cannot be read: {error}", file=sys.stderr)
        return 1
    methods = {**METHODS, **(_others() if args.tuned else {})}
    scores = {name: _scores(method, series, labels) for name, method in methods.items()}
    _print_windows(series, scores["zeitgeist"])
    _print_scores(scores)
    if args.cross_validate:
        _print_folds(series, labels)
    return 0


def _read(files: Sequence[Path]) -> tuple[list[Series], Mapping[str, Windows]]:
    if not files:
        return list(sample_series()), sample_labels()
    labels: dict[str, Windows] = {}
    series = []
    for path in files:
        try:
            if path.suffix == ".json":
                labels |= read_labels(path.read_bytes())
            else:
                series.append(read_series(path.stem, path.read_bytes()))
        except BadSeriesError as error:
            raise BadSeriesError(f"{path}: {error}") from error
    if not series:
        raise BadSeriesError("the files must include a series, got labels only")
    return series, labels


def _others() -> Mapping[str, Callable[[], Looks]]:
    return {
        **{f"moving average, {x} times": partial(MovingAverage, x) for x in OTHER_TIMES},
        **{f"seasonal mean, {x} sigma": partial(SeasonalMean, x) for x in OTHER_SIGMAS},
    }


def _scores(
    method: Callable[[], Looks], all_series: Sequence[Series], labels: Mapping[str, Windows]
) -> Mapping[str, Score]:
    return {
        series.name: score(alerts_of(method, series), labels.get(series.name, ()), series.weeks)
        for series in all_series
    }


def _print_windows(all_series: Sequence[Series], scores: Mapping[str, Score]) -> None:
    """Print the delay of the first alert in each labelled window."""
    print("Labelled windows, and the first alert in each")
    for series in all_series:
        for window in scores[series.name].windows:
            outcome = "not found"
            if window.delay_ms is not None:
                outcome = f"found after {datetime.timedelta(milliseconds=window.delay_ms)}"
            print(f"  {series.name:<12} {_time(window.begin)} to {_time(window.end)}  {outcome}")


def _print_scores(scores: Mapping[str, Mapping[str, Score]]) -> None:
    """Print the score of each method over all series, and its false alerts a week."""
    print("\nAll series together, by the same parameters")
    head = ("method", "found", "precision", "recall", "F1", "false", "a week", "worst week")
    print("  {:<28} {:>7} {:>10} {:>7} {:>6} {:>6} {:>7} {:>11}".format(*head))
    for name, by_series in scores.items():
        all_ = together(list(by_series.values()))
        worst = max(single.false_a_week for single in by_series.values())
        print(
            f"  {name:<28} {f'{all_.hits}/{len(all_.windows)}':>7} {all_.precision:>10.2f} "
            f"{all_.recall:>7.2f} {all_.f1:>6.2f} {len(all_.false):>6} "
            f"{all_.false_a_week:>7.2f} {worst:>11.2f}"
        )


def _print_folds(series: Sequence[Series], labels: Mapping[str, Windows]) -> None:
    """Print the score of each series by thresholds that were chosen on the others."""
    validation = validate(series, labels)
    print("\nEach series by thresholds that were best on the others; means over equally good ones")
    print(f"  {'series':<28} {'found':>7} {'false':>6} {'F1':>6} {'best':>5}")
    for fold in validation.folds:
        found = f"{fold.hits:.1f}/{fold.windows}"
        best = len(fold.chosen)
        print(f"  {fold.name:<28} {found:>7} {fold.false:>6.1f} {fold.f1:>6.2f} {best:>5}")
    print(f"  {'together':<28} {validation.f1:>22.2f}")
    low, *_, high = sorted(validation.f1_of.values())
    print(f"  {len(validation.f1_of)} thresholds on all series: F1 {low:.2f} to {high:.2f}")


def _time(at: int) -> str:
    return f"{datetime.datetime.fromtimestamp(at / 1000, datetime.UTC):%Y-%m-%d %H:%M}"


if __name__ == "__main__":
    sys.exit(main())
