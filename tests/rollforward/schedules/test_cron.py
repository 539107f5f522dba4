"""Times of cron expressions: by the wall clock, also where that jumps."""

from __future__ import annotations

import datetime

import pytest

from rollforward.runtime import Clients
from rollforward.schedules import BadScheduleError, schedule
from rollforward.schedules.cron import MISSED, Missed, next_tick, ticks_to_run

pytestmark = pytest.mark.fast


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("cron", "tz", "after", "expected"),
    [
        ("0 9 * * 1", "Europe/Berlin", "2030-01-05", "2030-01-07T08:00"),
        ("0 9 * * 1", "Europe/Berlin", "2030-07-06", "2030-07-08T07:00"),
        ("30 2 * * *", "Europe/Berlin", "2030-03-31", "2030-03-31T01:00"),  # Skipped: right after.
        ("30 2 * * *", "Europe/Berlin", "2030-10-27", "2030-10-27T00:30"),  # Repeated: the first.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2030-10-27T00:30",
            "2030-10-28T01:30",
        ),  # Once.
        ("*/30 * * * *", "Europe/Berlin", "2030-10-27T00:30", "2030-10-27T01:00"),
        ("*/30 * * * *", "Europe/Berlin", "2030-10-27T01:00", "2030-10-27T01:30"),
        ("0 0 29 2 *", "UTC", "2030-01-01", "2032-02-29T00:00"),
        ("0 12 L * *", "UTC", "2030-02-01", "2030-02-28T12:00"),
    ],
)
def test_a_tick_follows_the_wall_clock(cron: str, tz: str, after: str, expected: str) -> None:
    """T1: summer time, the hour that is skipped, the hour that is repeated, leap days."""
    assert next_tick(cron, tz, at(after)) == at(expected)


@pytest.mark.parametrize(
    ("missed", "now", "expected"),
    [
        ("once", "2030-01-01T00:10", ["00:10"]),
        ("once", "2030-01-01T00:49", ["00:40"]),
        ("all", "2030-01-01T00:40", ["00:10", "00:20", "00:30", "00:40"]),
        ("skip", "2030-01-01T00:44", ["00:40"]),
        ("skip", "2030-01-01T00:46", []),
        ("skip", "2030-01-01T00:10", ["00:10"]),
    ],
)
def test_missed_says_which_ticks_run(missed: Missed, now: str, expected: list[str]) -> None:
    """T2: the last one, each, or none that is more than five minutes late."""
    ticks = ticks_to_run("*/10 * * * *", "UTC", at("2030-01-01T00:10"), at(now), missed)

    assert [f"{tick:%H:%M}" for tick in ticks] == expected


@pytest.mark.parametrize(
    ("cron", "tz", "complaint"),
    [
        ("0 9 * *", "UTC", "must have 5 fields"),
        ("* * * * * *", "UTC", "must have 5 fields"),
        ("0 25 * * *", "UTC", "'0 25 [*] [*] [*]' is no cron expression"),
        ("0 0 30 2 *", "UTC", "is no cron expression"),
        ("0 9 * * 1", "Europe/Nowhere", "'Europe/Nowhere' is no time zone"),
        ("0 9 * * 1", "../../etc/passwd", "is no time zone"),
        ("0 9 * * 1", "", "is no time zone"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused(cron: str, tz: str, complaint: str) -> None:
    """At the declaration, with the form to write."""
    with pytest.raises(BadScheduleError, match=complaint):
        schedule(cron, tz=tz)


def test_a_function_of_another_form_is_refused() -> None:
    """Nobody would give it these arguments."""
    with pytest.raises(TypeError, match=r"at: datetime\.datetime"):

        @schedule("0 9 * * 1")
        def report(clients: Clients, party: str) -> None:
            """Never run."""

    with pytest.raises(BadScheduleError, match="missed must be one of once, all, skip"):
        schedule("0 9 * * 1", missed="never")  # type: ignore[arg-type]
    assert len(MISSED) == 3
