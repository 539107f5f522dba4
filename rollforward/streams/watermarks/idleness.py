"""Idle processes of a source: its watermark does not wait for them.

A process is idle if it has written nothing for the source's `idle`. A pause of the whole stream,
because the app is down or all shops are closed, says nothing about single processes. So a process
that was active before the pause has another `idle` from its end on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import Head, SourceRow
from rollforward.streams.watermarks.backpressure import source_name

# While a watermark follows the clock, ticks become idle between two of these steps.
STEP_MS = 10_000


class Activity(NamedTuple):
    """Time of a stream's last write, and its latest pause of over `idle`."""

    last_ms: int = 0
    pause_began_ms: int = 0
    pause_ended_ms: int = 0


def activity_of(
    head: Head, stream: str, rows: Mapping[str, StoredRow], idle_ms: int, now_ms: int
) -> Activity:
    """Return the activity of a stream, as a tick sees it."""
    last_ms = min(now_ms, max((row.body.seen_ms for row in rows.values()), default=0))
    if stream not in head.last_heard:
        return Activity(last_ms)
    stored = Activity(*head.last_heard[stream])
    if last_ms - stored.last_ms > idle_ms:
        return Activity(last_ms, stored.last_ms, now_ms)
    return stored._replace(last_ms=max(last_ms, stored.last_ms))


def idle_processes(
    head: Head,
    stream: str,
    inside: Mapping[str, StoredRow],
    activity: Activity,
    idle_ms: int,
    now_ms: int,
) -> dict[str, StoredRow]:
    """Return the idle ones of the processes that the watermark waits for."""

    def is_idle(process: str, row: StoredRow) -> bool:
        paused_at_ms = head.paused_at_ms.get(source_name(stream, process), 0)
        active_ms = max(row.body.seen_ms, paused_at_ms)
        if active_ms >= activity.pause_began_ms - idle_ms:
            active_ms = max(active_ms, activity.pause_ended_ms)
        return bool(active_ms < now_ms - idle_ms and row.body.watermark < FOREVER)

    return {process: row for process, row in inside.items() if is_idle(process, row)}


def excluded_processes(
    inside: Mapping[str, StoredRow], idle: Mapping[str, StoredRow], *, advances: bool
) -> Mapping[str, StoredRow]:
    """Return the idle processes that the watermark ignores from now on.

    If all processes are idle it keeps waiting for them, since no other knows more.

    Args:
        advances: The watermark follows the clock when all processes are idle.
    """
    are_all = len(idle) == sum(row.body.watermark < FOREVER for row in inside.values())
    return {} if are_all and not advances else idle


def watermark_of(
    published: int, rows: Iterable[SourceRow], awaited: Iterable[SourceRow], clock_ms: int | None
) -> int:
    """Return the watermark of a source: the lowest one of the processes that it waits for.

    It ends when all processes have ended. If some have ended and others are idle, it stays: an idle
    process may return, and after the end all its records would be late.

    Args:
        clock_ms: The time that it follows in steps when all processes are idle; None: none.
    """
    watermarks = [row.watermark for row in awaited if row.watermark < FOREVER]
    if watermarks:
        return max(published, min(watermarks))
    ends = {row.watermark >= FOREVER for row in rows}
    if ends == {True}:
        return FOREVER
    is_due = False in ends and clock_ms is not None and clock_ms >= published + STEP_MS
    return clock_ms if is_due and clock_ms is not None else published
