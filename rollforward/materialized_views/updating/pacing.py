"""Pacing: when a row may be written again, so that a busy row is not written too fast.

The generic cell rate algorithm (GCRA): each row has a theoretical arrival time of its next write,
which each write moves on by one interval. A write may come early by as much as a burst takes. So an
idle row is written at once, and a busy one about once in an interval, with all that has gathered.

The times of a table are one value in memcached. It holds the busy rows only, and is a hint: without
it rows are written as their updates come.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from typing import Any

from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients

# Rows of a table with a time. Of more, those that were written last are not paced.
MAX_PACED = 500
_TTL_S = 3600


@dataclass
class TablePace:
    """The theoretical arrival times of a table's busy rows, in milliseconds."""

    name: str
    interval_ms: int  # 0: rows are not paced.
    burst_ms: int
    now_ms: int
    arrivals: dict[str, int]
    written: set[str] = field(default_factory=set)  # By this fold: each has had its turn.

    @classmethod
    def read(cls, clients: Clients, view: type[View] | None, table: str) -> TablePace:
        """Return the pace of a table, as memcached knows it; of an unknown view there is none."""
        name, now_ms = f"views:pace:{table}", int(clients.clock.now().timestamp() * 1000)
        if view is None or view.row_rate is None:
            return cls(name, 0, 0, now_ms, {})
        interval_ms = max(1, round(1000 / view.row_rate))
        burst_ms = interval_ms * view.row_burst
        # A later time is from a wrong clock: rivals that fold the same row may add one interval.
        latest_ms = now_ms + burst_ms + 2 * interval_ms
        arrivals = {
            row: at_ms
            for row, at_ms in _stored(clients.cache.get(name)).items()
            if isinstance(at_ms, int) and now_ms < at_ms <= latest_ms
        }
        return cls(name, interval_ms, burst_ms, now_ms, arrivals)

    def due_at(self, row: str) -> datetime.datetime | None:
        """Return when a row may be written next (UTC); None: now, or again in this fold."""
        if row in self.written:
            return None
        wait_ms = self.arrivals.get(row, 0) - self.burst_ms - self.now_ms
        if wait_ms <= 0:
            return None
        return datetime.datetime.fromtimestamp((self.now_ms + wait_ms) / 1000, datetime.UTC)

    def note_write(self, row: str) -> None:
        """Move a row's time on by one interval, once in a fold."""
        if row in self.written:
            return
        self.written.add(row)
        if self.interval_ms and (row in self.arrivals or len(self.arrivals) < MAX_PACED):
            self.arrivals[row] = self.arrivals.get(row, self.now_ms) + self.interval_ms

    def store(self, clients: Clients) -> None:
        """Let the next fold, and the next saves, know these times."""
        if self.arrivals:
            clients.cache.set(self.name, json.dumps(self.arrivals).encode(), _TTL_S)


def _stored(value: bytes | None) -> dict[str, Any]:
    """Return the times in memcached's value; what it makes up counts as none."""
    try:
        times = json.loads(value or b"{}")
    except (ValueError, RecursionError):
        return {}
    return times if isinstance(times, dict) else {}
