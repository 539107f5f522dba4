"""Queries in the address of a page or of the API, checked: limits, times and filters."""

from __future__ import annotations

import datetime
import re

from rollforward.operations import DeadTaskFilter
from rollforward.tasks.runs import STATES, RunQuery

PAGE_ROWS = 20
MAX_ROWS = 50
MAX_FACET_CHARS = 200
_DAYS = re.compile(r"([0-9]{1,5})(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class BadQueryError(ValueError):
    """A part of the address cannot be understood; the text says which."""


def limit_of(text: str, default: int = PAGE_ROWS) -> int:
    """Return how many rows are asked for.

    Raises:
        BadQueryError: it is no number, or too many.
    """
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_ROWS:
        raise BadQueryError(f"limit is a number from 1 to {MAX_ROWS}.")
    return int(text)


def time_of(text: str, name: str) -> datetime.datetime | None:
    """Return a time of an address, in UTC; None: it has none.

    Raises:
        BadQueryError: the text is no time with a zone.
    """
    if not text:
        return None
    refusal = BadQueryError(f"{name} is a time with its zone, like 2030-05-01T12:00Z.")
    try:
        at = datetime.datetime.fromisoformat(text)
        is_aware, at = at.tzinfo is not None, at.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise refusal from None
    if not is_aware:
        raise refusal
    if not 1970 <= at.year < 5000:
        raise BadQueryError(f"{name} is a time from the year 1970 on.")
    return at


def age_of(text: str, now_utc: datetime.datetime) -> datetime.datetime | None:
    """Return the time that an age like 30m, 12h or 7d means; None: no age is given.

    Raises:
        BadQueryError: the text is no age.
    """
    if not text:
        return None
    match = _DAYS.fullmatch(text)
    if match is None:
        raise BadQueryError("An age is a number with m, h or d: 30m, 12h or 7d.")
    return max(
        now_utc - datetime.timedelta(**{_UNITS[match[2]]: int(match[1])}),
        datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC),
    )


def filter_of(pattern: str, queue: str, error: str, since: str, until: str) -> DeadTaskFilter:
    """Return a choice of dead tasks.

    Raises:
        BadQueryError: one of the times is none.
    """
    return DeadTaskFilter(pattern, queue, error, time_of(since, "since"), time_of(until, "until"))


def run_query(state: str, name: str, started_before: str, limit: str) -> RunQuery:
    """Return a query for runs.

    Raises:
        BadQueryError: it cannot be understood.
    """
    if state not in ("", *STATES):
        raise BadQueryError(f"state is one of {', '.join(STATES)}.")
    return RunQuery(time_of(started_before, "before"), state, name, limit_of(limit))
