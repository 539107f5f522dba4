"""App Engine's schedule grammar."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from rollforward.local.cron.schedules import BadScheduleError, next_runs, parse

FRIDAY_NOON = datetime(2026, 11, 20, 12, 34, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("every 5 minutes", ["20 Nov 12:39", "20 Nov 12:44", "20 Nov 12:49"]),
        ("every 1 mins", ["20 Nov 12:35", "20 Nov 12:36", "20 Nov 12:37"]),
        ("every 24 hours", ["21 Nov 12:34", "22 Nov 12:34", "23 Nov 12:34"]),
        ("EVERY  2  Hours Synchronized", ["20 Nov 14:00", "20 Nov 16:00", "20 Nov 18:00"]),
        ("every 12 hours synchronized", ["21 Nov 00:00", "21 Nov 12:00", "22 Nov 00:00"]),
        (
            "every 40 minutes from 10:00 to 14:00",
            ["20 Nov 12:40", "20 Nov 13:20", "20 Nov 14:00"],
        ),
        (
            "every 2 hours from 10:00 to 14:00",
            ["20 Nov 14:00", "21 Nov 10:00", "21 Nov 12:00"],
        ),
        (
            "every 90 mins from 22:00 to 02:00",
            ["20 Nov 22:00", "20 Nov 23:30", "21 Nov 01:00"],
        ),
        ("every day 00:00", ["21 Nov 00:00", "22 Nov 00:00", "23 Nov 00:00"]),
        ("every day 12:34", ["21 Nov 12:34", "22 Nov 12:34", "23 Nov 12:34"]),
        ("every monday 09:00", ["23 Nov 09:00", "30 Nov 09:00", "07 Dec 09:00"]),
        ("every mon, wed 17:30", ["23 Nov 17:30", "25 Nov 17:30", "30 Nov 17:30"]),
        ("every monday of jan 09:00", ["04 Jan 09:00", "11 Jan 09:00", "18 Jan 09:00"]),
        ("1st,third monday of month 17:00", ["07 Dec 17:00", "21 Dec 17:00", "04 Jan 17:00"]),
        (
            "2nd,third mon,wed,thu of march 17:00",
            ["08 Mar 17:00", "10 Mar 17:00", "11 Mar 17:00"],
        ),
        (
            "first monday of sep,oct,nov 17:00",
            ["06 Sep 17:00", "04 Oct 17:00", "01 Nov 17:00"],
        ),
        ("1,8,15 of month 09:00", ["01 Dec 09:00", "08 Dec 09:00", "15 Dec 09:00"]),
        ("31 of month 00:00", ["31 Dec 00:00", "31 Jan 00:00", "31 Mar 00:00"]),
        ("29 of feb 00:00", ["29 Feb 00:00", "29 Feb 00:00", "29 Feb 00:00"]),
    ],
)
def test_next_runs_follow_the_grammar(text, runs):
    """Each form of the grammar gives the runs that its words say."""
    found = [f"{run:%d %b %H:%M}" for run in next_runs(parse(text), FRIDAY_NOON, 3)]

    assert found == runs


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not understood"),
        ("sometimes", "not understood"),
        ("every day", "say which days"),
        ("every 1 day", "count hours or minutes"),
        ("every 0 minutes", "1 or more"),
        ("every 99999999999999 hours", "not understood"),
        ("every 5 minutes from 10:00", "."),
        ("every 7 hours synchronized", "part of 24 hours"),
        ("every day 24:00", "no time of day"),
        ("every blursday 09:00", "'blursday'"),
        ("sixth monday of month 09:00", "'sixth'"),
        ("first monday of smarch 09:00", "'smarch'"),
        ("32 of month 09:00", "1 to 31"),
        ("31 of feb 09:00", "No such day"),
    ],
)
def test_a_bad_schedule_is_refused_with_a_reason(text, complaint):
    """What App Engine would refuse is refused, in words that help."""
    with pytest.raises(BadScheduleError, match=complaint):
        parse(text)


def test_times_of_day_are_the_clocks_in_the_jobs_zone():
    """A job at 09:00 in Tokyo runs at midnight UTC."""
    runs = list(next_runs(parse("every day 09:00", ZoneInfo("Asia/Tokyo")), FRIDAY_NOON, 1))

    assert runs == [datetime(2026, 11, 21, 0, 0, tzinfo=UTC)]


def test_a_daily_job_runs_once_on_days_when_the_clock_changes():
    """Neither the missing hour of spring nor the double one of autumn adds or drops a run."""
    zone = ZoneInfo("Europe/Berlin")

    spring = next_runs(parse("every day 02:30", zone), datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    autumn = next_runs(parse("every day 02:30", zone), datetime(2026, 10, 24, 12, tzinfo=UTC), 2)

    assert [run.isoformat()[5:16] for run in spring] == ["03-29T01:30", "03-30T00:30"]
    assert [run.isoformat()[5:16] for run in autumn] == ["10-25T00:30", "10-26T01:30"]
