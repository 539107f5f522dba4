"""Times of cron expressions: by the wall clock, also where that jumps."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from rollforward.runtime import Clients
from rollforward.schedules import BadScheduleError, UserSchedules, cron, schedule
from rollforward.schedules.cron import MISSED, Missed, next_tick, ticks_to_run
from rollforward.tasks import task
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast


@task("/tasks/tests/greet-in-time", queue="default")
def greet(clients: Clients, user: str) -> None:
    """Do nothing."""


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
        ("30 2 * * *", "Europe/Berlin", "2030-10-27T01:15", "2030-10-28T01:30"),
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


@pytest.mark.parametrize("missed", ["once", "skip"])
@pytest.mark.parametrize(
    ("cron", "tz", "last", "after_s"),
    [
        ("* * * * *", "UTC", "2030-01-01T00:10", 59.5),
        ("*/30 * * * *", "Europe/Berlin", "2030-10-27T01:00", 240.0),
    ],
)
def test_no_tick_runs_before_its_time(
    cron: str, tz: str, last: str, after_s: float, missed: Missed
) -> None:
    """T1, T2: within a second of the next one, and in an hour that is repeated."""
    since = at(last)
    now_utc = since + datetime.timedelta(seconds=after_s)

    assert ticks_to_run(cron, tz, since, now_utc, missed) == [since]


@pytest.mark.parametrize(
    ("tz", "now", "expected"),
    [
        ("Europe/Berlin", "2030-10-27T01:15", "2030-10-27T00:30"),
        ("Europe/Berlin", "2030-10-27T00:29", "2030-10-26T00:30"),
        ("Antarctica/Troll", "2030-10-27T01:15", "2030-10-27T00:30"),
    ],
)
def test_the_last_tick_of_an_hour_that_is_repeated_is_of_its_first_time(
    tz: str, now: str, expected: str
) -> None:
    """T2: it is made up for also while the wall clock shows a time before it again."""
    since = at("2030-10-24T00:30")

    assert ticks_to_run("30 2 * * *", tz, since, at(now), "once") == [at(expected)]


def test_of_an_hour_that_is_repeated_no_tick_before_the_first_missed_one_runs() -> None:
    """T2: an old expression gave the first one, and has run those before it."""
    since, now_utc = at("2030-10-27T01:15"), at("2030-10-27T03:00")

    assert ticks_to_run("45 2 * * *", "Europe/Berlin", since, now_utc, "all") == [since]


@pytest.mark.parametrize("missed", MISSED)
def test_a_tick_that_other_rules_of_its_zone_gave_runs_and_none_before_it(missed: Missed) -> None:
    """T1: a version with new rules finds no tick at this time, and the one before has run."""
    old = at("2030-01-02T08:00")
    now_utc = old + datetime.timedelta(minutes=3)

    assert ticks_to_run("0 9 * * *", "UTC", old, now_utc, missed) == [old]


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
        ("0 9 * * 1", None, "None is no time zone"),
        ("0 9 * * 1", "Europe", "'Europe' is no time zone: write its name"),
        ("0 9 * * 1", "E" * 5_000, "is no time zone"),
        (None, "UTC", "must have 5 fields, got None"),
        ("9" * 999 + " * * * *", "UTC", "at most 1,000 characters"),
        ("9" * 900 + " * * * *", "UTC", "is no cron expression: Bad minute"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused(cron: Any, tz: Any, complaint: str) -> None:
    """A declaration, or a user's choice, is told the form to write, and no path of a server."""
    with pytest.raises(BadScheduleError, match=complaint) as refused:
        schedule(cron, tz=tz)
    assert "zoneinfo" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "all|reminders"}, "name must match"),
        ({"name": ""}, "name must match"),
        ({"name": "r" * 51}, "name must match"),
        ({"missed": "latest"}, "missed must be one of once, all, skip, got 'latest'"),
    ],
)
def test_schedules_of_users_that_would_never_run_are_refused(
    options: dict[str, Any], complaint: str
) -> None:
    """T3: the sweep would take a row of such a name for another version's, without a word."""
    with pytest.raises(BadScheduleError, match=complaint):
        UserSchedules(**{"name": "reminders", "task": greet, **options})


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadScheduleError, match="an id must be a text, got 17"):
        UserSchedules("reminders", greet).remove(17)  # type: ignore[arg-type]


def test_a_function_of_another_form_is_refused() -> None:
    """Nobody would give it these arguments."""
    with pytest.raises(TypeError, match=r"at: datetime\.datetime"):

        @schedule("0 9 * * 1")
        def report(clients: Clients, party: str) -> None:
            """Never run."""

    with pytest.raises(BadScheduleError, match="missed must be one of once, all, skip"):
        schedule("0 9 * * 1", missed="never")  # type: ignore[arg-type]
    assert len(MISSED) == 3


_BEFORE = test_no_tick_runs_before_its_time
_REPEATED = test_the_last_tick_of_an_hour_that_is_repeated_is_of_its_first_time
BUGS = (
    Bug(*(cron, "_times_after", "if tick > start", "", test_a_tick_follows_the_wall_clock),
        {"cron": "30 2 * * *", "tz": "Europe/Berlin", "after": "2030-10-27T01:15",
         "expected": "2030-10-28T01:30"}),
    Bug(*(cron, "ticks_to_run", "max(since, _last_tick(cron, tz, until) or since)",
          "_last_tick(cron, tz, until) or since",
          test_a_tick_that_other_rules_of_its_zone_gave_runs_and_none_before_it),
        {"missed": "once"}),
    Bug(*(cron, "_last_tick", " if tick <= end", "", _BEFORE),
        {"cron": "*/30 * * * *", "tz": "Europe/Berlin", "last": "2030-10-27T01:00",
         "after_s": 240.0, "missed": "skip"}),
    Bug(*(cron, "_last_tick", "SET_BACK if is_repeated else ", "", _REPEATED),
        {"tz": "Europe/Berlin", "now": "2030-10-27T01:15", "expected": "2030-10-27T00:30"}),
    Bug(*(cron, "_last_tick", "SET_BACK if", "datetime.timedelta(hours=1) if", _REPEATED),
        {"tz": "Antarctica/Troll", "now": "2030-10-27T01:15", "expected": "2030-10-27T00:30"}),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """T1, T2: hours that are repeated, parts of seconds, and rules that have changed."""
    bug.check_noticed(monkeypatch)
