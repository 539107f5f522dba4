"""Spikes and dips: the model and the detector, on series that are made here."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipelines.zeitgeist.detector import (
    DIP,
    REFRACTORY_MS,
    RULES,
    SPIKE,
    Alert,
    Detector,
    Hour,
)
from pipelines.zeitgeist.highs import DAYS, Highs
from pipelines.zeitgeist.model import MIN_SEEN, Model
from pipelines.zeitgeist.pipeline import NewWatcher, Watcher
from pipelines.zeitgeist.quality.scores import Zeitgeist
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS

DAY = DAY_MS // BUCKET_MS

Series = list[tuple[int, float]]


def series(days: int, factor: Callable[[int], float] = lambda bucket: 1.0, seed: int = 1) -> Series:
    """Return counts with a daily rhythm, each times a factor of its bucket."""
    rng = random.Random(seed)
    counts = []
    for bucket in range(days * DAY):
        mean = 100 * math.exp(0.8 * math.sin(2 * math.pi * bucket / DAY))
        counts.append((bucket * BUCKET_MS, max(0, round(rng.gauss(mean, 12) * factor(bucket)))))
    return counts


def during(begin: int, buckets: int, times: float) -> Callable[[int], float]:
    return lambda bucket: times if begin <= bucket < begin + buckets else 1.0


def alerts(counts: Series, zeitgeist: Zeitgeist | None = None) -> list[Alert]:
    zeitgeist = zeitgeist or Zeitgeist()
    return [alert for start, count in counts for alert in zeitgeist.alerts(start, count)]


def test_what_has_a_rhythm_is_not_odd() -> None:
    """Ten days, in which it doubles and halves each day, and varies by 12."""
    assert alerts(series(10)) == []


@pytest.mark.parametrize(("times", "kind"), [(4.0, SPIKE), (0.1, DIP)])
def test_a_bucket_far_off_is_told_and_one_event_is_told_once(times: float, kind: str) -> None:
    event = 6 * DAY + 100
    found = alerts(series(8, during(event, 30, times)))

    assert [(each.kind, each.start // BUCKET_MS - event <= 2) for each in found] == [(kind, True)]
    assert found[0].at < found[0].start + REFRACTORY_MS
    assert found[0].evidence > found[0].bar >= RULES.least(found[0].kind)


def test_several_buckets_that_are_somewhat_off_are_as_good_as_one_far_off() -> None:
    one, several = during(6 * DAY, 1, 2.2), during(6 * DAY, 4, 2.2)

    assert alerts(series(7, one)) == []
    assert [each.kind for each in alerts(series(7, several))] == [SPIKE]


def test_alerts_follow_from_what_was_before_them_alone() -> None:
    """No look-ahead: those of a beginning are the beginning of those of all."""
    rising = {(2 * number + 5) * DAY - 1: 5.0 * 4**number for number in range(3)}
    counts = series(10, lambda bucket: rising.get(bucket, 1.0))
    found = alerts(counts)

    assert len(found) >= 2
    for days in (4, 6, 8):
        cut = days * DAY
        assert alerts(counts[:cut]) == [each for each in found if each.start < cut * BUCKET_MS]


def test_a_spike_is_told_while_its_bucket_is_open_and_then_not_again() -> None:
    zeitgeist = Zeitgeist()
    assert alerts(series(5), zeitgeist) == []
    start = 5 * DAY_MS
    expected = zeitgeist.model.expected(start)
    assert expected is not None

    usual = expected.count(0)
    assert zeitgeist.detector.partial(start, start + 1, usual / 2, expected) == []
    [alert] = zeitgeist.detector.partial(start, start + 60_000, 9 * usual, expected)
    assert (alert.kind, alert.start, alert.at) == (SPIKE, start, start + 60_000)
    assert zeitgeist.alerts(start, 10 * usual) == []


def test_a_bucket_far_ahead_silences_none_that_is_complete_later() -> None:
    """Where results lag, what is read so far of a later bucket waits for those before it."""
    zeitgeist = Zeitgeist()
    alerts(series(5), zeitgeist)
    start = 5 * DAY_MS
    expected = zeitgeist.model.expected(start)
    assert expected is not None

    usual, ahead = expected.count(0), start + 12 * BUCKET_MS
    assert zeitgeist.detector.partial(ahead, ahead + 1, 9 * usual, expected) == []
    [alert] = zeitgeist.alerts(start, 9 * usual)
    assert (alert.kind, alert.start) == (SPIKE, start)


def test_a_count_that_is_not_complete_is_no_dip() -> None:
    zeitgeist = Zeitgeist()
    alerts(series(5), zeitgeist)
    for bucket in range(20):
        start = 5 * DAY_MS + bucket * BUCKET_MS
        expected = zeitgeist.model.expected(start)
        assert expected is not None
        assert zeitgeist.detector.partial(start, start, 0, expected) == []


def test_a_series_that_bursts_each_day_has_a_higher_bar() -> None:
    """Bursts as it has them are no news; one that is much higher is."""
    daily = series(40, lambda bucket: 5.0 if bucket % DAY == 50 else 1.0)
    assert [each for each in alerts(daily) if each.start // DAY_MS >= 6] == []

    higher = during(39 * DAY + 50, 1, 8.0)
    mixed = [(start, count * higher(start // BUCKET_MS)) for start, count in daily]
    assert 39 * DAY + 50 in [each.start // BUCKET_MS for each in alerts(mixed)]


def test_an_hour_that_is_a_record_is_told_although_no_bucket_of_it_is() -> None:
    """An event that lasts: each bucket is half of the burst of each day, the hour is a record."""
    lasting = during(12 * DAY + 60, 24, 2.5)
    counts = series(14, lambda bucket: 5.0 if bucket % DAY == 50 else lasting(bucket))
    found = [alert for alert in alerts(counts) if alert.start // DAY_MS >= 6]

    assert [(alert.kind, alert.start // DAY_MS) for alert in found] == [(SPIKE, 12)]
    assert found[0].bar == RULES.spike
    assert found[0].count < max(count for _, count in counts[: 12 * DAY]) / RULES.count
    hour, hours = 0.0, list[float]()
    for _, count in counts:
        hour += (count - hour) / 12
        hours.append(hour)
    least = RULES.count * max(hours[: 12 * DAY])
    assert found[0].start // BUCKET_MS == next(n for n, hour in enumerate(hours) if hour > least)


def test_an_hour_that_is_a_record_is_told_while_its_last_bucket_is_open() -> None:
    """As an open bucket only grows, it is told in the bucket in which a plain run tells it."""
    lasting = during(12 * DAY + 60, 24, 2.5)
    counts = series(13, lambda bucket: 5.0 if bucket % DAY == 50 else lasting(bucket))
    plain = [alert for alert in alerts(counts) if alert.start >= 12 * DAY_MS]
    zeitgeist, found = Zeitgeist(), list[Alert]()
    for start, count in counts:
        expected = zeitgeist.model.expected(start)
        if expected is not None and start >= 12 * DAY_MS:
            found += zeitgeist.detector.partial(start, start + 1, count, expected)
        found += [alert for alert in zeitgeist.alerts(start, count) if start >= 12 * DAY_MS]

    assert [alert.start for alert in found] == [alert.start for alert in plain] != []
    assert found[0].at == found[0].start + 1


def test_an_event_does_not_hide_a_smaller_one_of_another_day() -> None:
    """Of a burst of 200 times the bar has learned no more than of one that just reached it."""
    first, second = during(4 * DAY + 50, 5, 200.0), during(6 * DAY + 50, 5, 8.0)
    found = alerts(series(7, lambda bucket: first(bucket) * second(bucket)))

    assert [(each.kind, each.start // DAY_MS) for each in found] == [(SPIKE, 4), (SPIKE, 6)]


def test_a_burst_teaches_little_and_what_stays_is_usual_after_a_day() -> None:
    burst, stays = Zeitgeist(), Zeitgeist()
    calm = Zeitgeist()
    alerts(series(8), calm)
    alerts(series(8, during(7 * DAY, 6, 50.0)), burst)
    found = alerts(series(14, during(7 * DAY, 10 * DAY, 3.0)), stays)

    means = [each.model.expected(8 * DAY_MS).count(0) for each in (calm, burst)]  # type: ignore[union-attr]
    assert means[1] < 1.3 * means[0]
    assert len(found) <= 3
    assert stays.model.expected(14 * DAY_MS).count(0) > 2 * means[0]  # type: ignore[union-attr]


def test_nothing_is_expected_of_what_was_not_seen_for_a_day() -> None:
    model = Model()
    for start, count in series(2):
        known = model.expected(start)
        assert (known is None) == (start < MIN_SEEN * BUCKET_MS)
        model.learn(start, count)


def test_what_is_kept_is_all_there_is_and_does_not_grow() -> None:
    """As JSON and back after each bucket: the same alerts; eight weeks need no more than four."""
    counts = series(5, during(4 * DAY + 5, 3, 6.0))
    whole, found = alerts(counts), []
    model, detector = Model(), Detector()
    for start, count in counts:
        model = Model.of(json.loads(json.dumps(model.kept())))
        detector = Detector.of(json.loads(json.dumps(detector.kept())))
        expected = model.expected(start)
        found += [] if expected is None else detector.complete(start, count, expected)
        model.learn(start, count)
    assert found == whole != []

    long = Zeitgeist()
    alerts(series(32), long)
    assert len(long.detector.sides[SPIKE].evidences.days) == DAYS
    assert len(long.detector.sides[SPIKE].counts.days) == DAYS
    assert len(long.detector.hour.means.days) == DAYS
    assert len(json.dumps([long.model.kept(), long.detector.kept()])) < 10_000


def test_a_state_of_one_version_is_one_of_the_other() -> None:
    """G15: each reads what the other has left, and nothing of it is lost on the way."""
    zeitgeist = Zeitgeist()
    assert alerts(series(8, during(6 * DAY, 3, 9.0)), zeitgeist)
    first, second = Watcher(), NewWatcher()
    kept = {"detector": zeitgeist.detector.kept()}
    named = second.load(first.codec.dump(kept), 1)

    assert Detector.of_named(named["named"]) == zeitgeist.detector
    assert first.load(second.codec.dump(named), 2) == kept
    assert Detector.of_named(second.upgrade({}, 1)["named"]) == Detector()


def rare(days: int, mean: float) -> Series:
    rng = random.Random(5)
    return [
        (bucket * BUCKET_MS, sum(rng.random() < mean / 10 for _ in range(10)))
        for bucket in range(days * DAY)
    ]


@pytest.mark.parametrize("mean", [0.03, 0.3, 1.0])
def test_rare_counts_vary_by_chance_and_are_not_odd(mean: float) -> None:
    """Of a mean of one in five minutes, none for a quarter of an hour is no dip."""
    assert alerts(rare(10, mean)) == []


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_count_of_a_silent_series_is_no_spike(count: int) -> None:
    event = 6 * DAY + 3
    assert alerts([(n * BUCKET_MS, count if n == event else 0) for n in range(7 * DAY)]) == []


def test_a_burst_of_rare_counts_is_told() -> None:
    """Three times 6 in five minutes, where the mean is one in a quarter of an hour."""
    event = 9 * DAY + 7
    counts = [
        (start, 6 if event <= start // BUCKET_MS < event + 3 else count)
        for start, count in rare(10, 0.3)
    ]
    found = [alert for alert in alerts(counts) if alert.start // BUCKET_MS >= event]

    assert [(alert.kind, alert.start // BUCKET_MS < event + 3) for alert in found] == [
        (SPIKE, True)
    ]


def test_silent_days_give_no_record_that_lasts() -> None:
    """Of a series that begins with zeros, the first day with counts is the first record."""
    highs = Highs()
    for highest in [0.0, 0.0, 100.0, 100.0]:
        highs.take(highest)
        highs.end_day()
    assert highs.highest == 100.0


def test_a_state_without_an_hour_keeps_all_else() -> None:
    """G15: of before the mean of the hour, in both forms; and what is read of it has not moved."""
    zeitgeist = Zeitgeist()
    alerts(series(8, during(6 * DAY, 3, 9.0)), zeitgeist)
    detector = zeitgeist.detector
    without = replace(detector, hour=Hour())

    for stored, read in ((detector.kept(), Detector.of), (detector.named(), Detector.of_named)):
        assert read(stored) == detector != without
        del stored["hour"]
        assert read(stored) == without
        assert sorted(stored) == ["last", "sides", "taken"]
    assert len(detector.kept()["sides"][SPIKE]) == 4


def test_a_state_of_another_form_is_learned_anew() -> None:
    """No delivery fails over what an older version has stored."""
    side = [0.1, 2.0, [1.0, 1.5], None]
    named = {"evidence": 0.1, "highest": 2.0, "days": [1.0, 1.5], "told_at": None}
    old = {"last": 300_000, "taken": 2}

    assert Detector.of({**old, SPIKE: side, DIP: side}) == Detector()
    assert Detector.of_named({**old, "sides": {SPIKE: named, DIP: named}}) == Detector()
