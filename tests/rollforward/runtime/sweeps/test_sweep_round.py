"""Old rows that a sweep wakes; a pause of the sweep delays none beyond it."""

from __future__ import annotations

import datetime

import pytest

from rollforward.runtime.sweeps.entities import SweepMark, mark_key
from rollforward.runtime.sweeps.sweep_round import SweepRound
from tests.infra.world import World

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's are: naive_utc, in UTC.
STALE_S = 15.0
MINUTE_S = 60.0


def due_times(last_s: float, pauses: dict[float, float]) -> list[float]:
    """Return when a row made at noon is woken by a sweep each minute, in seconds after noon.

    Args:
        last_s: How long the row waits.
        pauses: When the sweep stops, and for how long.
    """
    woken, since, at_s = [], NOON - datetime.timedelta(minutes=1), 0.0
    while at_s <= last_s:
        round_ = SweepRound.of("test", NOON + datetime.timedelta(seconds=at_s), since)
        if round_.is_due(NOON, stale_s=STALE_S):
            woken.append(at_s)
        since = round_.began
        at_s += pauses.get(at_s, MINUTE_S)
    return woken


def test_a_row_is_woken_each_minute_then_at_ten_twenty_forty_minutes_then_each_hour() -> None:
    """Both sides: when it is woken, and when it is left alone."""
    minutes = [at_s / 60 for at_s in due_times(4 * 3600, {})]

    assert minutes == [*range(1, 11), 20, 40, 60, 120, 180, 240]


@pytest.mark.parametrize("pause_min", [13, 25, 90, 1440])
def test_the_first_sweep_after_a_pause_wakes_what_became_due_in_it(pause_min: int) -> None:
    """A sweep that was away for minutes or a day wakes the row at once when it is back."""
    begin_s = 5 * MINUTE_S
    woken = due_times(begin_s + pause_min * MINUTE_S, {begin_s: pause_min * MINUTE_S})

    assert woken[-1] == begin_s + pause_min * MINUTE_S


def test_a_row_is_left_alone_until_it_is_stale() -> None:
    """A row that its own process may still care for is not woken."""
    round_ = SweepRound.of("test", NOON + datetime.timedelta(seconds=STALE_S), NOON)

    assert round_.is_due(NOON, stale_s=STALE_S)
    assert not round_.is_due(NOON, stale_s=STALE_S + 0.001)


def test_a_row_from_a_clock_far_ahead_is_woken() -> None:
    """Otherwise a row from an hour ahead would wait for an hour."""
    round_ = SweepRound.of("test", NOON, NOON)

    assert round_.is_due(NOON + datetime.timedelta(hours=1), stale_s=STALE_S)
    assert not round_.is_due(NOON + datetime.timedelta(seconds=30), stale_s=STALE_S)


def test_a_round_without_old_rows_reads_and_writes_nothing(world: World) -> None:
    """An idle sweep, or one that meets young rows only, costs nothing here."""
    with world.clients.context(), world.plan.watched():
        round_ = SweepRound.begin(world.clients, "test")
        round_.is_due(round_.began - datetime.timedelta(minutes=9), stale_s=STALE_S)
        round_.end()

        assert world.plan.calls == []


def test_a_round_counts_from_the_last_one_that_ended(world: World) -> None:
    """One that broke off before its end is made up for by the next."""
    with world.clients.context():
        row = SweepRound.begin(world.clients, "test").began - datetime.timedelta(minutes=19.5)
        ended = SweepRound.begin(world.clients, "test")
        assert ended.is_due(row, stale_s=STALE_S), "there was no round before"
        ended.end()

        world.clock.sleep(61)
        broken = SweepRound.begin(world.clients, "test")
        assert broken.is_due(row, stale_s=STALE_S)
        world.clock.sleep(60)
        next_round = SweepRound.begin(world.clients, "test")
        assert next_round.is_due(row, stale_s=STALE_S)
        next_round.end()
        world.clock.sleep(60)

        assert not SweepRound.begin(world.clients, "test").is_due(row, stale_s=STALE_S)
        assert mark_key("test").get().at == next_round.began


def test_a_mark_from_a_clock_far_ahead_hides_nothing(world: World) -> None:
    """A machine that was an hour ahead made the last mark: it means nothing."""
    with world.clients.context():
        round_ = SweepRound.begin(world.clients, "test")
        ahead = round_.began + datetime.timedelta(hours=1)
        SweepMark(key=mark_key("test"), at=ahead).put()

        assert round_.is_due(round_.began - datetime.timedelta(minutes=30), stale_s=STALE_S)
