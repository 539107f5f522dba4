"""Autosplit: splits overloaded intervals and merges idle neighbours.

The worker of an interval splits it, since it knows the load and alone writes the row. The tick
merges, since it sees the intervals without a worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.errors import BadLayoutError, UnknownStreamError
from rollforward.streams.model.limits import MAX_INTERVALS
from rollforward.streams.scaling.load_meter import LoadMeter, merge_candidate
from rollforward.streams.scaling.resharding import fixed_reason, merge, split
from rollforward.streams.storage.remote_calls import ChangedError, OutcomeUnknownError, Steps
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.storage.state_store import is_crowded

# The race is lost, or the computation was detached; a split that is still needed is retried.
FAILED = (ChangedError, OutcomeUnknownError, BadLayoutError, UnknownStreamError)


def split_if_full(
    environment: Environment, head: Head, computation: str, meter: LoadMeter
) -> Steps[bool]:
    """Split an interval if its load asks for it; return whether a split was tried."""
    load, limit = meter.load, environment.pipeline.limits.intervals
    if load.hot_key and meter.split_slot is not None:
        environment.warn(
            f"{environment.pipeline.name}: {load.hot_key!r} is {load.hot_share:.0%} of "
            f"{computation}, and one worker at a time processes a key: aggregate its records in "
            "parts first (rollforward.streams.operators.hot_keys)"
        )
    if meter.split_slot is None or limit is None or len(head.intervals[computation]) >= limit:
        return False
    if fixed_reason(environment.at(head), computation):
        return False
    yield from _try_to_split(environment, computation, meter.split_slot)
    return True


def split_if_large(
    environment: Environment, head: Head, computation: str, interval: Interval
) -> Steps[bool]:
    """Split an interval whose row is running out of room for slabs; return whether it was tried.

    This happens even where autosplit by load is off: without room no record can be processed.
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
    """Merge one pair of idle neighbours of each computation that was split.

    Args:
        idle_intervals: Intervals without a worker and without work.
    """
    pipeline, now_ms = environment.at(head), environment.now_ms()
    if pipeline.limits.intervals is None:
        return
    for name in pipeline.computations:
        loads = {
            lo: row.load
            for (computation, lo), row in idle_intervals.items()
            if computation == name and not is_crowded(2 * len(row.slabs))
        }
        slot = merge_candidate(head.intervals[name], loads, now_ms)
        if (
            slot is None
            or not pipeline.accepts_input(name)
            or fixed_reason(pipeline, name)
            or len(head.intervals[name]) <= pipeline.intervals
        ):
            continue
        try:
            yield from merge(environment, name, slot)
        except FAILED as error:
            environment.warn(f"{pipeline.name}: {name} was not merged: {error}")
