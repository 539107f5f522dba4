"""Times: the parser of times in uploaded files, and the current time in milliseconds."""

from __future__ import annotations

import datetime

from rollforward.runtime import Clients

DAY_MS = 86_400_000

# Charts reach some days beyond it; Python must have dates for those.
MAX_YEAR = 2199

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def read_time(text: str) -> int:
    """Return a time of ISO 8601 in milliseconds since 1970; one without a zone is in UTC.

    Raises:
        ValueError: the text is no time, or the time lies before 1970 or far ahead.
    """
    time = datetime.datetime.fromisoformat(text.strip())
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    at = (time - _EPOCH) // datetime.timedelta(milliseconds=1)
    if at < 0 or time.year > MAX_YEAR:
        raise ValueError(f"time must be in the years 1970 to {MAX_YEAR}, got {time.isoformat()}")
    return at


def now_ms(clients: Clients) -> int:
    """Return the current time in milliseconds since 1970."""
    return round(clients.clock.now().timestamp() * 1000)
