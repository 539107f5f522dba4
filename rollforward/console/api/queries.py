"""Queries in the address of a page or of the API, checked: limits, times and filters."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import OUTCOME_UNKNOWN
from rollforward.flask.context import clients
from rollforward.flask.endpoints.health import outage_advice, service_states, services_away
from rollforward.look.lists import parse_integer
from rollforward.look.words import pluralize
from rollforward.operations import DeadTaskFilter
from rollforward.runtime.clock import TimeRange
from rollforward.tasks.errors import Retry
from rollforward.tasks.runs import STATES, RunQuery

PAGE_ROWS = 20
MAX_ROWS = 50
MAX_FACET_CHARS = 200
# For each pattern that has runs: a list's reads and those of its pages together.
MAX_LIST_READS = 24
MAX_PATTERN_READS = 40
LIST_RUNS = 10
# Of one pattern, to be put in order.
SORTED_RUNS = 20
# A service does not answer, or its quota is used up; ndb raises RetryError after its own attempts.
OUTAGES = (*OUTCOME_UNKNOWN, rpc_errors.ResourceExhausted, rpc_errors.RetryError, Retry)


def outage_text(error: Exception) -> str:
    """Return which services do not answer, or which of their calls fail, and how a call ended."""
    advice = outage_advice(service_states()) or " ".join(failing_calls())
    return f"{advice or 'A service does not answer; try again in a moment.'} {error}"


def failing_calls(min_count: int = 1) -> list[str]:
    """Return which calls have failed in this process within a minute, by services that answer.

    Args:
        min_count: Calls of one method that failed less often are left out.
    """
    away = services_away(service_states())
    return [
        f"{failure.service} answers, but {pluralize(count, f'{failure.method} call')} of this "
        f"process failed within a minute: {failure.code}."
        for failure, count in clients().meter.failures.recent()
        if count >= min_count and failure.service not in away
    ]


class BadQueryError(ValueError):
    """A part of the address cannot be understood; the text says which."""


def limit_of(text: str, default: int = PAGE_ROWS) -> int:
    """Return how many rows are asked for.

    Raises:
        BadQueryError: it is no number, or too many.
    """
    if not text:
        return default
    if (number := parse_integer(text, MAX_ROWS)) is None:
        raise BadQueryError(f"limit is a number from 1 to {MAX_ROWS}.")
    return number


def number_of(text: str, name: str) -> float:
    """Return a number of a form, not negative.

    Raises:
        BadQueryError: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,6})?", text):
        raise BadQueryError(f"{name} is a number, like 5 or 0.5.")
    return float(text)


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


def time_range_of(fields: Mapping[str, str]) -> TimeRange:
    """Return the time from `since` on and before `until`.

    Raises:
        BadQueryError: one of the texts is no time with a zone.
    """
    return TimeRange(*(time_of(fields.get(name, ""), name) for name in ("since", "until")))


def filter_of(pattern: str, queue: str, error: str, since: str, until: str) -> DeadTaskFilter:
    """Return a choice of dead tasks.

    Raises:
        BadQueryError: one of the times is none.
    """
    return DeadTaskFilter(pattern, queue, error, time_of(since, "since"), time_of(until, "until"))


def list_query(
    fields: Mapping[str, str],
    patterns: Collection[str],
    times: tuple[datetime.datetime | None, datetime.datetime | None] = (None, None),
    limit: int = LIST_RUNS,
) -> RunQuery:
    """Return a query for a page of runs, at a bounded cost.

    Args:
        times: Since when and until when they started; None: at any time.

    Raises:
        BadQueryError: it cannot be understood.
    """
    query = run_query({**fields, "limit": str(limit)}, patterns)
    since, until = times
    return replace(
        query,
        since=since,
        before=min((at for at in (query.before, until) if at), default=None),
        max_reads=MAX_PATTERN_READS if query.pattern else MAX_LIST_READS,
    )


def run_query(fields: Mapping[str, str], patterns: Collection[str]) -> RunQuery:
    """Return a query for runs, of an address.

    Args:
        fields: pattern, state, name, since, before and limit; what is left out takes any.

    Raises:
        BadQueryError: it cannot be understood.
    """
    pattern, state = fields.get("pattern", ""), fields.get("state", "")
    if state not in ("", *STATES):
        raise BadQueryError(f"state is one of {', '.join(STATES)}.")
    if pattern not in ("", *patterns):
        raise BadQueryError(f"pattern is one of {', '.join(patterns)}.")
    return RunQuery(
        time_of(fields.get("before", ""), "before"),
        state,
        fields.get("name", ""),
        limit_of(fields.get("limit", "")),
        pattern=pattern,
        since=time_of(fields.get("since", ""), "since"),
    )
