"""Compatibility check: can a version continue with states and inbox, and among its neighbours?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rollforward.app_code import SIGNALS
from rollforward.runtime.texts import describe_error
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import ActivePipeline, RunningComputation
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import TopologyError, UnreadableStateError
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import Read, Steps
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.storage.state_store import LARGE_AT_ONCE, StateStore

# Slabs of up to 32 KB; with more of them only every second, third and so on is read.
MAX_SLABS = 400
SLABS_AT_ONCE = 10

Item = TypeVar("Item")


def check_stored_states(
    environment: Environment, head: Head, code: Computation, running: RunningComputation
) -> Steps[Sequence[int]]:
    """Read stored states with a version of a computation; return the versions that wrote them.

    Raises:
        UnreadableStateError: it cannot read one of them, or does not declare that it can.
    """
    if isinstance(code, Sink) or code.weak:
        return ()  # It has no state.
    rows = yield Read(
        [environment.names.interval(code.name, lo) for lo in head.intervals[code.name]]
    )
    intervals = [row.body for row in rows if row]
    step = max(1, -(-sum(len(interval.slabs) for interval in intervals) // MAX_SLABS))
    versions: set[int] = set() if step == 1 else {*running.stored_versions}
    versions.add(running.version)
    check_declared(code, versions)
    store = StateStore(environment.names, code.name)
    for interval in intervals:
        for slabs in _batched([slab.lo for slab in interval.slabs[::step]], SLABS_AT_ONCE):
            yield from store.load(interval, (), slabs)
            slab_keys = [key for lo in slabs for key in store.keys(lo)]
            for keys in _batched(slab_keys, LARGE_AT_ONCE):
                yield from store.load(interval, keys, ())
                versions |= _try_all(code, store, interval, keys)
                store.drop_large(keys)
            store.clear()
    return sorted(versions)


def _batched(items: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    """Yield items in batches of a number."""
    for start in range(0, len(items), count):
        yield items[start : start + count]


def _try_all(
    code: Computation, store: StateStore, interval: Interval, keys: Sequence[str]
) -> set[int]:
    """Read the states of some keys; return the versions that wrote them."""
    versions = set[int]()
    for key in keys:
        if store.is_row_missing(interval, key):
            continue
        state = store.state(interval, key)
        if state.text:
            versions.add(state.version)
        check_state(code, key, state)
    return versions


def check_declared(code: Computation, versions: set[int]) -> None:
    """Check that a version declares that it reads the states of some versions.

    Raises:
        UnreadableStateError: it does not.
    """
    if undeclared := sorted(versions - {code.version, *code.reads}):
        listed = ", ".join(map(str, undeclared))
        raise UnreadableStateError(
            f"version {code.version} of {code.name} does not declare that it reads states of "
            f"version {listed}: add them to its `reads`"
        )


def check_state(code: Computation, key: str, state: KeyState) -> None:
    """Check that a version can read the state of a key, and its timers.

    Raises:
        UnreadableStateError: it cannot.
    """
    try:
        if state.text:
            code.codec.dump(code.load(state.text, state.version))
        for tag in state.timers:
            code.check_tag(tag)
    except SIGNALS:
        raise
    except BaseException as error:
        raise UnreadableStateError(
            f"version {code.version} of {code.name} cannot read the state of {key!r}, written by "
            f"version {state.version}: {describe_error(error)}"[:500]
        ) from error


def check_replaces(replaced: Computation, running: RunningComputation, code: Computation) -> None:
    """Check that a version can continue with the inbox and the timers of another one.

    Raises:
        TopologyError: it cannot.
    """
    new_version = f"version {code.version} of {code.name}"
    if {*running.inputs} != {*code.inputs}:
        raise TopologyError(
            f"{new_version} does not read {', '.join(running.inputs)} as the running one does, "
            "and they share an inbox: attach it under another name"
        )
    if running.weak != code.weak:
        raise TopologyError(
            f"only one of {new_version} and the running one is weak, and senders would run it "
            "inline while it runs itself: attach it under another name"
        )
    if (running.sink or isinstance(replaced, Sink)) != isinstance(code, Sink):
        raise TopologyError(
            f"only one of {new_version} and the running one is a sink: attach it under another name"
        )
    sinks = [sink for sink in (replaced, code) if isinstance(sink, Sink)]
    if len({sink.partitions for sink in sinks}) > 1:
        raise TopologyError(
            f"{new_version} has another number of partitions, and its subscribers have positions "
            "in those that run: publish the stream under another name"
        )
    if replaced.percentile != code.percentile:
        raise TopologyError(f"{new_version} has another `percentile`: its watermark would go back")


def check_topology(current: ActivePipeline, changed: ActivePipeline) -> None:
    """Check that a topology can replace another.

    Raises:
        TopologyError: it cannot; the text has the reason.
    """
    staying = [name for name in changed.computations if changed.accepts_input(name)]
    if not staying:
        raise TopologyError("a pipeline must have a computation: this is its last one")
    written = {stream for name in staying for stream in changed.running[name].written}
    outside = {stream for stream in current.sources if current.graph.readers[stream]}
    for name in staying:
        for stream in changed.running[name].inputs:
            is_new = name not in current.computations or stream not in current.running[name].inputs
            if stream in written or stream in outside:
                continue
            if not is_new or stream not in changed.known_sources:
                raise TopologyError(f"no computation would write {stream!r}, which {name} reads")
    if pushed := sorted(written & outside):
        raise TopologyError(f"{', '.join(pushed)} comes from outside: no computation can write it")
    try:
        _ = changed.graph.order
        changed.check_weak()
    except TypeError as error:
        raise TopologyError(str(error)) from error
