"""Workers that give way: who has little to do ends early, while other intervals wait for a worker.

A queue runs so many tasks at a time, and a worker stays with its interval for up to 20 seconds.
With more intervals than workers it would wait there for a few records at a time, while elsewhere
many wait for nobody. So each tick notes in the head which intervals have work and no worker, and
since when. A worker that has taken all that waited hands its interval on while there is such a one.

It is a hint, and bounded at both ends. For a moment each interval has no worker, between two tasks:
if that counted, all would go on giving way to each other. And one may have work that no instance
can do, because its code is gone or cannot read its rows: it counts for `MAX_WAIT_MS`, and anew only
once something was done there. That it was taken says nothing.
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
        done: What its workers have done, counted since it began.
        since_ms: When a tick first found it so.
    """

    done: int
    since_ms: int


def unserved(
    head: Head,
    places: Iterable[tuple[str, int]],
    intervals: Mapping[tuple[str, int], Interval],
    now_ms: int,
) -> dict[str, Unserved]:
    """Return the intervals that wait for a worker, as the next head has them.

    Args:
        head: That of the last tick.
        places: Those that have work now, and no worker.
    """
    found = {}
    for name, lo in places:
        place, done = f"{name}:{lo:04x}", _done(intervals[name, lo])
        was_done, since_ms, *_ = head.unserved.get(place, (-1, now_ms))  # Later code may say more.
        since_ms = min(since_ms, now_ms) if was_done == done else now_ms
        found[place] = Unserved(done, since_ms)
    return found


def should_yield(environment: Environment, head: Head) -> bool:
    """Return whether an interval has waited for a worker for a while, and not for too long."""
    now_ms, least_ms = environment.now_ms(), environment.config.waits_ms
    waits_ms = (now_ms - since_ms for _, since_ms, *_ in head.unserved.values())
    return any(least_ms <= each < MAX_WAIT_MS for each in waits_ms)


def _done(interval: Interval) -> int:
    """Return what was done in an interval: it only rises."""
    counts = interval.records, interval.late, interval.late_between_parts, interval.dead
    return sum(counts) + interval.repeated + interval.fired
