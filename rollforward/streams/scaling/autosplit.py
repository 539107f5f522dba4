"""Splits an interval that has too much to do, and merges neighbours that have little.

The owner of an interval splits it itself: it knows its load, and nobody else writes to its row. The
tick merges, for it sees the intervals that nobody works on.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.errors import BadLayoutError, UnknownStreamError
from rollforward.streams.model.limits import MAX_INTERVALS
from rollforward.streams.scaling.load_meter import LoadMeter, merge_candidate
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage.remote_calls import ChangedError, OutcomeUnknownError, Steps
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.storage.state_store import is_crowded

# Others were faster, or have detached it; if it is still needed, it is tried again.
FAILED = (ChangedError, OutcomeUnknownError, BadLayoutError, UnknownStreamError)


def split_if_full(
    environment: Environment, head: Head, computation: str, meter: LoadMeter
) -> Steps[bool]:
    """Split an interval by what its owner has measured; return whether that was tried."""
    load, limit = meter.load, environment.pipeline.limits.intervals
    if load.hot_key and meter.split_slot is not None:
        share = f"{load.hot_share:.0%} of {computation}"
        environment.warn(
            f"{environment.pipeline.name}: {load.hot_key!r} is {share}, which one worker at a time "
            "works on: combine its records by parts first (rollforward.streams.operators.hot_keys)"
        )
    if meter.split_slot is None or limit is None or len(head.intervals[computation]) >= limit:
        return False
    yield from _try_to_split(environment, computation, meter.split_slot)
    return True


def split_if_large(
    environment: Environment, head: Head, computation: str, interval: Interval
) -> Steps[bool]:
    """Split an interval whose row will have no room for its slabs; return whether that was tried.

    Also if nothing is split by its load: without room nothing more could be worked on there.
    """
    slabs = interval.slabs
    if not is_crowded(len(slabs)) or len(head.intervals[computation]) >= MAX_INTERVALS:
        return False
    yield from _try_to_split(environment, computation, slabs[len(slabs) // 2].lo)
    return True


def _try_to_split(environment: Environment, computation: str, slot: int) -> Steps[None]:
    try:
        yield from split(environment, computation, slot)
    except FAILED as error:
        environment.warn(f"{environment.pipeline.name}: {computation} was not split: {error}")


def merge_idle(
    environment: Environment, head: Head, idle_intervals: Mapping[tuple[str, int], Interval]
) -> Steps[None]:
    """Merge one pair of neighbours of each computation that was split and has little to do now.

    Args:
        resting: The intervals that nobody works on, and that have no work.
    """
    pipeline, now_ms = environment.at(head), environment.now_ms()
    if pipeline.limits.intervals is None:
        return
    for name in pipeline.computations:
        loads = {
            lo: row.load
            for (each, lo), row in idle_intervals.items()
            if each == name and not is_crowded(2 * len(row.slabs))
        }
        slot = merge_candidate(head.intervals[name], loads, now_ms)
        if (
            slot is None
            or not pipeline.accepts_input(name)
            or pipeline.is_sink(name)
            or len(head.intervals[name]) <= pipeline.intervals
        ):
            continue
        try:
            yield from merge(environment, name, slot)
        except FAILED as error:
            environment.warn(f"{pipeline.name}: {name} was not merged: {error}")
