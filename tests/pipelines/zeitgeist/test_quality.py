"""How well spikes and dips are told: files, scores, the sample, and series elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pipelines.zeitgeist.__main__ import main
from pipelines.zeitgeist.detector import RULES, Rules
from pipelines.zeitgeist.quality.published import SCORES
from pipelines.zeitgeist.quality.scores import METHODS, Score, Zeitgeist, alerts_of, score, together
from pipelines.zeitgeist.quality.validation import validate
from pipelines.zeitgeist.sample import EVENTS, QUERIES, sample_labels, sample_series
from pipelines.zeitgeist.series import (
    BUCKET_MS,
    DAY_MS,
    MAX_COUNT,
    BadSeriesError,
    Series,
    read_labels,
    read_series,
)

# A folder elsewhere, with series and a file of labels.
REAL_SERIES = os.environ.get("ZEITGEIST_SERIES", "")
WEEK = 7 * DAY_MS


def test_a_series_is_read_by_bucket_in_order_of_time() -> None:
    content = (
        b"timestamp,value\n1970-01-01 00:12:53,5\n1970-01-01 00:02:53,2\n1970-01-01 00:03,1.5\n"
    )

    series = read_series("s", content)

    assert series.buckets == [(0, 3.5), (2 * BUCKET_MS, 5)]
    assert series.gaps == [(BUCKET_MS, 2 * BUCKET_MS)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"timestamp,value\n",
        b"1970-01-01,1,2",
        b"yesterday,1",
        b"1969-12-31 23:59,1",
        b"9999-12-31 22:00,1",
        b"1970-01-01,-1",
        b"1970-01-01,nan",
        f"1970-01-01,{MAX_COUNT * 2}".encode(),
        b"1970-01-01,1\n1999-01-01,1",
        b"\xff\xfe",
    ],
)
def test_what_is_no_series_is_refused(content: bytes) -> None:
    with pytest.raises(BadSeriesError):
        read_series("s", content)


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a": [["1970-01-01"]]}', b'{"a": 1}'])
def test_what_are_no_labels_is_refused(content: bytes) -> None:
    with pytest.raises(BadSeriesError):
        read_labels(content)


def test_labels_are_known_by_the_name_of_their_series() -> None:
    labels = read_labels(b'{"realTweets/A.csv": [["1970-01-01 00:00:01.000000", "1970-01-02"]]}')

    assert labels == {"A": [(1_000, DAY_MS)]}


def test_the_first_alert_in_a_window_finds_it_and_those_outside_are_false() -> None:
    windows = [(100, 200), (300, 400)]
    found = score([50, 150, 160, 200, 500], windows, weeks=2)

    assert [each.delay_ms for each in found.windows] == [50, None]
    assert (found.hits, list(found.false), found.false_a_week) == (1, [50, 500], 1.0)
    assert (found.precision, found.recall, found.f1) == (1 / 3, 1 / 2, 2 / 5)
    assert score([], [], weeks=0).f1 == 0.0


def test_series_count_alike_when_they_are_taken_together() -> None:
    one, other = score([150], [(100, 200)], weeks=1), score([50], [(100, 200)], weeks=3)

    both = together([one, other])

    assert (both.hits, len(both.windows), len(both.false), both.weeks) == (1, 2, 1, 4)


def scores_of(method: str, series: list[Series]) -> Score:
    labels = sample_labels()
    return together(
        [score(alerts_of(METHODS[method], each), labels[each.name], each.weeks) for each in series]
    )


def test_all_that_is_known_of_the_sample_is_told_and_little_else() -> None:
    """Each event within half an hour, and no worse than both plain ways."""
    series = list(sample_series())
    ours, *others = [scores_of(method, series) for method in METHODS]

    assert (ours.hits, len(ours.windows)) == (len(EVENTS), len(EVENTS))
    assert all((each.delay_ms or DAY_MS) <= 6 * BUCKET_MS for each in ours.windows)
    assert ours.false_a_week <= 0.5
    assert all(ours.f1 >= other.f1 for other in others)


def test_the_sample_is_the_same_each_time_and_goes_on_for_days() -> None:
    first, again = list(sample_series()), list(sample_series())

    assert first == again
    assert [each.name for each in first] == [query.name for query in QUERIES]
    assert all(each.weeks > 1 and not each.gaps for each in first)


def test_the_command_says_how_well_files_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("timestamp,value\n1970-01-01 00:00,1\n1970-01-03 00:00,1\n")
    (tmp_path / "labels.json").write_text('{"a": [["1970-01-02", "1970-01-03"]]}')
    monkeypatch.setattr(sys, "argv", ["", *map(str, sorted(tmp_path.iterdir())), "--tuned"])
    assert main() == 0
    said = capsys.readouterr().out
    assert "1970-01-02 00:00 to 1970-01-03 00:00  not found" in said
    assert all(method in said for method in METHODS)

    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "gone.csv")])
    assert main() == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_series_is_judged_by_thresholds_that_were_chosen_on_the_others() -> None:
    """Its own labels, even if they call every alert false, change nothing of what is chosen."""
    choices = [RULES, Rules(spike=1000.0, dip=1000.0)]  # The second one reports nothing.
    series, labels = list(sample_series())[:2], dict(sample_labels())
    first, other = validate(series, labels, choices).folds
    labels[series[0].name] = []
    again, _ = validate(series, labels, choices).folds

    assert first.chosen == again.chosen == [RULES]
    assert (first.hits, first.windows) == (2, 2)
    assert (again.hits, again.false, again.f1) == (0, 2, 0.0)
    assert other.f1 == 1.0


@pytest.mark.skipif(not REAL_SERIES, reason="ZEITGEIST_SERIES names no folder")
def test_real_series_are_told_better_than_by_both_plain_ways() -> None:
    """With one set of parameters, and at most two false alerts a week of each series."""
    folder = Path(REAL_SERIES)
    labels = read_labels(next(folder.glob("*.json")).read_bytes())
    many = [read_series(path.stem, path.read_bytes()) for path in sorted(folder.glob("*.csv"))]
    found = {
        name: [score(alerts_of(method, each), labels[each.name], each.weeks) for each in many]
        for name, method in METHODS.items()
    }
    ours, *others = [together(scores).f1 for scores in found.values()]

    assert all(ours > other for other in others)
    assert all(each.false_a_week <= 2 for each in found["zeitgeist"])
    assert round(ours, 2) == SCORES["Zeitgeist, as shipped"]
    assert Zeitgeist in METHODS.values()
