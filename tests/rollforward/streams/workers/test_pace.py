"""Work that records of a process share: wake-ups of pushes, bundles, and rows as text."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforward.datastore import bodies
from rollforward.runtime import SystemClock
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.processes import NoProcesses
from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.driver import Engine
from rollforward.streams.model.json_text import decoded, encoder
from rollforward.streams.model.key_state import KeyState, SetTimer, SlabBody
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Pause,
    Read,
    Scan,
    TooLargeError,
)
from rollforward.streams.storage.schema import CHUNK, INTERVAL, SLAB
from rollforward.streams.storage.serde import dump, load
from tests.rollforward.streams.simulator.driver import Came, Desk, is_batch
from tests.rollforward.streams.simulator.store import answered


class Counted(Computation):
    inputs: ClassVar = {"in": lambda value: str(value["k"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


PIPELINE = Pipeline("counts", Counted, sources=[PushSource("in")], intervals=1)


class Reads:
    """Reads of an interval by wake-ups."""

    def __init__(self, desk: Desk) -> None:
        self.count = 0
        self._real = desk.simulation.acts[Read]
        desk.simulation.acts[Read] = self._read

    def _read(self, call: Read) -> Any:
        self.count += any(key.kind == INTERVAL for key in call.keys)
        return self._real(call)


def pushed_beside_a_worker() -> tuple[Desk, Any, int]:
    """Push three times, with a worker from the second push on; return the reads."""
    desk = Desk(PIPELINE)
    desk.push(Came("1", "a", 1))
    worker = desk.worker("counted")
    scan = desk.until(worker, Scan)
    desk.push(Came("2", "a", 2))
    reads = Reads(desk)
    desk.push(Came("3", "a", 3))
    desk.push(Came("4", "a", 4))
    return desk, (worker, scan), reads.count


def test_pushes_whose_readers_are_at_work_share_one_ring_a_little_later() -> None:
    """G1: the worker dies, so only that wake-up can start another one."""
    desk, _, read = pushed_beside_a_worker()
    assert read == 0
    assert len(desk.simulation.processes) == 1

    desk.wait(20)
    desk.simulation.sweeps = False
    desk.simulation.wakes.clear()
    desk.run()
    assert desk.state("counted", "a") == {"seen": 4}


def test_what_a_process_was_to_ring_when_it_died_the_sweep_finds() -> None:
    """G1: as between a commit and its wake-up."""
    desk, _, _ = pushed_beside_a_worker()
    desk.simulation.processes.clear()
    desk.simulation.wakes.clear()
    desk.wait(20)
    desk.run()
    assert desk.state("counted", "a") == {"seen": 4}


def test_a_push_rings_at_once_when_the_last_ring_was_a_while_ago_or_found_nobody() -> None:
    desk, worker, _ = pushed_beside_a_worker()
    reads = Reads(desk)
    desk.wait(0.051)
    desk.push(Came("5", "a", 5))
    assert reads.count == 1
    desk.finish(*worker)
    desk.wait(0.051)
    for number in (6, 7):
        desk.push(Came(f"{number}", "a", number))
    assert reads.count == 1 + 2


@pytest.mark.parametrize(
    ("records", "at_once", "pauses"),
    [(4, 4, [0.01]), (5, 4, [0.01]), (20, 4, [0.01]), (99, 200, [0.01]), (100, 200, [0.02])],
)
def test_a_worker_that_had_all_that_waited_lets_more_come(
    records: int, at_once: int, pauses: Any
) -> None:
    """It lingers longer after a large bundle, and not at all while it is behind."""
    desk = Desk(PIPELINE)
    desk.simulation.config = replace(desk.simulation.config, gather_s=0.01, max_records=at_once)
    desk.push(*(Came(f"{n}", "a", n) for n in range(records)))
    paused = []

    def answer(call: Any) -> Iterator[Any]:
        yield from ()
        if not isinstance(call, Pause):
            return None
        paused.append(call.seconds)
        return (None,)

    desk.do(answered(desk.worker("counted"), answer))
    assert desk.state("counted", "a") == {"seen": records}
    assert paused == pauses


@pytest.mark.parametrize(
    ("chunks_at_once", "fails", "look_into_memory"),
    [(20, 0, [0, 1, 0, 0]), (1, 0, [0] * 6), (20, 1, [0, 0, 1, 0, 0])],
)
def test_a_worker_that_had_all_that_waited_looks_into_memory_once(
    chunks_at_once: int, fails: int, look_into_memory: list[bool]
) -> None:
    """Then it scans, as it does while it is behind, after a failure, and before it leaves."""
    desk = Desk(PIPELINE)
    desk.simulation.config = replace(
        desk.simulation.config, linger=(0.01, 0.01), max_chunks=chunks_at_once
    )
    desk.push(Came("1", "a", 1))
    desk.push(Came("2", "a", 2))
    scans, errors = list[Scan](), [ChangedError()] * fails

    def answer(call: Any) -> Iterator[Any]:
        yield from ()
        if isinstance(call, Scan):
            scans.append(call)
        if is_batch(call) and errors:
            raise errors.pop()
        return None

    desk.do(answered(desk.worker("counted"), answer))
    assert desk.state("counted", "a") == {"seen": 2}
    *looks, last = scans
    assert [look.allow_empty for look in looks] == look_into_memory
    assert (last.allow_partial, last.allow_empty) == (False, False)


def test_a_worker_whose_commit_was_too_large_does_not_try_as_many_again() -> None:
    """At most twice in a run: each of these batches is work for nothing."""
    desk = Desk(PIPELINE)
    desk.simulation.config = replace(desk.simulation.config, max_records=8)
    for number in range(40):
        desk.push(Came(f"{number}", "a", number))
    sizes = []

    def answer(call: Any) -> Iterator[Any]:
        yield from ()
        if isinstance(call, Commit) and (size := taken(call)):
            sizes.append(size)
            if size > 3:
                raise TooLargeError
        return None

    desk.do(answered(desk.worker("counted"), answer))
    assert desk.state("counted", "a") == {"seen": 40}
    assert [size for size in sizes if size > 3] == [8, 4]


def taken(commit: Commit) -> int:
    return sum(key.kind == CHUNK for key, _ in commit.deletes)


def test_what_a_process_puts_into_an_inbox_ends_the_pause_of_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk in another inbox does not, nor one that the worker has already read."""
    monkeypatch.setattr(bodies, "commit", lambda client, **writes: [1])
    monkeypatch.setattr(bodies, "scan", lambda *range_: [])
    engine = Engine(bare_clients(), PIPELINE)
    names = engine.environment.names
    low, high = names.inbox_range("counted", 0, 5)
    inbox = names.inbox("counted", 0)
    ended = []

    def put(lo: int) -> None:
        key = names.chunk("counted", lo, 0, 7, "x.1.1")
        engine.run(one(Commit(inserts=[(key, ())])))

    def wait(seconds: float) -> None:
        engine.run(one(Pause(seconds, inbox)))
        ended.append(seconds)

    wait(0)
    put(0)
    wait(HOURS_S)
    engine.run(one(Scan(CHUNK, low, high, 1)))
    waiting = threading.Thread(target=wait, args=[HOURS_S], daemon=True)
    waiting.start()
    put(2**15)
    waiting.join(0.1)
    assert waiting.is_alive()
    put(0)
    waiting.join(60)
    assert ended == [0, HOURS_S, HOURS_S]


def test_a_look_into_memory_scans_when_a_scan_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of another instance is in nobody's memory."""
    scans = list[str]()
    monkeypatch.setattr(bodies, "scan", lambda client, kind, *range_: scans.append(kind) or [])
    engine = Engine(bare_clients(), PIPELINE)
    low, high = engine.environment.names.inbox_range("counted", 0, 5)
    look = Scan(CHUNK, low, high, 1, allow_partial=True, allow_empty=True)
    inbox = engine._hints._inbox(engine.environment.names.inbox("counted", 0))
    for period_s, count in ((0.0, 1), (HOURS_S, 1), (0.0, 2)):
        inbox.period_s = period_s
        assert engine.run(one(look)) == []
        assert len(scans) == count


HOURS_S = 10_000.0


def one(call: Any) -> Iterator[Any]:
    return (yield call)


def bare_clients() -> Any:
    """Return clients of which an engine needs nothing remote."""
    return SimpleNamespace(
        datastore=None,
        clock=SystemClock(),
        process_state=ProcessState(),
        processes=NoProcesses(),
        random=random,
    )


# As text

TEXTS = st.text(max_size=12)
TIMES = st.integers(0, 10**15)
TIMERS = st.dictionaries(
    TEXTS, st.builds(SetTimer, TIMES, st.booleans(), TIMES, st.booleans()), max_size=3
)
STATES = st.builds(KeyState, TEXTS, TIMERS, st.one_of(st.just(NEVER), TIMES), st.integers(1, 3))


@given(st.dictionaries(TEXTS, STATES, max_size=4))
def test_a_slab_is_read_as_it_was_written(keys: dict[str, KeyState]) -> None:
    body = SlabBody(keys, frozenset(list(keys)[::2]))
    assert load(SLAB, dump(SLAB, body)) == body
    assert load(SLAB, dump(SLAB, SlabBody(keys))) == SlabBody(keys)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(VALUES)
def test_a_value_is_written_as_the_standard_library_does(value: Any) -> None:
    if has_infinity(value):
        return
    text = encoder(allow_nan=False)(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert decoded(text) == value


def has_infinity(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(has_infinity, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


def test_what_is_not_json_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    encode = encoder(allow_nan=False)
    for bad, error in ((math.nan, ValueError), ({1, 2}, TypeError), (circle, RecursionError)):
        with pytest.raises(error):
            encode(bad)
    with pytest.raises(json.JSONDecodeError):
        decoded('{"a":1} x')
