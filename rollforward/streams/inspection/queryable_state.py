"""Queryable state: the state of keys as it was last committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import find_head
from rollforward.streams.graph.plan import CLEANING, DISCARDING, running_computations
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.storage.layout import by_interval, interval_of
from rollforward.streams.storage.remote_calls import ChangedError, Read, Steps
from rollforward.streams.storage.retry import MAX_ATTEMPTS
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.storage.state_store import StateStore

State = dict[str, Any]


class StatusSnapshot(NamedTuple):
    """Head of a pipeline, and its intervals by computation and first slot, at one time."""

    head: Head
    intervals: Mapping[tuple[str, int], Interval]


def state(environment: Environment, computation: str, key: str) -> Steps[State]:
    """Return the state of a key as it was last committed."""
    key_state, code = yield from _read_key(environment, computation, key)
    return code.load(key_state.text, key_state.version) if key_state.text else {}


def _read_key(
    environment: Environment, computation: str, key: str
) -> Steps[tuple[KeyState, Computation]]:
    """Return a key from rows that belong together, since its worker writes meanwhile; and its code.

    Raises:
        ChangedError: they never did.
    """
    for _ in range(MAX_ATTEMPTS):
        interval, store, code = yield from _interval_of(environment, computation, slot_of(key))
        if interval is None:
            return NOTHING, code
        yield from store.load(interval, [key], ())
        if store.is_row_missing(interval, key):
            continue
        key_state = store.state(interval, key)
        if key_state.text:
            return key_state, code
        current, _, _ = yield from _interval_of(environment, computation, slot_of(key))
        if current is not None and store.slab_of(current, key) == store.slab_of(interval, key):
            return NOTHING, code
    raise ChangedError


def states(
    environment: Environment, computation: str, first_slot: int
) -> Steps[tuple[dict[str, State], int]]:
    """Return the states of one slab, by key, and where the next slab begins (65,536: nowhere)."""
    interval, store, code = yield from _interval_of(environment, computation, first_slot)
    if interval is None:
        return {}, SLOTS
    lo = max(slab.lo for slab in interval.slabs if slab.lo <= first_slot)
    yield from store.load(interval, (), [lo])
    keys = store.keys(lo)
    yield from store.load(interval, keys, ())
    # The slab may have been cut since its interval was read; its upper part is the next slab then.
    current, _, _ = yield from _interval_of(environment, computation, first_slot)
    los = [slab.lo for slab in (current or interval).slabs]
    end = min((slab_lo for slab_lo in los if slab_lo > lo), default=interval.hi)
    by_key = {}
    for key in keys:
        if slot_of(key) >= end:
            continue
        key_state = store.state(interval, key)
        if store.is_row_missing(interval, key):
            key_state, code = yield from _read_key(environment, computation, key)
        if key_state.text:
            by_key[key] = code.load(key_state.text, key_state.version)
    return by_key, end


def states_of(
    environment: Environment,
    computation: str,
    keys: Iterable[str],
    snapshot: StatusSnapshot | None = None,
) -> Steps[dict[str, State]]:
    """Return the states of some keys as they were last committed, without the empty ones.

    Each state is whole, but they need not be of the same moment. It takes a few reads for each
    interval that has some of the keys.

    Args:
        snapshot: A snapshot of any age; rows that do not fit it are read again.
    """
    keys = sorted({*keys})
    environment.pipeline.any_version(computation)
    head = _as_running(
        snapshot.head if snapshot is not None else (yield from find_head(environment))
    )
    plan = environment.at(head)
    if not plan.is_active(computation):
        return {}
    by_lo, code = by_interval(head, computation, keys), plan.runnable(computation)
    if snapshot is None:
        intervals = yield from read_intervals(environment, computation, by_lo)
    else:
        places = snapshot.intervals
        intervals = {lo: places[computation, lo] for lo in by_lo if (computation, lo) in places}
    store, by_key = StateStore(environment.names, computation), dict[str, State]()
    doubtful, unfound = list[str](), dict[int, list[str]]()
    for lo, group in by_lo.items():
        interval = intervals.get(lo)
        inside = [key for key in group if interval is not None and slot_of(key) < interval.hi]
        doubtful += [key for key in group if key not in inside]
        if interval is None or not inside:
            continue
        yield from store.load(interval, inside, ())
        for key in inside:
            key_state = store.state(interval, key)
            if not key_state.text or store.is_row_missing(interval, key):
                unfound.setdefault(lo, []).append(key)
            elif key_state.version in (code.version, *code.reads):
                by_key[key] = code.load(key_state.text, key_state.version)
            else:
                doubtful.append(key)
    doubtful += yield from _moved(environment, store, intervals, unfound)
    # Meanwhile the interval or slab of a key was cut, or its computation was replaced.
    for key in doubtful:
        if current := (yield from state(environment, computation, key)):
            by_key[key] = current
    return by_key


def read_intervals(
    environment: Environment, computation: str, los: Collection[int]
) -> Steps[dict[int, Interval]]:
    """Read intervals; return the existing ones by their first slots."""
    rows = yield Read([environment.names.interval(computation, lo) for lo in los])
    return {lo: row.body for lo, row in zip(los, rows, strict=True) if row is not None}


def _moved(
    environment: Environment,
    store: StateStore,
    intervals: Mapping[int, Interval],
    unfound: Mapping[int, Sequence[str]],
) -> Steps[list[str]]:
    """Return the keys without a state that may be in another row by now.

    An interval that was split has another end, and one that was merged does not exist.
    """
    if not unfound:
        return []
    current = yield from read_intervals(environment, store.computation, unfound)
    return [
        key
        for lo, keys in unfound.items()
        for key in keys
        if lo not in current
        or slot_of(key) >= current[lo].hi
        or store.is_row_missing(intervals[lo], key)
        or store.slab_of(current[lo], key) != store.slab_of(intervals[lo], key)
    ]


def _interval_of(
    environment: Environment, computation: str, slot: int
) -> Steps[tuple[Interval | None, StateStore, Computation]]:
    """Return the interval of a slot, an empty store, and the code; None: it does not run."""
    store = StateStore(environment.names, computation)
    while True:
        head = _as_running((yield from find_head(environment)))
        running = running_computations(head).get(computation)
        if running is None or running.phase in (DISCARDING, CLEANING):
            return None, store, environment.pipeline.any_version(computation)
        code = environment.at(head).runnable(computation)
        lo = interval_of(head, computation, slot)
        [row] = yield Read([environment.names.interval(computation, lo)])
        if row is not None and slot < row.body.hi:  # If not, it was split or merged meanwhile.
            return row.body, store, code


def _as_running(head: Head) -> Head:
    """Return a head as it was before a stop: the states of a stopped pipeline can be read."""
    return head._replace(topology=head.stopped["topology"]) if head.stopped else head
