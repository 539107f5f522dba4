"""What is computed of an access log: four computations over the stream of its requests.

    requests ─┬─ hits         per path and minute ── top-paths, per hour
              ├─ sessions     per visitor: until there was no request for 30 minutes
              └─ error-rates  over 5 minutes, each minute

All results go to the board, which keeps the last ones of each kind for a page.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013, for its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from demos.weblog.source import REQUESTS
from pipelines.streams import Computation, Context, Pipeline, Record
from pipelines.streams.combine import Combine, top
from pipelines.streams.windows import Enclosing, Session, Sliding, Tumbling, Windowed

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SESSION_GAP = timedelta(minutes=30)
RATE_SIZE = timedelta(minutes=5)
TOP_PATHS = 10
FIRST_ERROR = 500  # 4xx are the browser's.
SITE = "site"
MAX_SHOWN = 60


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


class Board(Computation):
    """The last results of each kind; how many there were, and of how many records."""

    inputs: Mapping[str, Callable[[Any], str]] = {
        "hits-per-minute": lambda result: "hits",
        "visits": lambda result: "visits",
        "rates": lambda result: "rates",
        "tops": lambda result: "tops",
    }

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("results").add(1)
        ctx.state.counter("records").add(record.value["records"])
        last = ctx.state.list("last")
        last.set([*last.get(), record.value][-MAX_SHOWN:])


WEBLOG = Pipeline("weblog", HITS, SESSIONS, ERROR_RATES, TOP, Board, sources=[REQUESTS])
