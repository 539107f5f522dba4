"""Times of a cron expression, by the wall clock of a zone."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Iterator
from typing import Literal

from cronsim import CronSim, CronSimError

Missed = Literal["once", "all", "skip"]
MISSED: tuple[Missed, ...] = ("once", "all", "skip")
# What a tick may be late and still run under "skip".
GRACE = datetime.timedelta(minutes=5)
MAX_MISSED = 100
# Of an expression: a list of all minutes of an hour has 169.
MAX_CRON_CHARS = 1_000
# No zone's clock goes back by more.
SET_BACK = datetime.timedelta(hours=3)


class BadScheduleError(ValueError):
    """The expression or the zone cannot be read; the text says which, and why."""


def check(cron: str, tz: str) -> None:
    """Check an expression and a zone.

    Raises:
        BadScheduleError: one of them cannot be read.
    """
    if not isinstance(cron, str) or len(cron.split()) != 5:
        raise BadScheduleError(
            f"a cron expression must have 5 fields, got {cron!r:.100}: minute, hour, day of the "
            'month, month, day of the week; "0 9 * * 1" is each Monday at 9'
        )
    if len(cron) > MAX_CRON_CHARS:
        raise BadScheduleError(
            f"a cron expression must have at most {MAX_CRON_CHARS:,} characters, got {len(cron):,}"
        )
    _check_zone(tz)
    try:
        next(_times(cron, tz, datetime.datetime.now(datetime.UTC)))
    except CronSimError as error:
        raise BadScheduleError(f"{cron!r:.100} is no cron expression: {error}") from None
    except StopIteration:
        raise BadScheduleError(f"{cron!r:.100} never comes") from None


def _check_zone(tz: str) -> None:
    """Check a zone that a user chose; the error names no file of the server."""
    try:
        zoneinfo.ZoneInfo(tz)
    except (zoneinfo.ZoneInfoNotFoundError, TypeError, ValueError, OSError):
        raise BadScheduleError(
            f"{tz!r:.100} is no time zone: write its name, as in Europe/Berlin"
        ) from None


def check_missed(missed: str) -> None:
    """Check the way in which missed ticks run.

    Raises:
        BadScheduleError: it is not one of MISSED.
    """
    if missed not in MISSED:
        raise BadScheduleError(f"missed must be one of {', '.join(MISSED)}, got {missed!r}")


def next_tick(cron: str, tz: str, start: datetime.datetime) -> datetime.datetime | None:
    """Return the first tick after a time; None: there is none.

    >>> noon = datetime.datetime(2030, 3, 31, 12, tzinfo=datetime.UTC)
    >>> next_tick("0 9 * * 1", "Europe/Berlin", noon).isoformat()
    '2030-04-01T07:00:00+00:00'
    """
    return next(_times_after(cron, tz, start), None)


def ticks_to_run(
    cron: str, tz: str, since: datetime.datetime, until: datetime.datetime, missed: Missed
) -> list[datetime.datetime]:
    """Return the ticks between two times that run, at most 100 of them."""
    if missed == "all":
        ticks = [since]
        for tick in _times_after(cron, tz, since):
            if tick > until or len(ticks) == MAX_MISSED:
                break
            ticks.append(tick)
        return ticks
    newest = max(since, _last_tick(cron, tz, until) or since)
    return [newest] if missed == "once" or until - newest <= GRACE else []


def _last_tick(cron: str, tz: str, end: datetime.datetime) -> datetime.datetime | None:
    """Return the last tick until a time; None: there is none."""
    # When an hour is repeated, all its ticks have been: what looks at the wall clock misses some.
    is_repeated = bool(end.astimezone(zoneinfo.ZoneInfo(tz)).fold)
    start = end + (SET_BACK if is_repeated else datetime.timedelta(seconds=1))
    # The times are of full seconds, and may be after the end.
    return next((tick for tick in _times(cron, tz, start, reverse=True) if tick <= end), None)


def _times_after(cron: str, tz: str, start: datetime.datetime) -> Iterator[datetime.datetime]:
    """Return the ticks after a time."""
    # Of an hour that is repeated, the first one of its ticks may be before the start.
    return (tick for tick in _times(cron, tz, start) if tick > start)


def _times(
    cron: str, tz: str, start: datetime.datetime, *, reverse: bool = False
) -> Iterator[datetime.datetime]:
    local = start.astimezone(zoneinfo.ZoneInfo(tz))
    return (tick.astimezone(datetime.UTC) for tick in CronSim(cron, local, reverse=reverse))
