"""The schedules of cron.yaml: when does a job run next?

The grammar is App Engine's, case does not matter:

    every 5 minutes | every 2 hours | every 1 mins
    every 10 minutes from 10:00 to 14:00
    every 30 minutes synchronized
    every day 00:00 | every monday 09:00 | every mon,wed 17:30
    2nd,third mon,wed of march 17:00 | first monday of sep,oct 17:00
    1,8,15 of month 09:00 | 31 of jan,july 00:00

An interval counts from the last run; `synchronized` and `from ... to` lay it on a fixed raster of
the day instead. A time of day is in the job's time zone. When daylight saving skips it, the
job runs an hour later.

Source: cloud.google.com/appengine/docs/standard/scheduling-jobs-with-cron-yaml
"""

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from rollforward.local.errors import PlatformError

_DAY_S = 24 * 3600
_SEARCH_DAYS = 366 * 5  # the 29th of February comes at least this often, but for 2100
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = tuple(name.lower() for name in calendar.month_name[1:])
_ORDINALS = {
    **{"1st": 1, "2nd": 2, "3rd": 3, "4th": 4, "5th": 5},
    **{"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5},
}
_UNITS_S = {"hours": 3600, "hour": 3600, "minutes": 60, "minute": 60, "mins": 60, "min": 60}
_INTERVAL = re.compile(
    r"every (?P<count>\d{1,6}) (?P<unit>[a-z]+)"
    r"(?: (?:from (?P<start>\S+) to (?P<end>\S+)|(?P<synchronized>synchronized)))?"
)
_CALENDAR = re.compile(
    r"(?P<which>\S+) (?:(?P<days>[a-z,]+) )??(?:of (?P<months>\S+) )?(?P<at>\S+)"
)
_TIME = re.compile(r"(\d{1,2}):(\d{2})")


class BadScheduleError(PlatformError):
    """A schedule in cron.yaml is not in the grammar."""


class Schedule(Protocol):
    """The schedule of a job."""

    def next_after(self, moment: datetime) -> datetime:
        """Return the first run after this moment; both are aware, the answer in UTC."""
        ...


@dataclass(frozen=True)
class Interval:
    """Runs one period after the last run."""

    period: timedelta

    def next_after(self, moment: datetime) -> datetime:
        """Return the moment plus the period."""
        return moment.astimezone(UTC) + self.period


@dataclass(frozen=True)
class Raster:
    """Runs each period of every day from start to end, both included."""

    period: timedelta
    start: time
    end: time  # before start: on the next day
    zone: ZoneInfo

    def next_after(self, moment: datetime) -> datetime:
        """Return the first point of the raster after the moment."""
        day = moment.astimezone(self.zone).date() - timedelta(days=1)
        while True:
            opening, closing = self._bounds(day)
            if moment < opening:
                return opening
            steps = (moment - opening) // self.period + 1
            if (point := opening + steps * self.period) <= closing:
                return point
            day += timedelta(days=1)

    def _bounds(self, day: date) -> tuple[datetime, datetime]:
        last_day = day if self.end > self.start else day + timedelta(days=1)
        return _moment(day, self.start, self.zone), _moment(last_day, self.end, self.zone)


@dataclass(frozen=True)
class Calendar:
    """Runs at one time of day, on the days that match.

    Attributes:
        weekdays: 0 for Monday; empty if days of the month are given.
        ordinals: Which of those weekdays of the month; empty for each.
        month_days: Days of the month; empty if weekdays are given.
        months: 1 for January; empty for each.
    """

    at: time
    zone: ZoneInfo
    weekdays: frozenset[int]
    ordinals: frozenset[int]
    month_days: frozenset[int]
    months: frozenset[int]

    def next_after(self, moment: datetime) -> datetime:
        """Return the first matching day's run after the moment.

        Raises:
            BadScheduleError: no day ever matches, like the 31st of February.
        """
        yesterday = moment.astimezone(self.zone).date() - timedelta(days=1)
        for offset in range(_SEARCH_DAYS):
            day = yesterday + timedelta(days=offset)
            if self._matches(day) and (run := _moment(day, self.at, self.zone)) > moment:
                return run
        raise BadScheduleError("No such day comes in five years.")

    def _matches(self, day: date) -> bool:
        if self.months and day.month not in self.months:
            return False
        if self.month_days:
            return day.day in self.month_days
        ordinal = (day.day - 1) // 7 + 1
        return day.weekday() in self.weekdays and (not self.ordinals or ordinal in self.ordinals)


def parse(text: str, zone: ZoneInfo | None = None) -> Schedule:
    """Return the schedule that the text describes.

    Args:
        text: As in cron.yaml.
        zone: Of the times of day; UTC if not given.

    Raises:
        BadScheduleError: the text is not in the grammar; names the error.
    """
    zone = zone or ZoneInfo("UTC")
    words = re.sub(r"\s*,\s*", ",", " ".join(text.lower().split()))
    if match := _INTERVAL.fullmatch(words):
        return _interval(text, match, zone)
    if match := _CALENDAR.fullmatch(words):
        return _calendar(text, match, zone)
    raise BadScheduleError(f"Schedule {text!r} is not understood. Try: every 5 minutes")


def next_runs(schedule: Schedule, moment: datetime, count: int) -> Iterator[datetime]:
    """Yield the next runs after the moment."""
    for _ in range(count):
        moment = schedule.next_after(moment)
        yield moment


def _interval(text: str, match: "re.Match[str]", zone: ZoneInfo) -> Schedule:
    unit_s = _UNITS_S.get(match["unit"])
    count = int(match["count"])
    if unit_s is None or count == 0:
        raise BadScheduleError(f"Schedule {text!r}: count hours or minutes, 1 or more.")
    period = timedelta(seconds=count * unit_s)
    if match["start"]:
        start, end = _time_of(text, match["start"]), _time_of(text, match["end"])
        return Raster(period, start, end, zone)
    if not match["synchronized"]:
        return Interval(period)
    if _DAY_S % (count * unit_s):
        raise BadScheduleError(f"Schedule {text!r}: synchronized wants a part of 24 hours.")
    # The last point of a day lies at least a minute before midnight.
    return Raster(period, time(0, 0), time(23, 59), zone)


def _calendar(text: str, match: "re.Match[str]", zone: ZoneInfo) -> Schedule:
    which, days = match["which"], match["days"]
    ordinals: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    if re.fullmatch(r"[\d,]+", which) and days is None and match["months"]:
        month_days = _month_days(text, which)
    elif days is not None:
        weekdays = _weekdays(text, days)
        if which != "every":
            ordinals = frozenset(_one_of(text, word, _ORDINALS) for word in which.split(","))
    else:
        raise BadScheduleError(f"Schedule {text!r}: say which days. Try: every monday 09:00")
    months = _months(text, match["months"])
    at = _time_of(text, match["at"])
    schedule = Calendar(at, zone, weekdays, ordinals, month_days, months)
    schedule.next_after(datetime(2026, 1, 1, tzinfo=UTC))  # refuses what never comes
    return schedule


def _weekdays(text: str, words: str) -> frozenset[int]:
    if words == "day":
        return frozenset(range(7))
    numbers = _by_name(_WEEKDAYS)
    return frozenset(_one_of(text, word, numbers) for word in words.split(","))


def _months(text: str, words: str | None) -> frozenset[int]:
    if words is None or words == "month":
        return frozenset()
    numbers = _by_name(_MONTHS)
    return frozenset(_one_of(text, word, numbers) + 1 for word in words.split(","))


def _month_days(text: str, words: str) -> frozenset[int]:
    days = frozenset(int(word) for word in words.split(",") if word)
    if not days or not days <= frozenset(range(1, 32)):
        raise BadScheduleError(f"Schedule {text!r}: days of a month are 1 to 31.")
    return days


def _by_name(names: tuple[str, ...]) -> dict[str, int]:
    """Return the number of each name and of its first three letters."""
    long = {name: number for number, name in enumerate(names)}
    return long | {name[:3]: number for name, number in long.items()}


def _one_of(text: str, word: str, numbers: dict[str, int]) -> int:
    if word not in numbers:
        raise BadScheduleError(f"Schedule {text!r}: {word!r} is not understood.")
    return numbers[word]


def _time_of(text: str, word: str) -> time:
    match = _TIME.fullmatch(word)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        raise BadScheduleError(f"Schedule {text!r}: {word!r} is no time of day, HH:MM.")
    return time(int(match[1]), int(match[2]))


def _moment(day: date, at: time, zone: ZoneInfo) -> datetime:
    """Return the moment in UTC. The clock's missing hour is counted on, not skipped."""
    return datetime.combine(day, at, tzinfo=zone).astimezone(UTC)
