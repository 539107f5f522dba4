"""What is computed of an access log: four computations over the stream of its requests.

    requests ─┬─ hits         per path and minute ── top-paths, per hour
              ├─ sessions     per visitor: until there was no request for 30 minutes
              └─ error-rates  over 5 minutes, each minute

Source: the Zeitgeist pipeline of the MillWheel paper, 2013, for its shape.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pipelines.streams import Pipeline, PushSource, Record
from pipelines.streams.combine import Combine, top
from pipelines.streams.windows import Enclosing, Session, Sliding, Tumbling, Windowed

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SESSION_GAP = timedelta(minutes=30)
RATE_SIZE = timedelta(minutes=5)
TOP_PATHS = 10
FIRST_ERROR = 500  # 4xx are the browser's.
# Servers write a line when a response ends, so a slow one stands behind later requests.
DISORDER = timedelta(minutes=1)
SITE = "site"


def _of_site(value: Any) -> str:
    """Return the one key of what is counted for the whole site."""
    return SITE


def errors() -> Combine:
    """Count requests, and those that the server failed."""

    def add(total: list[int], record: Record) -> list[int]:
        return merge(total, [1, record.value["status"] >= FIRST_ERROR])

    def merge(first: list[int], second: list[int]) -> list[int]:
        return [first[0] + second[0], first[1] + second[1]]

    return Combine(
        empty=lambda: [0, 0],
        add=add,
        merge=merge,
        result=lambda total: {"requests": total[0], "errors": total[1]},
    )


HITS = Windowed(
    "hits",
    Tumbling(MINUTE),
    inputs={"requests": lambda request: request["path"]},
    output="hits-per-minute",
)
SESSIONS = Windowed(
    "sessions",
    Session(SESSION_GAP),
    inputs={"requests": lambda request: request["visitor"]},
    output="visits",
)
ERROR_RATES = Windowed(
    "error-rates",
    Sliding(RATE_SIZE, MINUTE),
    inputs={"requests": _of_site},
    output="rates",
    combine=errors(),
)
TOP = Windowed(
    "top-paths",
    Enclosing(HOUR),
    inputs={"hits-per-minute": _of_site},
    output="tops",
    combine=top(TOP_PATHS, of=lambda hits: hits["key"], amount=lambda hits: hits["value"]),
)
WEBLOG = Pipeline(
    "weblog", HITS, SESSIONS, ERROR_RATES, TOP, sources=[PushSource("requests", disorder=DISORDER)]
)
