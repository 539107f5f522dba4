"""Whether a version of a computation can read what others have stored, before it takes over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import RunningComputation
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import UnreadableStateError
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import Read, Steps
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.storage.state_store import LARGE_AT_ONCE, StateStore

# Of up to 32 KB each: of more, every second one is read, or third, and so on.
MAX_SLABS = 400
SLABS_AT_ONCE = 10

Item = TypeVar("Item")


def check_stored_states(
    environment: Environment, head: Head, code: Computation, part: RunningComputation
) -> Steps[Sequence[int]]:
    """Read stored states with a version of a computation; return which versions are stored.

    Raises:
        UnreadableStateError: it cannot read one of them, or does not say that it can.
    """
    if isinstance(code, Sink) or code.weak:
        return ()  # It keeps no state.
    keys = [environment.names.interval(code.name, lo) for lo in head.intervals[code.name]]
    found = yield Read(keys)
    intervals = [row.body for row in found if row]
    step = max(1, -(-sum(len(each.slabs) for each in intervals) // MAX_SLABS))
    versions: set[int] = set() if step == 1 else {*part.stored_versions}
    versions.add(part.version)
    _check_reads(code, versions)
    store = StateStore(environment.names, code.name)
    for interval in intervals:
        for slabs in _batched([slab.lo for slab in interval.slabs[::step]], SLABS_AT_ONCE):
            yield from store.load(interval, (), slabs)
            of_slabs = [key for lo in slabs for key in store.keys(lo)]
            for some in _batched(of_slabs, LARGE_AT_ONCE):
                yield from store.load(interval, some, ())
                versions |= _try_all(code, store, interval, some)
                store.drop_large(some)
            store.clear()
    return sorted(versions)


def _batched(items: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    """Yield so many items at a time."""
    for first in range(0, len(items), count):
        yield items[first : first + count]


def _try_all(
    code: Computation, store: StateStore, interval: Interval, keys: Sequence[str]
) -> set[int]:
    """Read the states of some keys; return which versions have left them."""
    versions = set[int]()
    for key in keys:
        if store.is_torn(interval, key):
            continue
        state = store.state(interval, key)
        if state.text:
            versions.add(state.version)
        _try(code, key, state)
    return versions


def _check_reads(code: Computation, versions: set[int]) -> None:
    if missing := sorted(versions - {code.version, *code.reads}):
        listed = ", ".join(map(str, missing))
        raise UnreadableStateError(
            f"version {code.version} of {code.name} does not say that it reads states of version "
            f"{listed}: name them in its `reads`"
        )


def _try(code: Computation, key: str, state: KeyState) -> None:
    try:
        if state.text:
            code.codec.dump(code.load(state.text, state.version))
        for tag in state.timers:
            code.check_tag(tag)
    except Exception as error:
        raise UnreadableStateError(
            f"version {code.version} of {code.name} cannot read the state of {key!r}, left by "
            f"version {state.version}: {type(error).__name__}: {error}"[:500]
        ) from error
