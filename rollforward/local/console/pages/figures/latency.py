"""Latency and error rate, over time and by task or queue."""

import math
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.console.frame import Route, Section
from rollforward.local.console.reading import attempt_stats
from rollforward.local.console.reading.attempt_stats import AttemptStats

MAX_ATTEMPTS = 5_000
MAX_ROWS = 60
RANGES_S = {"5m": 300, "15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400}
_SORTS: dict[str, Callable[[AttemptStats], float]] = {
    "p95": lambda figures: figures.percentile_ms(95) or 0.0,
    "errors": lambda figures: figures.error_rate,
    "attempts": lambda figures: figures.attempts,
}


class Latency(Section):
    """The page of latency and errors."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/latency", self.latency),
        ]

    async def latency(self, request: web.Request) -> web.Response:
        """Show the charts and the table, as the address asks."""
        chosen = _choice(request)
        until = _next_edge(self.engine.clock.now(), RANGES_S[chosen["range"]])
        since = until - RANGES_S[chosen["range"]]
        kept = self.engine.history.attempts_since(since, MAX_ATTEMPTS)
        is_cut = len(kept) == MAX_ATTEMPTS
        rows = [row for row in attempt_stats.own(kept) if self._matches(row, chosen)]
        begins = kept[0]["started_at"] if is_cut else since
        queue_id = self.engine.place.queue_id
        groups = attempt_stats.grouped(rows, self._group_key(chosen["by"]))
        ranked = sorted(groups.items(), key=lambda item: -_SORTS[chosen["sort"]](item[1]))
        return self.page(
            request,
            "latency.html",
            chosen=chosen,
            ranges=RANGES_S,
            sorts=_SORTS,
            total=AttemptStats.of(rows),
            chart=attempt_stats.chart_of(rows, begins, until),
            groups=ranked[:MAX_ROWS],
            group_count=len(ranked),
            is_cut=is_cut,
            max_attempts=MAX_ATTEMPTS,
            address_of=lambda **changes: "/latency?" + urlencode({**chosen, **changes}),
            queue_ids=[queue_id(queue.name) for queue in self.engine.queues.all()],
        )

    def _matches(self, row: Any, chosen: dict[str, str]) -> bool:
        is_of_queue = chosen["queue"] in ("", self.engine.place.queue_id(row["queue"]))
        return is_of_queue and chosen["path"] in ("", row["path"])

    def _group_key(self, by: str) -> Callable[[Any], str]:
        if by == "task":
            return lambda row: str(row["path"])
        return lambda row: self.engine.place.queue_id(row["queue"])


def _next_edge(now_s: float, range_s: float) -> float:
    """Return the end of the stretch that now is in: the edges stay while time passes."""
    step_s = range_s / attempt_stats.BUCKETS
    return math.ceil(now_s / step_s) * step_s


def _choice(request: web.Request) -> dict[str, str]:
    """Return the choice in the address.

    Raises:
        web.HTTPBadRequest: a field cannot be.
    """
    usual = {"range": "1h", "by": "task", "sort": "p95", "queue": "", "path": ""}
    chosen = {name: request.query.get(name, "").strip() or text for name, text in usual.items()}
    for name, known in (("range", RANGES_S), ("by", ("task", "queue")), ("sort", _SORTS)):
        if chosen[name] not in known:
            raise web.HTTPBadRequest(text=f"{name}: one of {', '.join(known)}.")
    return chosen
