"""Cache of states: bounded, evicted by next use, reused when a worker returns to an interval."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams.driver import Engine
from rollforward.streams.model.key_state import KeyState, SetTimer, SlabBody
from rollforward.streams.storage.remote_calls import Key, Read, StoredRow
from rollforward.streams.storage.schema import LARGE, SLAB, Interval, Names, Slab
from rollforward.streams.storage.state_cache import ROW_BYTES, RowCache
from rollforward.streams.storage.state_store import StateStore
from tests.infra.world import Services
from tests.rollforward.streams.harness import stream_world
from tests.rollforward.streams.test_streams import Keeper

KEEPER = Pipeline("keeper", Keeper, intervals=1)
NAMES = Names("p")


def row(size: int) -> StoredRow:
    return StoredRow("x" * size, 1)


def test_what_is_needed_last_goes_first_and_among_equals_what_was_used_longest_ago() -> None:
    cache, due = RowCache(), {"soon": 5, "later": 50, "a": 10**9, "b": 10**9, "c": 10**9}
    for name in due:
        cache[Key(SLAB, name)] = row(1_000)
    for name in ("c", "a", "b"):
        cache.touch([Key(SLAB, name)])
    assert cache.bytes == 5 * (1_000 + ROW_BYTES)

    cache.evict(6_000, lambda key: due[key.name])
    assert len(cache) == 5
    cache.evict(5_999, lambda key: due[key.name])
    assert sorted(key.name for key in cache) == ["b", "later", "soon"]
    cache.evict(1_600, lambda key: due[key.name])
    assert [key.name for key in cache] == ["soon"]
    cache[Key(SLAB, "soon")] = row(10)
    assert cache.bytes == 10 + ROW_BYTES
    cache.drop(Key(SLAB, "soon"))
    cache.drop(Key(SLAB, "soon"))
    assert (cache.bytes, len(cache)) == (0, 0)


def test_a_large_state_is_kept_as_long_as_the_timers_of_its_slab_are_near() -> None:
    store = StateStore(NAMES, "c")
    near, far = Slab(0, due=10), Slab(2**15, due=1_000)
    interval = Interval(2**16, slabs=(near, far))
    timer = {"t": SetTimer(10, False, 10, False)}
    for slab in (near, far):
        body = SlabBody({"k": KeyState("{}", timer)})
        store.rows[NAMES.slab("c", slab.lo)] = StoredRow(body, 1)
    for slot in (1, 2**15 + 1):
        store.rows[Key(LARGE, f"p:c:{slot:04x}:a:b")] = row(9_000)
    store.evict(interval, 13_000)
    slots = {int(key.name.split(":")[2], 16) for key in store.rows}
    assert slots == {0, 1}


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_worker_that_comes_back_reads_no_state_again_unless_another_was_there(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: what it remembers is good as long as the interval has the version that it left."""
    read: list[Key] = []
    real = Engine._read

    def counted(engine: Engine, call: Read) -> Any:
        read.extend(key for key in call.keys if key.kind == SLAB)
        return real(engine, call)

    monkeypatch.setattr(Engine, "_read", counted)
    world = stream_world(services, KEEPER)

    def note(number: int) -> int:
        read.clear()
        with world.context():
            record = PushedRecord(str(number), {"key": "a", "text": str(number)}, 1)
            KEEPER.push(world.clients, "notes", [record])
        world.settle()
        with world.context():
            assert KEEPER.state(world.clients, "keeper", "a") == {"text": str(number)}
        return len(read) - 1  # But that of `state`.

    assert [note(n) for n in range(3)] == [1, 0, 0]
    with world.context():
        KEEPER.split(world.clients, "keeper", 2**15)
        KEEPER.merge(world.clients, "keeper", 2**15)
    assert note(4) == 1
    assert note(5) == 0
