"""Which processes of a source are silent: its watermark waits for them no more.

A process is silent when it was not heard for the source's `idle`. A pause in which nobody is heard,
because the app is away or all shops are closed, says nothing of any of them: a process that was not
silent before it has `idle` from its end on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import Head, SourceRow
from rollforward.streams.watermarks.backpressure import source_name

# While a watermark follows the clock, ticks come to rest between two of its steps.
STEP_MS = 10_000


class Activity(NamedTuple):
    """When a stream was heard last, and when its latest pause of over `idle` began and ended."""

    last_ms: int = 0
    began_ms: int = 0
    ended_ms: int = 0


def activity_of(
    head: Head, stream: str, rows: Mapping[str, StoredRow], idle_ms: int, now_ms: int
) -> Activity:
    """Return when a stream was heard, as a tick finds it."""
    last_ms = min(now_ms, max((row.body.seen_ms for row in rows.values()), default=0))
    if stream not in head.last_heard:
        return Activity(last_ms)
    was = Activity(*head.last_heard[stream])
    if last_ms - was.last_ms > idle_ms:
        return Activity(last_ms, was.last_ms, now_ms)
    return was._replace(last_ms=max(last_ms, was.last_ms))


def idle_processes(
    head: Head,
    stream: str,
    inside: Mapping[str, StoredRow],
    activity: Activity,
    idle_ms: int,
    now_ms: int,
) -> dict[str, StoredRow]:
    """Return the silent ones of the processes that the watermark waits for."""

    def is_silent(process: str, row: StoredRow) -> bool:
        paused_at_ms = head.paused_at_ms.get(source_name(stream, process), 0)
        heard_ms = max(row.body.seen_ms, paused_at_ms)
        if heard_ms >= activity.began_ms - idle_ms:
            heard_ms = max(heard_ms, activity.ended_ms)
        return bool(heard_ms < now_ms - idle_ms and row.body.watermark < FOREVER)

    return {process: row for process, row in inside.items() if is_silent(process, row)}


def left_out(
    inside: Mapping[str, StoredRow], silent: Mapping[str, StoredRow], *, advances: bool
) -> Mapping[str, StoredRow]:
    """Return the silent processes that the watermark does not wait for any more.

    If they are the last ones, it does: nobody is there who knows more.

    Args:
        advances: The watermark follows the clock when all are silent.
    """
    are_last = len(silent) == sum(row.body.watermark < FOREVER for row in inside.values())
    return {} if are_last and not advances else silent


def watermark_of(
    published: int, rows: Iterable[SourceRow], heard: Iterable[SourceRow], clock_ms: int | None
) -> int:
    """Return the watermark of a source: that of the slowest process that it waits for.

    It ends when all processes have ended. Where some have, and others are silent, it stands still:
    they may come back, and after its end all that they bring would be late.

    Args:
        clock_ms: What it follows when all are silent, in steps; None: nothing.
    """
    waited_for = [row.watermark for row in heard if row.watermark < FOREVER]
    if waited_for:
        return max(published, min(waited_for))
    ends = {row.watermark >= FOREVER for row in rows}
    if ends == {True}:
        return FOREVER
    is_due = False in ends and clock_ms is not None and clock_ms >= published + STEP_MS
    return clock_ms if is_due and clock_ms is not None else published
