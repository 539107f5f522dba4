"""Reads of a pipeline while its workers write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

from rollforward.runtime import Clients
from rollforward.runtime.process.process_state import ProcessState
from rollforward.streams import Computation, Context, Pipeline, Record
from rollforward.streams.inspection import status
from rollforward.streams.inspection.dead_letters import DeadLetter, dead_letters
from rollforward.streams.inspection.queryable_state import state, states, states_of
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.scaling.load_meter import STALE_MS
from rollforward.streams.scaling.resharding import merge, split, split_by_keys
from rollforward.streams.storage import state_store
from rollforward.streams.storage.remote_calls import Read, StoredRow
from rollforward.streams.storage.schema import HEAD, INTERVAL, LARGE, SLAB, DeadRow, Load, Names
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.test_failures import key_of

KEYS = [f"k{number}" for number in range(12)]


class Kept(Computation):
    """Keeps its latest record."""

    inputs: ClassVar = {"in": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state["text"] = record.value["text"]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk with twelve keys in one slab, one of them large."""
    monkeypatch.setattr(state_store, "MAX_SMALL_BYTES", 100)
    desk = Desk(Pipeline("kept", Kept, intervals=1))
    keep(desk, KEYS[1:], "small")
    keep(desk, KEYS[:1], "large" * 40)
    assert (len(desk.rows(SLAB)), len(desk.rows(LARGE))) == (1, 1)
    return desk


def keep(desk: Desk, keys: list[str], text: str) -> None:
    number = desk.simulation.store.version
    desk.push(*(Came(f"{number} {key}", key, 1) for key in keys), watermark=1, text=text)
    desk.run()


@pytest.mark.parametrize("key", KEYS)
def test_a_state_is_read_although_its_slab_is_cut_meanwhile(
    desk: Desk, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key may have moved into the new slab."""
    steps = state(desk.environment, "kept", key)
    slab = desk.until(steps, Read, of=3)
    cut(desk, monkeypatch)

    assert desk.finish(steps, slab) == {"text": "large" * 40 if key == KEYS[0] else "small"}


def test_what_is_no_key_and_no_id_is_refused_as_that() -> None:
    """A number has no state: records under it are those of no key."""
    pipeline, clients = (
        Pipeline("kept", Kept),
        cast(Clients, SimpleNamespace(process_state=ProcessState())),
    )
    letter = DeadLetter("kept:1", "kept", "k", "bad", 0)
    for ask in (
        lambda: pipeline.state(clients, "kept", cast(str, 5)),
        lambda: pipeline.states_of(clients, "kept", ["5", cast(str, 5)]),
        lambda: pipeline.replay(clients, cast(str, letter)),
        lambda: pipeline.discard(clients, cast(str, letter)),
    ):
        with pytest.raises(BadRecordError, match=r"must be a text, got (5|DeadLetter)"):
            ask()
    for ask in (
        lambda: pipeline.states_of(clients, "kept", "abc"),
        lambda: pipeline.split_by_keys(clients, "kept", "abc"),
        lambda: pipeline.split_by_keys(clients, "kept", [cast(str, 5)]),
    ):
        with pytest.raises(BadRecordError, match=r"key.* must be .*text"):
            ask()


def test_all_states_are_read_although_a_slab_is_cut_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is missing, and none comes twice."""
    steps = states(desk.environment, "kept", 0)
    slab = desk.until(steps, Read, of=3)
    cut(desk, monkeypatch)
    slab_states, slot = desk.finish(steps, slab)
    keys = [*slab_states]
    while slot < SLOTS:
        slab_states, slot = desk.do(states(desk.environment, "kept", slot))
        keys += slab_states

    assert sorted(keys) == sorted([*KEYS, "more"])


@pytest.mark.parametrize("read", [2, 3], ids=["intervals", "slabs"])
def test_states_of_some_keys_are_read_although_all_is_cut_meanwhile(
    desk: Desk, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slab and the interval of a key may have changed; a key without a state is left out."""
    steps = states_of(desk.environment, "kept", [*KEYS, "nobody"])
    waits = desk.until(steps, Read, of=read)
    cut(desk, monkeypatch)
    desk.do(split(desk.environment, "kept", slot_of(KEYS[5])))
    desk.run()

    by_key = desk.finish(steps, waits)
    assert by_key == {key: {"text": "large" * 40 if key == KEYS[0] else "small"} for key in KEYS}


def test_states_are_found_by_what_was_read_before_all_was_cut_and_put_together(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rows that do not fit the snapshot are read again; a head that fits is not."""
    large = {key: {"text": "large" * 40 if key == KEYS[0] else "small"} for key in KEYS}
    snapshot, slot = desk.status().snapshot, slot_of(KEYS[5])
    assert snapshot is not None
    cut(desk, monkeypatch)
    desk.do(split(desk.environment, "kept", slot))
    desk.run()
    halves = desk.status().snapshot
    assert desk.do(states_of(desk.environment, "kept", [*KEYS, "nobody"], snapshot)) == large
    desk.do(merge(desk.environment, "kept", slot))
    desk.run()
    assert desk.do(states_of(desk.environment, "kept", [*KEYS, "nobody"], halves)) == large

    steps = states_of(desk.environment, "kept", KEYS[5:6], desk.status().snapshot)
    assert [key.kind for key in next(steps).keys] == [SLAB]


def test_of_an_interval_each_half_gets_half_of_the_keys(desk: Desk) -> None:
    """Until each of them has one of its own; what was split is read as before."""
    keys, expected = KEYS[:4], desk.do(states_of(desk.environment, "kept", KEYS))
    slots = [desk.do(split_by_keys(desk.environment, "kept", keys)) for _ in range(4)]

    assert slots[:1] == sorted(slot_of(key) for key in keys)[2:3]
    assert sorted(slots[:3]) == sorted(slot_of(key) for key in keys)[1:]
    assert slots[3] is None
    assert len(desk.rows(INTERVAL)) == 4
    assert desk.do(states_of(desk.environment, "kept", KEYS)) == expected


def test_what_waits_is_counted_up_to_so_many_chunks_of_each_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One query counts a small backlog; a large one of one interval hides no other."""
    desk = Desk(Pipeline("kept", Kept, intervals=2))
    for key in KEYS:
        desk.push(Came(key, key, 1), watermark=1, text="small")
    assert desk.status().computations["kept"].waiting == len(KEYS)
    monkeypatch.setattr(status, "MAX_BACKLOG", 2)

    assert desk.status().computations["kept"].waiting == 2 * 2


def test_before_anything_came_there_is_no_state_and_nothing_to_halve() -> None:
    desk = Desk(Pipeline("kept", Kept, intervals=1))

    assert desk.do(states_of(desk.environment, "kept", KEYS)) == {}
    assert desk.do(split_by_keys(desk.environment, "kept", KEYS)) is None
    assert desk.rows(HEAD) == []


def test_a_large_state_that_becomes_small_while_it_is_read_is_there(desk: Desk) -> None:
    """Its slab was read before, its own row was to be read after that."""
    for steps, expected in (
        (state(desk.environment, "kept", KEYS[0]), {"text": "small"}),
        (states(desk.environment, "kept", 0), ({key: {"text": "small"} for key in KEYS}, SLOTS)),
    ):
        keep(desk, KEYS[:1], "large" * 40)
        large = desk.until(steps, Read, of=4)
        keep(desk, KEYS[:1], "small")
        assert desk.finish(steps, large) == expected


def cut(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the slab."""
    monkeypatch.setattr(state_store, "MAX_SLAB_BYTES", 200)
    keep(desk, ["more"], "small")
    assert len(desk.rows(SLAB)) > 1


def test_what_was_measured_long_ago_is_shown_no_more(desk: Desk) -> None:
    """A worker that has gone says nothing of how busy it is."""
    rows, name = desk.simulation.store.rows, desk.environment.names.interval("kept", 0)
    load = Load(desk.environment.now_ms(), records_s=9, busy=0.5)
    rows[name] = rows[name]._replace(body=rows[name].body._replace(load=load))

    def shown() -> float:
        [interval] = desk.status().computations["kept"].intervals
        return interval.busy

    desk.wait(STALE_MS / 1000 - 1)
    shown_before = shown()
    desk.wait(2)

    assert (shown_before, shown()) == (0.5, 0)


def test_dead_letters_of_a_pipeline_of_a_longer_name_are_not_its_own(desk: Desk) -> None:
    """Two pipelines of one app may have names that begin alike."""
    for pipeline in ("kep", "kept", "kept2"):
        key = Names(pipeline).dead("kept", "id")
        desk.simulation.store.rows[key] = StoredRow(DeadRow("kept", "k", pipeline, 0), 1)

    [letter] = desk.do(dead_letters(desk.environment, 10))

    assert (letter.id, letter.error) == ("kept:id", "kept")
