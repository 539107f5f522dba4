"""Resharding: splits and merges of intervals while records flow.

A split or a merge is one commit that names the versions of the head and of the intervals. So it is
atomic, and the worker of the interval loses at most its current bundle. States do not move, since
their rows are named by slots. Only the slab around the split point is cut in two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rollforward.streams.exchange.inline import sum_counts
from rollforward.streams.exchange.wakeups import schedule_wakeup, wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import find_head, read_head
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.errors import BadLayoutError
from rollforward.streams.model.key_state import SlabBody
from rollforward.streams.model.limits import MAX_INTERVALS
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.scaling.load_meter import halved, median_slot
from rollforward.streams.storage import dedup
from rollforward.streams.storage.layout import (
    Inbox,
    by_interval,
    creation_layout,
    interval_of,
    with_layout,
)
from rollforward.streams.storage.remote_calls import Commit, Read, Steps, StoredRow
from rollforward.streams.storage.retry import StaleReadError, retry_commit
from rollforward.streams.storage.schema import Head, IdsPart, Interval, Slab
from rollforward.streams.storage.state_store import is_crowded, summary

COUNTS = (
    "records", "late", "late_between_parts", "dead", "repeated", "fired", "produced", "unkeyed",
)  # fmt: skip


def split(environment: Environment, computation: str, slot: int) -> Steps[None]:
    """Split the interval of a slot in two; the second one begins at the slot.

    Raises:
        UnknownStreamError: the computation does not run.
        BadLayoutError: this is no slot, an interval begins there already, there are too many, or
            the intervals of the computation are fixed (`fixed_reason`).
        ChangedError: every attempt lost its race; nothing was changed.
    """
    _check_slot(slot)
    lo = 0

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        nonlocal lo
        head = yield from read_head(environment)
        if failure and _start_of(head.body, computation, slot):
            return None  # The reply was lost.
        lo = _interval_to_split(environment, head.body, computation, slot)
        [row] = yield Read([environment.names.interval(computation, lo)])
        if row is None:
            raise StaleReadError  # The interval was merged meanwhile.
        return (yield from _split_commit(environment, computation, slot, head, row))

    yield from retry_commit(prepare)
    yield from _wake_all(environment, computation, [lo, slot])


def _check_slot(slot: Any) -> None:
    if type(slot) is not int or not 0 <= slot < SLOTS:
        raise BadLayoutError(f"a slot must be a whole number below {SLOTS}, got {slot!r:.100}")


def _interval_to_split(environment: Environment, head: Head, computation: str, slot: int) -> int:
    _check_reshardable(environment.at(head), computation)
    los = head.intervals[computation]
    if slot in los:
        raise BadLayoutError(f"{computation} cannot be split at {slot}: an interval begins there")
    if len(los) >= MAX_INTERVALS:
        raise BadLayoutError(f"{computation} must have at most {MAX_INTERVALS} intervals")
    return interval_of(head, computation, slot)


def _check_reshardable(plan: ActivePipeline, computation: str) -> None:
    plan.computation(computation)
    if not plan.accepts_input(computation):
        raise BadLayoutError(f"{computation} is being detached")
    if plan.running[computation].version < 0:
        raise BadLayoutError(f"{computation} is stopped: an export may be reading its intervals")
    if reason := fixed_reason(plan, computation):
        raise BadLayoutError(f"{computation} is not split or merged: {reason}")


def fixed_reason(plan: ActivePipeline, computation: str) -> str:
    """Return why the intervals of a computation never change; "": they may."""
    code = plan.computations[computation]
    if isinstance(code, Sink):
        return code.fixed_reason
    return "only other code has this sink" if plan.is_sink(computation) else ""


def _split_commit(
    environment: Environment, computation: str, slot: int, head: StoredRow, row: StoredRow
) -> Steps[Commit]:
    names, interval = environment.names, row.body
    lo = interval_of(head.body, computation, slot)
    new_head = with_layout(head.body, computation, [Inbox(interval.created_in, lo)], [lo, slot])
    load = halved(interval.load, environment.now_ms())
    lower, upper = (
        half._replace(load=load)
        for half in _split_interval(interval, lo, slot, new_head.layout_version)
    )
    commit = Commit()
    if slot not in [slab.lo for slab in interval.slabs]:
        slabs = yield from _split_slab_at(environment, computation, slot, interval, commit)
        lower = lower._replace(slabs=(*lower.slabs[:-1], slabs[0]))
        upper = upper._replace(slabs=(slabs[1], *upper.slabs))
    commit.puts.append((names.interval(computation, lo), lower, row.version))
    commit.puts.append((names.head, new_head, head.version))
    commit.inserts.append((names.interval(computation, slot), upper))
    return commit


def _split_interval(
    interval: Interval, lo: int, slot: int, layout: int
) -> tuple[Interval, Interval]:
    """Return both halves of an interval: both know the ids, the lower one keeps the counts."""
    _check_known(interval)
    both = interval._replace(
        seq=interval.seq + 1,
        gen=interval.gen + 1,
        created_in=layout,
        layout_version=layout,
        ids=tuple(_placed(part, lo) for part in interval.ids),
    )
    lower = both._replace(hi=slot, slabs=tuple(slab for slab in both.slabs if slab.lo < slot))
    no_counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    upper = both._replace(
        owner="", lease_ms=0, crash_count=0,
        slabs=tuple(slab for slab in both.slabs if slab.lo >= slot),
        inlined={}, **no_counts,
    )  # fmt: skip
    return lower, upper


def _check_known(*intervals: Interval) -> None:
    if fields := sorted({name for interval in intervals for name in interval.later_fields}):
        raise BadLayoutError(f"later code has written {fields}: it has to split or merge this")


def _placed(part: IdsPart, lo: int) -> IdsPart:
    """Return a part with the slot that names its row."""
    return part if part.lo is not None else part._replace(lo=lo)


def _split_slab_at(
    environment: Environment, computation: str, slot: int, interval: Interval, commit: Commit
) -> Steps[tuple[Slab, Slab]]:
    """Cut the slab that a slot lies in; return the summaries of both parts."""
    names = environment.names
    lo = max(slab.lo for slab in interval.slabs if slab.lo < slot)
    key = names.slab(computation, lo)
    [row] = yield Read([key])
    if row is None:
        return Slab(lo), Slab(slot)
    parts = [
        SlabBody(keys, row.body.large & frozenset(keys))
        for keys in (
            {key: state for key, state in row.body.keys.items() if slot_of(key) < slot},
            {key: state for key, state in row.body.keys.items() if slot_of(key) >= slot},
        )
    ]
    commit.puts.append((key, parts[0], row.version))
    commit.inserts.append((names.slab(computation, slot), parts[1]))
    return summary(lo, parts[0]), summary(slot, parts[1])


def merge(environment: Environment, computation: str, slot: int) -> Steps[None]:
    """Merge the interval that begins at a slot into its predecessor.

    Raises:
        UnknownStreamError: the computation does not run.
        BadLayoutError: no interval begins there, it is the first one, both have too many slabs, or
            the intervals of the computation are fixed (`fixed_reason`).
        ChangedError: every attempt lost its race; nothing was changed.
    """
    _check_slot(slot)
    lo, names = 0, environment.names

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        nonlocal lo
        head = yield from read_head(environment)
        if failure and not _start_of(head.body, computation, slot):
            return None  # The reply was lost.
        _check_reshardable(environment.at(head.body), computation)
        los = head.body.intervals[computation]
        if slot not in los[1:]:
            raise BadLayoutError(f"{computation} has no interval at {slot} that follows another")
        lo = los[los.index(slot) - 1]
        rows = yield Read([names.interval(computation, first_slot) for first_slot in (lo, slot)])
        if None in rows:
            raise StaleReadError
        if is_crowded(sum(len(row.body.slabs) for row in rows)):
            raise BadLayoutError(f"{computation} would have more slabs than a row has room for")
        return _merge_commit(environment, computation, (lo, slot), head, rows)

    yield from retry_commit(prepare)
    yield from _wake_all(environment, computation, [lo])


def _merge_commit(
    environment: Environment, computation: str, los: tuple[int, int], head: StoredRow, rows: Any
) -> Commit:
    names, (lower, upper) = environment.names, (row.body for row in rows)
    inboxes = [Inbox(creation_layout(head.body, computation, lo), lo) for lo in los]
    new_head = with_layout(head.body, computation, inboxes, [los[0]])
    union = _union(los, lower, upper, new_head.layout_version)
    surplus, ids = dedup.split_surplus(union.ids)
    return Commit(
        puts=[
            (names.interval(computation, los[0]), union._replace(ids=ids), rows[0].version),
            (names.head, new_head, head.version),
        ],
        deletes=[
            (names.interval(computation, los[1]), rows[1].version),
            *((dedup.key_of(names, computation, los[0], part), None) for part in surplus),
        ],
    )


def _union(los: tuple[int, int], lower: Interval, upper: Interval, layout: int) -> Interval:
    """Return two intervals as one, which stays with the worker of the lower one."""
    _check_known(lower, upper)
    placed = [_placed(part, los[0]) for part in lower.ids]
    placed += [_placed(part, los[1]) for part in upper.ids]
    youngest = {(part.lo, part.number): part for part in sorted(placed, key=_age)}
    return lower._replace(
        hi=upper.hi,
        seq=max(lower.seq, upper.seq) + 1,
        gen=max(lower.gen, upper.gen) + 1,
        crash_count=max(lower.crash_count, upper.crash_count),
        crashed_ms=max(lower.crashed_ms, upper.crashed_ms),
        created_in=layout,
        layout_version=layout,
        slabs=lower.slabs + upper.slabs,
        ids=tuple(sorted(youngest.values(), key=_age)),
        inlined=sum_counts(lower.inlined, upper.inlined),
        **{name: getattr(lower, name) + getattr(upper, name) for name in COUNTS},
    )


def _age(part: IdsPart) -> tuple[int, int]:
    return part.last_s, part.number


def _start_of(head: Head, computation: str, slot: int) -> bool:
    return slot in head.intervals.get(computation, ())


def _wake_all(environment: Environment, computation: str, los: list[int]) -> Steps[None]:
    """Wake new intervals, for their retired inboxes and their processing-time timers, too."""
    yield from wake_intervals(environment, [(computation, lo) for lo in los], tick=True)
    rows = yield Read([environment.names.interval(computation, lo) for lo in los])
    for lo, row in zip(los, rows, strict=True):
        if row is not None:
            yield from schedule_wakeup(environment, (computation, lo), row.body.processing_due)


def split_by_keys(
    environment: Environment, computation: str, keys: Iterable[str]
) -> Steps[int | None]:
    """Split the interval with most of some keys at their median; return the slot.

    None: no interval has two of the keys, so nothing was changed.

    Raises:
        UnknownStreamError: the computation does not run.
        BadLayoutError: there are 64 intervals, or those of the computation are fixed.
        ChangedError: every attempt lost its race; nothing was changed.
    """
    head = yield from find_head(environment)
    environment.at(head).computation(computation)
    groups = by_interval(head, computation, {*keys}).values()
    medians = [median_slot(Counter(group)) for group in sorted(groups, key=len, reverse=True)]
    slot = next((median for median in medians if median is not None), None)
    if slot is not None:
        yield from split(environment, computation, slot)
    return slot
