"""What is kept of keys, as it was last committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import MAX_ATTEMPTS, look_at_head
from rollforward.streams.graph.plan import CLEANING, DISCARDING, running_computations
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.storage.layout import by_interval, interval_of
from rollforward.streams.storage.remote_calls import ChangedError, Read, Steps
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.storage.state_store import StateStore


class StatusSnapshot(NamedTuple):
    """The head of a pipeline, and its intervals by computation and first slot, as they were."""

    head: Head
    intervals: Mapping[tuple[str, int], Interval]


def state(environment: Environment, computation: str, key: str) -> Steps[dict[str, Any]]:
    """Return the state of a key as it was last committed."""
    found, code = yield from _kept(environment, computation, key)
    return code.load(found.text, found.version) if found.text else {}


def _kept(
    environment: Environment, computation: str, key: str
) -> Steps[tuple[KeyState, Computation]]:
    """Return a key, from rows that belong together: its interval writes meanwhile; and its code.

    Raises:
        ChangedError: they never did.
    """
    for _ in range(MAX_ATTEMPTS):
        interval, store, code = yield from _interval_of(environment, computation, slot_of(key))
        if interval is None:
            return NOTHING, code
        yield from store.load(interval, [key], ())
        if store.is_torn(interval, key):
            continue
        found = store.state(interval, key)
        if found.text:
            return found, code
        after, _, _ = yield from _interval_of(environment, computation, slot_of(key))
        if after is not None and store.slab_of(after, key) == store.slab_of(interval, key):
            return NOTHING, code
    raise ChangedError


def states(
    environment: Environment, computation: str, first_slot: int
) -> Steps[tuple[dict[str, dict[str, Any]], int]]:
    """Return the states of one slab, by key, and where the next slab begins (65,536: nowhere)."""
    interval, store, code = yield from _interval_of(environment, computation, first_slot)
    if interval is None:
        return {}, SLOTS
    los = [slab.lo for slab in interval.slabs]
    lo = max(each for each in los if each <= first_slot)
    yield from store.load(interval, (), [lo])
    keys = store.keys(lo)
    yield from store.load(interval, keys, ())
    # The slab may have been cut since its interval was read: the rest of it stands in the next one.
    after, _, _ = yield from _interval_of(environment, computation, first_slot)
    los = [slab.lo for slab in (after or interval).slabs]
    end = min((each for each in los if each > lo), default=interval.hi)
    found = {}
    for key in [each for each in keys if slot_of(each) < end]:
        kept = store.state(interval, key)
        if store.is_torn(interval, key):
            kept, code = yield from _kept(environment, computation, key)
        if kept.text:
            found[key] = code.load(kept.text, kept.version)
    return found, end


def states_of(
    environment: Environment,
    computation: str,
    keys: Iterable[str],
    snapshot: StatusSnapshot | None = None,
) -> Steps[dict[str, dict[str, Any]]]:
    """Return the states of some keys as they were last committed; those without one are left out.

    Each of them is whole, and they need not be of the same moment. It takes a few reads for each
    interval that has some of them.

    Args:
        snapshot: What was read before, however long ago: what does not fit it is read again.
    """
    names, wanted = environment.names, sorted({*keys})
    environment.pipeline.any_version(computation)
    head = snapshot.head if snapshot is not None else (yield from look_at_head(environment))
    plan = environment.at(head)
    if not plan.is_active(computation):
        return {}
    by_lo, code = by_interval(head, computation, wanted), plan.runnable(computation)
    if snapshot is None:
        known = yield from read_intervals(environment, computation, by_lo)
    else:
        places = snapshot.intervals
        known = {lo: places[computation, lo] for lo in by_lo if (computation, lo) in places}
    store, found, doubtful = (
        StateStore(names, computation),
        dict[str, dict[str, Any]](),
        list[str](),
    )
    unsure: dict[int, list[str]] = {}
    for lo, some in by_lo.items():
        interval = known.get(lo)
        here = [each for each in some if interval is not None and slot_of(each) < interval.hi]
        doubtful += [each for each in some if each not in here]
        if interval is None or not here:
            continue
        yield from store.load(interval, here, ())
        for key in here:
            kept = store.state(interval, key)
            if not kept.text or store.is_torn(interval, key):
                unsure.setdefault(lo, []).append(key)
            elif kept.version in (code.version, *code.reads):
                found[key] = code.load(kept.text, kept.version)
            else:
                doubtful.append(key)
    doubtful += yield from _moved(environment, store, known, unsure)
    for key in doubtful:  # Its interval or slab was cut meanwhile, or its computation was replaced.
        if now := (yield from state(environment, computation, key)):
            found[key] = now
    return found


def read_intervals(
    environment: Environment, computation: str, los: Collection[int]
) -> Steps[dict[int, Interval]]:
    """Read intervals; return those that there are by their first slots."""
    rows = yield Read([environment.names.interval(computation, lo) for lo in los])
    return {lo: row.body for lo, row in zip(los, rows, strict=True) if row is not None}


def _moved(
    environment: Environment,
    store: StateStore,
    known: Mapping[int, Interval],
    unsure: Mapping[int, Sequence[str]],
) -> Steps[list[str]]:
    """Return the keys that may stand elsewhere by now, of those that were not found.

    An interval that was split has another end, and one that was merged is gone.
    """
    if not unsure:
        return []
    now = yield from read_intervals(environment, store.computation, unsure)
    return [
        key
        for lo, keys in unsure.items()
        for key in keys
        if lo not in now
        or slot_of(key) >= now[lo].hi
        or store.is_torn(known[lo], key)
        or store.slab_of(now[lo], key) != store.slab_of(known[lo], key)
    ]


def _interval_of(
    environment: Environment, computation: str, slot: int
) -> Steps[tuple[Interval | None, StateStore, Computation]]:
    """Return the interval of a slot; None: the computation does not run; and its code."""
    store = StateStore(environment.names, computation)
    while True:
        head = yield from look_at_head(environment)
        part = running_computations(head).get(computation)
        if part is None or part.phase in (DISCARDING, CLEANING):
            return None, store, environment.pipeline.any_version(computation)
        code = environment.at(head).runnable(computation)
        lo = interval_of(head, computation, slot)
        [found] = yield Read([environment.names.interval(computation, lo)])
        if found is not None and slot < found.body.hi:  # If not, it was split or merged meanwhile.
            return found.body, store, code
