"""Bounds of a task: when it is due, how long a delivery may take, and how many may fail."""

from __future__ import annotations

import datetime
import math

from rollforward.tasks.errors import BadArgumentsError

# Of one delivery; the service's bounds for tasks with a URL, the narrower ones.
MIN_DEADLINE_S, MAX_DEADLINE_S = 15, 30 * 60


def check_deadline(deadline_s: int) -> None:
    """Check how long a delivery may take.

    Raises:
        ValueError: Cloud Tasks refuses this deadline.
    """
    if not MIN_DEADLINE_S <= deadline_s <= MAX_DEADLINE_S:
        raise ValueError(
            f"deadline_s must be {MIN_DEADLINE_S} to {MAX_DEADLINE_S} seconds, got {deadline_s}"
        )


def check_max_attempts(max_attempts: int, error: type[ValueError] = ValueError) -> None:
    """Check how many deliveries may fail.

    Raises:
        ValueError: there would be none, or no whole number of them.
    """
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
        raise error(f"max_attempts must be a whole number, at least 1, got {max_attempts!r:.60}")


def due_at(
    now_utc: datetime.datetime, delay_s: float, at: datetime.datetime | None, max_s: float
) -> datetime.datetime | None:
    """Return when a task is due: None for now, or an aware time, at most `max_s` ahead.

    Raises:
        BadArgumentsError: it is due later, at no time, or at two.
    """
    if not isinstance(delay_s, (int, float)) or math.isnan(delay_s):
        raise BadArgumentsError(f"delay_s must be a number of seconds, got {delay_s!r:.60}")
    if at is not None and not isinstance(at, datetime.datetime):
        raise BadArgumentsError(f"at must be an aware time, got {at!r:.60}")
    if at is not None and delay_s:
        raise BadArgumentsError(f"give delay_s or at, not both, got {delay_s} and {at}")
    if at is None and delay_s <= 0:
        return None
    latest = now_utc + datetime.timedelta(seconds=max_s)
    due = at if at is not None else now_utc + datetime.timedelta(seconds=min(delay_s, 2 * max_s))
    if due.tzinfo is None:
        raise BadArgumentsError(f"at must be an aware time, got {due}")
    if due > latest:
        days = int(max_s // (24 * 3600))
        raise BadArgumentsError(f"a task must be due within {days} days, got {due}")
    return due
