"""Splits and merges of intervals, while the stream flows.

Each is one commit. It names the versions of the head and of the intervals, so it is all or nothing,
and a worker that was at work there loses at most the batch in hand. States do not move: their rows
are named by slots. A slab around the cut is cut with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rollforward.streams.exchange.inline import sum_counts
from rollforward.streams.exchange.wakeups import schedule_wakeup, wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import MAX_ATTEMPTS, look_at_head, read_head
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.errors import BadLayoutError
from rollforward.streams.model.limits import MAX_INTERVALS
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.scaling.load_meter import halved, middle
from rollforward.streams.storage import dedup
from rollforward.streams.storage.layout import (
    Inbox,
    by_interval,
    creation_layout,
    interval_of,
    with_layout,
)
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    OutcomeUnknownError,
    Read,
    Steps,
    StoredRow,
)
from rollforward.streams.storage.schema import IdsPart, Interval, Slab, SlabBody
from rollforward.streams.storage.state_store import is_crowded, summary

COUNTS = (
    "records", "late", "late_between_parts", "dead", "repeated", "fired", "produced", "unkeyed",
)  # fmt: skip


def split(environment: Environment, computation: str, slot: int) -> Steps[None]:
    """Cut the interval of a slot in two, of which the second one begins there.

    Raises:
        UnknownStreamError: no such computation runs.
        BadLayoutError: an interval begins there already, there are too many, or records of this
            computation keep their places.
        ChangedError: others were faster again and again; nothing was changed.
    """
    for _ in range(MAX_ATTEMPTS):
        head = yield from read_head(environment)
        lo = _to_split(environment, head, computation, slot)
        [found] = yield Read([environment.names.interval(computation, lo)])
        if found is None:
            continue  # It was merged meanwhile.
        try:
            yield from _split(environment, computation, slot, head, found)
        except (ChangedError, OutcomeUnknownError):
            if (yield from _is_first(environment, computation, slot)):
                break
            continue
        break
    else:
        raise ChangedError
    yield from _wake_all(environment, computation, [lo, slot])


def _to_split(environment: Environment, head: StoredRow, computation: str, slot: int) -> int:
    plan = environment.at(head.body)
    _check_stays(plan, computation)
    _check_keeps_places(plan, computation)
    los = head.body.intervals[computation]
    if not 0 < slot < SLOTS or slot in los:
        raise BadLayoutError(f"{computation} cannot be split at {slot}: an interval begins there")
    if len(los) >= MAX_INTERVALS:
        raise BadLayoutError(f"{computation} has {MAX_INTERVALS} intervals, and no more")
    return interval_of(head.body, computation, slot)


def _check_stays(plan: ActivePipeline, computation: str) -> None:
    plan.computation(computation)
    if not plan.accepts_input(computation):
        raise BadLayoutError(f"{computation} is being detached")


def _check_keeps_places(plan: ActivePipeline, computation: str) -> None:
    """Check that the ids of records do not follow from their places in an inbox.

    Raises:
        BadLayoutError: they do: a weak sink would act again under another id.
    """
    if plan.is_sink(computation):
        raise BadLayoutError(f"{computation} is a sink: its records keep their places, and ids")


def _split(
    environment: Environment, computation: str, slot: int, head: StoredRow, found: StoredRow
) -> Steps[None]:
    names, was = environment.names, found.body
    lo = interval_of(head.body, computation, slot)
    after = with_layout(head.body, computation, [Inbox(was.created_in, lo)], [lo, slot])
    load = halved(was.load, environment.now_ms())
    lower, upper = (
        half._replace(load=load) for half in _halves(was, lo, slot, after.layout_version)
    )
    commit = Commit()
    if slot not in [slab.lo for slab in was.slabs]:
        of_lower, of_upper = yield from _cut_slab(environment, computation, slot, was, commit)
        lower = lower._replace(slabs=(*lower.slabs[:-1], of_lower))
        upper = upper._replace(slabs=(of_upper, *upper.slabs))
    commit.puts.append((names.interval(computation, lo), lower, found.version))
    commit.puts.append((names.head, after, head.version))
    commit.inserts.append((names.interval(computation, slot), upper))
    yield commit


def _halves(was: Interval, lo: int, slot: int, layout: int) -> tuple[Interval, Interval]:
    """Return an interval and what is cut off it: both know the ids, one keeps the counts."""
    _check_known(was)
    known = tuple(_placed(part, lo) for part in was.ids)
    both = was._replace(
        seq=was.seq + 1, gen=was.gen + 1, created_in=layout, layout_version=layout, ids=known
    )
    lower = both._replace(hi=slot, slabs=tuple(each for each in was.slabs if each.lo < slot))
    upper = both._replace(
        owner="", lease_ms=0, crash_count=0,
        slabs=tuple(each for each in was.slabs if each.lo >= slot),
        records=0, late=0, dead=0, repeated=0, fired=0, produced=0, unkeyed=0,
        inlined={}, late_between_parts=0,
    )  # fmt: skip
    return lower, upper


def _check_known(*intervals: Interval) -> None:
    if fields := sorted({name for interval in intervals for name in interval.rest}):
        raise BadLayoutError(f"later code has written {fields}: it has to split or merge this")


def _placed(part: IdsPart, lo: int) -> IdsPart:
    """Return a part with the slot that its row is named by."""
    return part if part.lo is not None else part._replace(lo=lo)


def _cut_slab(
    environment: Environment, computation: str, slot: int, was: Interval, commit: Commit
) -> Steps[tuple[Slab, Slab]]:
    """Cut the slab that a slot lies in, in a commit; return what is known of the parts."""
    names = environment.names
    lo = max(each.lo for each in was.slabs if each.lo < slot)
    key = names.slab(computation, lo)
    [found] = yield Read([key])
    if found is None:
        return Slab(lo), Slab(slot)
    parts = [
        SlabBody(keys, found.body.large & frozenset(keys))
        for keys in (
            {key: state for key, state in found.body.keys.items() if slot_of(key) < slot},
            {key: state for key, state in found.body.keys.items() if slot_of(key) >= slot},
        )
    ]
    commit.puts.append((key, parts[0], found.version))
    commit.inserts.append((names.slab(computation, slot), parts[1]))
    return summary(lo, parts[0]), summary(slot, parts[1])


def merge(environment: Environment, computation: str, slot: int) -> Steps[None]:
    """Make the interval that begins at a slot a part of the one before it.

    Raises:
        UnknownStreamError: no such computation runs.
        BadLayoutError: no interval begins there, none is before it, both have too many slabs, or
            records of this computation keep their places.
        ChangedError: others were faster again and again; nothing was changed.
    """
    for _ in range(MAX_ATTEMPTS):
        head = yield from read_head(environment)
        plan = environment.at(head.body)
        _check_stays(plan, computation)
        _check_keeps_places(plan, computation)
        los = head.body.intervals[computation]
        if slot not in los[1:]:
            raise BadLayoutError(f"{computation} has no interval at {slot} that follows another")
        lo = los[los.index(slot) - 1]
        names = environment.names
        found = yield Read([names.interval(computation, each) for each in (lo, slot)])
        if None in found:
            continue
        if is_crowded(sum(len(row.body.slabs) for row in found)):
            raise BadLayoutError(f"{computation} would have more slabs than a row has room for")
        try:
            yield _merged(environment, computation, (lo, slot), head, found)
        except (ChangedError, OutcomeUnknownError):
            if not (yield from _is_first(environment, computation, slot)):
                break
            continue
        break
    else:
        raise ChangedError
    yield from _wake_all(environment, computation, [lo])


def _merged(
    environment: Environment, computation: str, los: tuple[int, int], head: StoredRow, found: Any
) -> Commit:
    names, (lower, upper) = environment.names, (row.body for row in found)
    before = [Inbox(creation_layout(head.body, computation, lo), lo) for lo in los]
    after = with_layout(head.body, computation, before, [los[0]])
    union = _union(los, lower, upper, after.layout_version)
    older, kept = dedup.split_surplus(union.ids)
    return Commit(
        puts=[
            (names.interval(computation, los[0]), union._replace(ids=kept), found[0].version),
            (names.head, after, head.version),
        ],
        deletes=[
            (names.interval(computation, los[1]), found[1].version),
            *((dedup.key_of(names, computation, los[0], part), None) for part in older),
        ],
    )


def _union(los: tuple[int, int], lower: Interval, upper: Interval, layout: int) -> Interval:
    """Return two intervals as one. The worker of the first goes on with it."""
    _check_known(lower, upper)
    placed = [_placed(part, los[0]) for part in lower.ids]
    placed += [_placed(part, los[1]) for part in upper.ids]
    youngest = {(part.lo, part.number): part for part in sorted(placed, key=_age)}
    return lower._replace(
        hi=upper.hi,
        seq=max(lower.seq, upper.seq) + 1,
        gen=max(lower.gen, upper.gen) + 1,
        crash_count=max(lower.crash_count, upper.crash_count),
        created_in=layout,
        layout_version=layout,
        slabs=lower.slabs + upper.slabs,
        ids=tuple(sorted(youngest.values(), key=_age)),
        inlined=sum_counts(lower.inlined, upper.inlined),
        **{name: getattr(lower, name) + getattr(upper, name) for name in COUNTS},
    )


def _age(part: IdsPart) -> tuple[int, int]:
    return part.last_s, part.number


def _is_first(environment: Environment, computation: str, slot: int) -> Steps[bool]:
    """Return whether an interval begins at a slot: the reply may have been lost."""
    head = yield from read_head(environment)
    return slot in head.body.intervals[computation]


def _wake_all(environment: Environment, computation: str, los: list[int]) -> Steps[None]:
    """Have new intervals looked after: their inboxes, what was left, and timers of the clock."""
    yield from wake_intervals(environment, [(computation, lo) for lo in los], tick=True)
    rows = yield Read([environment.names.interval(computation, lo) for lo in los])
    for lo, row in zip(los, rows, strict=True):
        if row is not None:
            yield from schedule_wakeup(environment, (computation, lo), row.body.processing_due)


def split_by_keys(
    environment: Environment, computation: str, keys: Iterable[str]
) -> Steps[int | None]:
    """Cut the interval that has most of some keys in the middle of these; return the slot.

    None: no interval has two of them, so nothing was changed.

    Raises:
        UnknownStreamError: no such computation runs.
        BadLayoutError: there are 64 intervals, or records of this computation keep their places.
        ChangedError: others were faster again and again; nothing was changed.
    """
    head = yield from look_at_head(environment)
    environment.at(head).computation(computation)
    groups = by_interval(head, computation, {*keys}).values()
    slots = [middle(Counter(group)) for group in sorted(groups, key=len, reverse=True)]
    slot = next((each for each in slots if each is not None), None)
    if slot is not None:
        yield from split(environment, computation, slot)
    return slot
