"""Yielding: a worker with little to do ends early while other intervals have no worker.

A queue runs a fixed number of tasks at a time, and a worker stays with its interval for up to 20
seconds. With more intervals than workers it would stay for a few records at a time, while other
intervals with a backlog have no worker. So each tick notes in the head which intervals have work
and no worker, and since when. A worker that has drained its inbox yields while there is one.

This is a hint, bounded at both ends. Between two tasks every interval is without a worker for a
moment. If that counted, all workers would keep yielding to each other. And an interval may have
work that no instance can do, because its code is missing or cannot read its rows. Such an interval
counts for `MAX_WAIT_MS`, and again only after progress there; that a worker took it is no progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollforward.streams.graph.environment import Environment
from rollforward.streams.storage.schema import Head, Interval

MAX_WAIT_MS = 30_000


class Unserved(NamedTuple):
    """An interval that has work and no worker.

    Attributes:
        progress: Records and timers that its workers have processed so far.
        since_ms: When a tick first noticed it.
    """

    progress: int
    since_ms: int


def unserved(
    head: Head,
    places: Iterable[tuple[str, int]],
    intervals: Mapping[tuple[str, int], Interval],
    now_ms: int,
) -> dict[str, Unserved]:
    """Return the unserved intervals for the next head.

    Args:
        head: The head of the last tick.
        places: Intervals with work and without a worker now.
    """
    entries = {}
    for name, lo in places:
        place, progress = f"{name}:{lo:04x}", _progress(intervals[name, lo])
        # Later code may store further fields.
        last_progress, since_ms, *_ = head.unserved.get(place, (-1, now_ms))
        since_ms = min(since_ms, now_ms) if last_progress == progress else now_ms
        entries[place] = Unserved(progress, since_ms)
    return entries


def should_yield(environment: Environment, head: Head) -> bool:
    """Return whether an interval has been unserved for a while, and not for too long."""
    now_ms, min_wait_ms = environment.now_ms(), environment.config.waits_ms
    waits_ms = (now_ms - since_ms for _, since_ms, *_ in head.unserved.values())
    return any(min_wait_ms <= wait_ms < MAX_WAIT_MS for wait_ms in waits_ms)


def _progress(interval: Interval) -> int:
    """Return how many records and timers were processed in an interval; it only grows."""
    counts = interval.records, interval.late, interval.late_between_parts, interval.dead
    return sum(counts) + interval.repeated + interval.fired
