"""Pacing: when the next update of a row may run, so that a busy row is not written too fast.

The generic cell rate algorithm (GCRA) over one number per row: the theoretical arrival time of
its next update. Each update moves it on by one interval. An update may run early by as much as a
burst takes; one that comes earlier than that waits.
"""

from __future__ import annotations

import datetime

from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients

# 3,600 updates of a row wait by then at one per second; what comes above that rate is not paced.
MAX_AHEAD_MS = 3_600_000


def paced_at(clients: Clients, view: type[View], tag: str) -> datetime.datetime | None:
    """Return when the next update of a row may run; None: now.

    The theoretical arrival time is kept in memcached, in milliseconds. Without memcached updates
    are not paced. The time lies between now and an hour ahead: beyond that a clock was wrong, and
    it begins again.
    """
    if view.row_rate is None:
        return None
    now = clients.clock.now()
    now_ms = int(now.timestamp() * 1000)
    interval_ms = max(1, round(1000 / view.row_rate))
    burst_ms = interval_ms * view.row_burst
    key = f"views:paced:{tag}"
    theoretical_arrival_ms = clients.cache.incr(key, interval_ms, ttl_s=3600)
    if theoretical_arrival_ms is None:
        return None
    wait_ms = theoretical_arrival_ms - now_ms - burst_ms
    if theoretical_arrival_ms < now_ms or wait_ms > MAX_AHEAD_MS:
        clients.cache.set(key, str(now_ms).encode(), ttl_s=3600)
        return None
    return now + datetime.timedelta(milliseconds=wait_ms) if wait_ms > 0 else None
