"""Ticks that read the rows that may have changed, and the notes of senders that they follow."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange import sent
from rollforward.streams.exchange.sent import sent_since, with_sent
from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.layout import interval_of
from rollforward.streams.storage.remote_calls import Commit, Key, Read, ScanKeysMany, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    INTERVAL,
    SOURCE,
    Interval,
    Sent,
    Slab,
    SourceRow,
)
from rollforward.streams.storage.serde import dump, load
from rollforward.streams.watermarks import cut_reader
from tests.infra.world import Services
from tests.rollforward.streams.harness import REQUESTS, Hits, Minutes, hits, stream_world, windows
from tests.rollforward.streams.simulator.driver import Came, Desk

INTERVALS = 40
WINDOW = 10


class Windows(Computation):
    inputs: ClassVar = {"in": lambda value: str(value["k"])}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.set_timer("end", record.timestamp_ms + WINDOW)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("out", {"k": ctx.key})


class Ends(Computation):
    inputs: ClassVar = {"out": lambda value: str(value["k"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


def desk_of(intervals: int = INTERVALS) -> Desk:
    """Return a pipeline of many intervals that has run once."""
    desk = Desk(Pipeline("many", Windows, Ends, sources=[PushSource("in")], intervals=intervals))
    desk.push(Came("first", "k", 1), watermark=100)
    desk.run()
    desk.do(tick(desk.environment))
    return desk


class Seen:
    """Names of the rows of intervals that were read, and of the inboxes that were scanned."""

    def __init__(self, desk: Desk) -> None:
        self.intervals: list[str] = []
        self.inboxes: list[str] = []
        acts = desk.simulation.acts
        read, scan = acts[Read], acts[ScanKeysMany]

        def noted_read(call: Read) -> Any:
            self.intervals += [key.name for key in call.keys if key.kind == INTERVAL]
            return read(call)

        def noted_scan(call: ScanKeysMany) -> Any:
            self.inboxes += [each.low.rsplit(":", 2)[0] for each in call.scans]
            return scan(call)

        acts[Read], acts[ScanKeysMany] = noted_read, noted_scan


@pytest.fixture(autouse=True)
def no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no interval be read because it is its turn."""
    monkeypatch.setattr("rollforward.streams.watermarks.following._due_intervals", lambda view: [])


def place_of_key(desk: Desk, computation: str, key: str) -> str:
    return f"many:{computation}:{interval_of(desk.head, computation, slot_of(key)):04x}"


def test_a_tick_reads_the_intervals_that_got_records_and_no_others() -> None:
    """G3: the window's end is followed from its source to the last stage."""
    desk = desk_of()
    seen = Seen(desk)
    desk.do(tick(desk.environment))
    assert seen.intervals == seen.inboxes == []

    desk.push(Came("a", "a", 200), watermark=210)
    seen.intervals.clear()
    desk.do(tick(desk.environment))
    assert {*seen.intervals} == {*seen.inboxes} == {place_of_key(desk, "windows", "a")}
    assert desk.head.inputs["windows"] == 200

    desk.run()
    desk.do(tick(desk.environment))
    assert desk.head.inputs == {"windows": 210, "ends": 210}
    assert desk.state("ends", "a") == {"seen": 1}
    seen.intervals.clear()
    seen.inboxes.clear()
    desk.do(tick(desk.environment))
    assert seen.intervals == seen.inboxes == []


def test_a_pipeline_begun_anew_is_not_followed_from_the_one_before() -> None:
    """G3: the rows of the one whose rows were deleted say nothing of those of the next."""
    desk = desk_of()
    desk.simulation.store.rows.clear()
    desk.wait(10)
    for key in "abb":  # More often than before, so that the notes seem to follow the others.
        desk.push(Came(f"in {key}", key, 300), watermark=310)
    desk.do(tick(desk.environment))
    assert desk.head.inputs["windows"] == 300


def test_each_process_follows_from_its_own_last_tick() -> None:
    """G3: the notes of senders say what was sent since, however many ticks of others there were."""
    desk = desk_of()
    other = desk.simulation.environment(desk.simulation.machines[1])
    desk.do(tick(other))
    for number in range(5):
        desk.push(Came(f"r{number}", f"key-{number}", 300 + number), watermark=300)
        desk.do(tick(desk.environment))
    seen = Seen(desk)
    desk.do(tick(other))
    truth = {place_of_key(desk, "windows", f"key-{number}") for number in range(5)}
    assert {*seen.intervals} == {*seen.inboxes} == truth


def test_an_interval_is_read_until_its_worker_has_left() -> None:
    """G10: a timer that becomes due wakes it by the generation that it has then."""
    desk = desk_of()
    desk.push(Came("a", "k", 200), watermark=200)
    lo = interval_of(desk.head, "windows", slot_of("k"))
    steps = desk.simulation.worker(desk.environment, "windows", lo).run()
    call = desk.until(steps, Commit, of=3)  # Acquired, processed; it is about to leave.
    desk.do(tick(desk.environment))
    seen = Seen(desk)
    desk.do(tick(desk.environment))
    assert f"many:windows:{lo:04x}" in seen.intervals
    desk.finish(steps, call)

    desk.push(watermark=300)
    desk.do(tick(desk.environment))
    row = desk.simulation.store.rows[desk.environment.names.interval("windows", lo)].body
    assert not row.owner
    names = [wake.name for _, wake in desk.simulation.wakes]
    assert ("many", "windows", lo, row.gen) in names


def test_a_restored_row_is_read_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: no commit of a sender leads to it."""
    monkeypatch.undo()
    desk = desk_of()
    key = desk.environment.names.interval("windows", 0)
    row = desk.simulation.store.rows[key]
    held = row.body._replace(slabs=(Slab(0, hold=50, due=500),))
    desk.do(committed(Commit(puts=[(key, held, row.version)])))
    seen = Seen(desk)
    for _ in range(2 * INTERVALS):
        desk.do(tick(desk.environment))
    assert key.name in seen.intervals
    assert len(seen.intervals) <= 2 * 2 * 2 * INTERVALS  # Of two cuts, where nothing is left to do.


def committed(commit: Commit) -> Any:
    yield commit


def test_few_intervals_need_no_notes() -> None:
    """G16: their rows are those of the release before, which may split them."""
    desk = desk_of(intervals=4)
    for kind, name in ((INTERVAL, "many:windows:0000"), (SOURCE, "many:in:")):
        row = desk.simulation.store.rows[Key(kind, name)].body
        assert row.sent is None
        assert b"sent" not in dump(kind, row)


def test_a_note_survives_its_row() -> None:
    note = Sent(3, 2, 1, {"c:0000": 3})
    for kind, row in (
        (INTERVAL, Interval(9, slabs=(Slab(0),), sent=note)),
        (SOURCE, SourceRow(sent=note)),
    ):
        assert load(kind, dump(kind, row)).sent == note


@pytest.mark.parametrize("most", [2, 512])
def test_a_note_names_all_places_or_says_that_it_does_not(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """G3: whatever a row was when it was read last, and whoever has written it since."""
    monkeypatch.setattr(sent, "MAX_PLACES", most)
    desk, chance, known = desk_of(), random.Random(most), 0
    environment, head = desk.environment, desk.head
    few = replace(environment, config=replace(environment.config, follow_from=10**9))
    for _ in range(300):
        row, version = SourceRow(), 1
        reads: list[tuple[StoredRow, set[str]]] = []
        for number in range(12):
            reads.append((StoredRow(row, version), set()))
            places = {f"c:{chance.randrange(4):04x}" for _ in range(chance.randrange(3))}
            inserts = [
                (Key(CHUNK, f"many:{place}:0:{5:015d}:i{number}.1.9"), ()) for place in places
            ]
            after, version = row._replace(seq=row.seq + 1), version + 1
            luck = chance.random()
            if luck < 0.8:  # Else code of an earlier release.
                by = environment if luck < 0.7 else few
                after = with_sent(by, head, row, after, inserts)
            row = after
            for _, since in reads:
                since |= places
            for before, since in reads:
                found = sent_since(before, StoredRow(row, version))
                assert found is None or {*found} == since
                known += found is not None
    assert known > 1_000


one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


@one_emulator
def test_windows_are_exact_where_ticks_follow_records(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: on a service with snapshots."""
    pipeline = Pipeline("minutes", Hits, Minutes, intervals=INTERVALS, sources=[REQUESTS])
    world, followed = stream_world(services, pipeline), list[bool]()
    read_changes = cut_reader.read_changes

    def counted(*args: Any) -> Any:
        changes = yield from read_changes(*args)
        followed.append(changes is not None)
        return changes

    monkeypatch.setattr(cut_reader, "read_changes", counted)
    paths = [f"/{number}" for number in range(30)]
    for minute, part in ((0, 0), (0, 1), (1, 0), (1, 1)):
        records = hits(*[(f"{minute} {part} {path}", path, minute * 60_000) for path in paths])
        with world.context():
            pipeline.push(world.clients, "requests", records)
        world.settle()
    with world.context():
        pipeline.close(world.clients, "requests")
    world.settle()

    two_of_each = [[path, 2] for path in sorted(paths)]
    assert windows(world) == {"0": two_of_each, "60000": two_of_each}
    assert sum(followed) > len(followed) / 2
