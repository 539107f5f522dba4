"""Sizes of bundles: memory and writes are bounded in bytes, for states of any size."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Record, Timer
from rollforward.streams.coordinator import tick
from rollforward.streams.storage import state_store
from rollforward.streams.storage.remote_calls import Commit, Read
from rollforward.streams.storage.schema import CHUNK, DEAD, LARGE, SLAB
from rollforward.streams.workers import worker
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.storage.test_sizes import commits, desk_of, key_of


class Hoards(Computation):
    """Keeps 5 KB for each key, and a timer."""

    inputs: ClassVar = {"in": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state["hoard"] = "x" * 5_000
        ctx.state.counter("n").add(1)
        ctx.set_timer("end", 10_000)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state.counter("fired").add(1)


def reads_between_commits(desk: Desk, kind: str) -> list[int]:
    """Note how many rows of a kind are read before each commit from here on."""
    counts, acts = [0], desk.simulation.acts
    read, commit = acts[Read], acts[Commit]

    def reading(call: Read) -> Any:
        counts[-1] += sum(key.kind == kind for key in call.keys)
        return read(call)

    def committing(call: Commit) -> Any:
        counts.append(0)
        return commit(call)

    acts.update({Read: reading, Commit: committing})
    return counts


def test_a_batch_reads_no_more_of_large_states_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G8: it gets smaller until they fit, and nothing is given up."""
    monkeypatch.setattr(worker, "MAX_LOADED_BYTES", 300_000)
    desk = desk_of(Hoards)
    keys = [f"k{n}" for n in range(400)]
    for attempt in range(2):
        desk.push(*(Came(f"{attempt} {key}", key, 1) for key in keys), watermark=1)
        for machine in desk.simulation.machines:
            machine.caches.clear()
        counts = reads_between_commits(desk, LARGE)
        desk.run()
    assert 50 < max(counts) < 200

    for machine in desk.simulation.machines:
        machine.caches.clear()
    counts = reads_between_commits(desk, LARGE)
    desk.push(watermark=20_000)
    desk.run()

    assert 50 < max(counts) < 200
    assert desk.rows(DEAD) == []
    assert {desk.state("hoards", key)["n"] for key in keys} == {2}
    assert {desk.state("hoards", key)["fired"] for key in keys} == {1}


class Touches(Computation):
    """Keeps 5 KB, of which most records change nothing."""

    inputs: ClassVar = {"in": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        action = record.value["action"]
        if action == "write":
            ctx.state["hoard"] = "x" * 5_000 + record.value["id"]
        elif action == "time":
            ctx.set_timer("end", 10_000)
        else:
            ctx.state.get("hoard")


@pytest.mark.parametrize(
    ("action", "kinds"),
    [("write", {SLAB, LARGE}), ("time", {SLAB}), ("read", set())],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_large_state_is_written_when_it_has_changed(action: str, kinds: set[str]) -> None:
    """G8: not whenever its key has a record; also by a worker without a cache."""
    desk = desk_of(Touches)
    desk.push(Came("1", "a", 1), action="write", id="1", watermark=1)
    desk.run()
    for machine in desk.simulation.machines:
        machine.caches.clear()
    done = commits(desk)

    for n in (2, 3):
        desk.push(Came(str(n), "a", 1), action=action, id=str(n), watermark=1)
        desk.run()

    written = [key.kind for commit in done for key, *_ in (*commit.puts, *commit.inserts)]
    assert {*written} & {SLAB, LARGE} == kinds
    assert desk.state("touches", "a")["hoard"].endswith("3" if action == "write" else "1")
    assert desk.interval("touches").timers == (action == "time")


def test_timers_of_many_slabs_fire_some_slabs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """G8, G4: and no record comes before a timer that was due when it was taken."""
    monkeypatch.setattr(state_store, "MAX_SLAB_BYTES", 150)
    monkeypatch.setattr(worker, "MAX_DUE_SLABS", 3)
    desk = desk_of(Orders)
    keys = [f"k{n}" for n in range(60)]
    desk.push(*(Came(key, key, 1) for key in keys), watermark=1)
    desk.run()
    assert len(desk.interval("orders").slabs) > 20
    for machine in desk.simulation.machines:
        machine.caches.clear()
    counts = reads_between_commits(desk, SLAB)

    desk.push(*(Came(f"2 {key}", key, 20_000) for key in keys), watermark=20_000)
    desk.do(tick(desk.environment))
    desk.do(desk.worker("orders"))

    assert max(counts) == 3
    assert {tuple(desk.state("orders", key)["seen"]) for key in keys} == {(1, "end", 20_000)}


class Orders(Computation):
    """Notes in which order records and timers come."""

    inputs: ClassVar = {"in": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("seen").append(record.timestamp_ms)
        if record.timestamp_ms < 10_000:
            ctx.set_timer("end", 10_000)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state.list("seen").append(timer.tag)


class Floods(Computation):
    """Writes much for some records: very many, or what takes twice its length in a row."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("out",)
    max_attempts = 1

    def record(self, ctx: Context, record: Record) -> None:
        many = record.value["many"]
        for n in range(many):
            ctx.produce("out", n)
        if not many:
            ctx.state["hoard"] = '"' * 220_000
            for _ in range(10):
                ctx.produce("out", '"' * 45_000)


class Sees(Computation):
    inputs: ClassVar = {"out": lambda value: "all"}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


@pytest.mark.parametrize(
    ("many", "seen", "error"),
    [
        (0, 12, None),
        (150_000, 150_002, None),
        (200_000, 2, "one call must write at most 1000000 bytes"),
    ],
)
def test_one_hook_writes_as_much_as_a_commit_takes_or_is_a_dead_letter(
    many: int, seen: int, error: str | None
) -> None:
    """G7, G8: with quotes that are escaped twice; its neighbours continue in each case."""
    desk = desk_of(Floods, Sees)
    for key, size in (("a", 1), ("b", many), ("c", 1)):
        desk.push(Came(key, key, 1), many=size, watermark=1)
    desk.run()

    rows = desk.simulation.store.rows
    dead = [row.body for key, row in rows.items() if key.kind == DEAD]
    assert [letter.key for letter in dead] == (["b"] if error else [])
    assert all(error in letter.error for letter in dead if error)
    assert desk.rows(CHUNK) == []
    assert desk.state("sees", "all")["seen"] == seen
