"""Intervals that are split and merged on the services, by hand and by their load."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, Record, StreamTest
from rollforward.streams.coordinator import tick
from rollforward.streams.entities import StreamHead, StreamInterval
from rollforward.streams.model.errors import BadLayoutError
from rollforward.streams.model.limits import Limits
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.operators.aggregates import top
from rollforward.streams.operators.hot_keys import fan_out
from rollforward.streams.operators.windows import Session, Sliding, Tumbling, Windowed
from rollforward.streams.scaling import load_meter
from rollforward.streams.scaling.autosplit import split_if_full
from rollforward.streams.scaling.load_meter import LoadMeter, median_slot, merge_candidate
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage import dedup, state_store
from rollforward.streams.storage.schema import IDS, Head, Load
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import PACE, WEBLOG, hits, is_drained, stream_world, windows
from tests.rollforward.streams.simulator.driver import Came, Desk

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
PATHS = [f"/{n}" for n in range(12)]
MIDDLE = 2**15


def push_all(world: World, pipeline: Pipeline, name: str, minute: int) -> None:
    requests = [(f"{name} {path}", path, minute * 60_000 + 1) for path in PATHS]
    with world.context():
        pipeline.push(world.clients, "requests", hits(*requests))


def first_slots(world: World, pipeline: Pipeline = WEBLOG) -> list[int]:
    with world.context():
        status = pipeline.status(world.clients).computations["hits"]
    return [interval.first_slot for interval in status.intervals]


@one_emulator
def test_the_results_are_those_of_one_interval_whatever_is_split_or_merged(
    services: Services,
) -> None:
    """G10: each record counts once; all successors of an interval know the ids it accepted."""
    world = stream_world(services)
    clients = world.clients
    push_all(world, WEBLOG, "a", 0)
    world.settle()
    with world.context():
        for slot in (MIDDLE, 2**14, slot_of(PATHS[0])):
            WEBLOG.split(clients, "hits", slot)
    push_all(world, WEBLOG, "b", 0)
    assert len(first_slots(world)) == 4
    with world.context():
        WEBLOG.merge(clients, "hits", MIDDLE)
        for slot in (0, MIDDLE):
            with pytest.raises(BadLayoutError):
                WEBLOG.merge(clients, "hits", slot)
        with pytest.raises(BadLayoutError):
            WEBLOG.split(clients, "hits", 2**14)
    world.settle()
    push_all(world, WEBLOG, "a", 0)
    with world.context():
        WEBLOG.close(clients, "requests")
    world.settle()

    assert windows(world) == {"0": [[path, 2] for path in sorted(PATHS)]}
    with world.context():
        assert is_drained()
        status = WEBLOG.status(clients).computations["hits"]
        assert (status.records, status.repeated) == (24, 12)
        assert dict(WEBLOG.states(clients, "hits")).keys() <= {*PATHS}
        assert StreamHead.query().get().body["retired"] == {}


@one_emulator
def test_an_interval_that_has_too_much_to_do_is_split_and_merged_when_it_has_little(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: its worker was busy for a whole period, and had more waiting each time."""
    monkeypatch.setattr(load_meter, "PERIOD_MS", 0)
    monkeypatch.setattr(load_meter, "SPLIT_BUSY", 0.0)
    monkeypatch.setattr(load_meter, "MERGE_BUSY", 0.0)
    growing = Pipeline(
        "growing", *WEBLOG.computations.values(), intervals=1, limits=Limits(intervals=3)
    )
    world = stream_world(services, growing)
    small = replace(PACE, max_records=4)
    monkeypatch.setattr("rollforward.streams.driver.StreamConfig", lambda: small)
    world.clients.process_state.clear()
    push_all(world, growing, "a", 0)
    world.settle()
    assert len(first_slots(world, growing)) == 3

    monkeypatch.setattr(load_meter, "MERGE_BUSY", 0.3)
    with world.context():
        growing.close(world.clients, "requests")
    world.settle()
    for _ in range(2):  # What was just measured says that it was busy.
        world.clock.sleep(load_meter.STALE_MS / 1000 + 1)
        world.sweep()
        world.settle()
    assert len(first_slots(world, growing)) == 1
    assert windows(world, growing) == {"0": [[path, 1] for path in sorted(PATHS)]}
    with world.context():
        assert len(StreamInterval.query().fetch(keys_only=True)) == 2


@pytest.mark.parametrize(("count", "is_tried"), [(2, True), (3, False), (4, False)])
def test_a_computation_is_split_into_as_many_intervals_as_its_limit_says(
    count: int, is_tried: bool
) -> None:
    """G10: at its limit a busy interval stays whole."""
    pipeline = Pipeline(
        "growing", *WEBLOG.computations.values(), intervals=1, limits=Limits(intervals=3)
    )
    meter = LoadMeter(lambda: 0.0)
    meter.split_slot = 7
    head = Head(intervals={"hits": tuple(range(0, 100 * count, 100))})
    steps = split_if_full(Desk(pipeline).environment, head, "hits", meter)

    if is_tried:
        next(steps)
    else:
        with pytest.raises(StopIteration) as end:
            next(steps)
        assert end.value.value is False


def test_a_split_halves_the_records() -> None:
    counts = Counter({f"k{n}": 1 + n for n in range(20)})
    slot = median_slot(counts)
    assert slot is not None
    below = sum(count for key, count in counts.items() if slot_of(key) < slot)
    assert abs(below - counts.total() / 2) <= 20
    assert median_slot({"one": 9}) is None
    assert median_slot({}) is None


def test_two_idle_neighbours_are_merged_and_a_busy_one_with_nobody() -> None:
    now_ms = 10 * load_meter.STALE_MS
    idle, busy, stale = Load(now_ms, busy=0.1), Load(now_ms, busy=0.5), Load(1, busy=1.0)
    los = [0, 100, 200, 300]
    assert (
        merge_candidate(los, dict(zip(los, [busy, idle, idle, busy], strict=True)), now_ms) == 200
    )
    assert (
        merge_candidate(los, dict(zip(los, [busy, idle, busy, idle], strict=True)), now_ms) is None
    )
    assert merge_candidate(los, {0: stale, 100: stale}, now_ms) == 100
    assert (
        merge_candidate(los, {0: idle, 200: idle}, now_ms) is None
    )  # Somebody works between them.
    assert load_meter.halved(Load(1, busy=0.8), now_ms).busy == 0.4
    half = load_meter.halved(Load(1, busy=0), now_ms)
    assert merge_candidate(los, {0: half, 100: half}, now_ms + load_meter.STALE_MS - 1) is None
    assert merge_candidate(los, {0: half, 100: half}, now_ms + load_meter.STALE_MS) == 100


class Counted(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("n").add(1)


def test_no_computation_is_merged_into_fewer_intervals_than_it_was_declared_with() -> None:
    """G10: however little it has to do."""
    desk = Desk(Pipeline("p", Counted, intervals=2, limits=Limits(intervals=8)))
    for label in "ab":
        desk.push(Came(label, "k", 1))
        desk.run()
        desk.wait(2 * load_meter.STALE_MS / 1000)

    assert len(desk.head.intervals["counted"]) == 2


@pytest.mark.parametrize(
    "period_ms", [load_meter.PERIOD_MS, 0], ids=["short runs", "measured runs"]
)
def test_what_was_split_is_not_merged_within_a_minute(
    period_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: not even if its workers are idle, so that bursts do not split and merge by turns."""
    monkeypatch.setattr(load_meter, "PERIOD_MS", period_ms)
    pipeline = Pipeline("p", Counted, intervals=1, limits=Limits(intervals=3))
    desk = Desk(pipeline)
    desk.simulation.sweeps = False
    _push(desk, "a")
    desk.do(split(desk.environment, "counted", SLOTS // 2))

    for n in range(5):
        _push(desk, f"b{n}")
        desk.wait(10)
        _push(desk, f"c{n}")
    assert len(desk.head.intervals["counted"]) == 2

    desk.wait(load_meter.STALE_MS / 1000)
    desk.do(tick(desk.environment))
    assert len(desk.head.intervals["counted"]) == 1


def _push(desk: Desk, label: str) -> None:
    """Push a record to each interval, and run all workers."""
    records = [Came(f"{label}.{n}", f"k{n}", 1) for n in range(8)]
    desk.push(*records)
    desk.run()


def test_a_run_that_has_measured_nothing_leaves_what_the_one_before_it_has() -> None:
    """G10: what the status shows, and a merge goes by, is of the last whole period."""
    meter, stored = LoadMeter(lambda: 0.0), Load(5, busy=0.7, split_ms=3)
    assert meter.load_after(stored) == stored

    meter.load = Load(9, busy=0.1)
    assert meter.load_after(stored) == Load(9, busy=0.1, split_ms=3)


def test_a_worker_measures_itself_period_by_period() -> None:
    """Records and commits, how busy it was, and the key that has half of its records."""
    clock_ms = [0.0]
    meter = LoadMeter(lambda: clock_ms[0])
    for _ in range(10):
        clock_ms[0] += 100
        meter.round(90, 5, ["hot", "hot", "a"], behind=True)
    assert meter.end_period(7)
    load_ = Load(7, records_s=30, busy=0.9, commit_ms=5, hot_key="hot", hot_share=0.667)
    assert meter.load == load_
    assert meter.split_slot == max(slot_of("hot"), slot_of("a"))

    clock_ms[0] += 999
    assert not meter.end_period(8)
    clock_ms[0] += 1
    meter.round(900, 5, ["a", "b", "c"], behind=False)
    assert meter.end_period(9)
    assert meter.split_slot is None  # It has caught up.
    assert meter.load.hot_key == ""


def test_a_worker_measures_its_commit_as_a_part_of_its_bundle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the status shows it, in milliseconds."""
    measured: list[tuple[float, float]] = []

    def note(meter: LoadMeter, busy_ms: float, commit_ms: float, *_: Any, **__: Any) -> None:
        measured.append((busy_ms, commit_ms))

    monkeypatch.setattr(LoadMeter, "round", note)
    desk = Desk(Pipeline("p", Counted, intervals=1))
    desk.wait(60)
    desk.push(Came("1", "k", 1))
    desk.run()

    assert measured
    assert all(0 <= commit_ms <= busy_ms < 60_000 for busy_ms, commit_ms in measured)


def test_windows_in_two_phases_have_the_results_of_one() -> None:
    def path(request: dict[str, Any]) -> str:
        return str(request["path"])

    def of() -> Any:
        return top(2, of=lambda request: str(request["n"] % 3))

    minute = Tumbling(timedelta(minutes=1))
    one = Windowed("one", minute, inputs={"requests": path}, output="hits", combine=of())
    two = fan_out("two", minute, inputs={"requests": path}, output="hits", combine=of(), parts=4)
    outputs = []
    for pipeline in (Pipeline("one", one), Pipeline("two", *two)):
        test = StreamTest(pipeline)
        for n in range(60):
            test.push(
                "requests", {"path": "hot" if n % 5 else "cold", "n": n}, timestamp_ms=n * 2_000
            )
        test.close()
        results = [output.value for output in test.read("hits")]
        outputs.append(sorted(results, key=lambda result: (result["key"], result["start"])))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 4
    with pytest.raises(TypeError):
        fan_out("none", Session(timedelta(1)), inputs={"requests": path}, output="hits")


@pytest.mark.parametrize("seed", range(20))
def test_windows_in_two_phases_have_the_late_records_of_one(seed: int) -> None:
    """G7: whatever the order, what comes before its window's end counts, alone in a part or not."""
    chance, second = random.Random(seed), timedelta(seconds=1)
    spans = chance.choice([Tumbling(10 * second), Sliding(20 * second, 10 * second)])
    inputs = {"in": lambda value: value["k"]}
    kinds: list[Any] = [
        [Windowed("one", spans, inputs=inputs, output="out")],
        fan_out("two", spans, inputs=inputs, output="out", parts=4),
    ]
    tests = [StreamTest(Pipeline("judged", *kind)) for kind in kinds]
    watermark = 0
    for n in range(40):
        watermark += chance.choice([0, 0, 1_000, 15_000])
        at, key = max(0, watermark + chance.randrange(-25_000, 5_000)), chance.choice("ab")
        for test in tests:
            test.advance_watermark(watermark)
            test.push("in", {"k": key, "n": n}, at)
    for test in tests:
        test.close()
    one, two = (sorted(str(output.value) for output in test.read("out")) for test in tests)

    assert one == two
    assert [test.late.total() > 0 for test in tests] == [True, True]
    assert tests[0].late["one"] == tests[1].late["two-parts"] == tests[1].late.total()


@pytest.mark.parametrize("key", [None, "", 5])
def test_a_record_without_a_key_has_none_in_parts_either(key: Any) -> None:
    """A record whose key is no text is a dead letter, not a result of the key "None"."""
    parts = fan_out(
        "two", Tumbling(timedelta(minutes=1)), inputs={"in": lambda _: key}, output="out"
    )
    test = StreamTest(Pipeline("two", *parts))
    test.push("in", {"n": 1}, timestamp_ms=1_000)
    test.close()

    assert test.read("out") == []
    [(_, failure)] = test.dead
    assert failure.error == (f"no key: BadRecordError: a key must be a non-empty text, got {key!r}")


class Tuples:
    """A codec whose values are not JSON."""

    name = "tuples"

    def encode(self, value: Any) -> bytes:
        return ",".join(map(str, sorted(value))).encode()

    def decode(self, data: bytes) -> Any:
        return frozenset(map(int, data.split(b",")))


def test_values_of_a_codec_are_spread_over_parts() -> None:
    """A hot key is spread by its values, also if a codec decodes them to what is not JSON."""
    parts = fan_out(
        "two", Tumbling(timedelta(minutes=1)), inputs={"in": lambda _: "k"}, output="out"
    )
    test = StreamTest(Pipeline("two", *parts, codecs={"in": Tuples()}))
    for n in range(20):
        test.push("in", frozenset({n}), timestamp_ms=n)
    assert len(test.keys("two-parts")) > 1
    test.close()

    assert test.dead == []
    assert [output.value["value"] for output in test.read("out")] == [20]


def test_a_merge_keeps_as_many_ids_as_one_interval_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G6: the youngest; no row of the others stays behind, and the time that is left is said."""
    monkeypatch.setattr(dedup, "MAX_PART", 2)
    monkeypatch.setattr(dedup, "MAX_PARTS", 3)
    desk = Desk(Pipeline("p", Counted, intervals=2))
    desk.simulation.sweeps = False
    for label in "abc":
        _push(desk, label)
        desk.wait(60)

    desk.do(merge(desk.environment, "counted", MIDDLE))
    id_parts = desk.interval("counted").ids
    assert len(id_parts) == len(desk.rows(IDS)) == 3
    assert min(part.last_s for part in id_parts) > desk.simulation.now_ms // 1000 - 100
    assert desk.status().computations["counted"].known_for_ms < 100_000

    _push(desk, "c")  # The youngest.
    assert desk.status().computations["counted"].repeated >= 4


@pytest.mark.parametrize("limits", [None, Limits(intervals=8)], ids=["by hand", "by load"])
def test_an_interval_is_split_before_its_row_has_no_room_for_its_slabs(
    limits: Limits | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8, G10: also where autosplit is off; and no merge makes one as large."""
    monkeypatch.setattr(state_store, "MAX_SLAB_BYTES", 150)
    monkeypatch.setattr(state_store, "MOST_SLABS", 6)
    desk = Desk(Pipeline("p", Counted, intervals=1, limits=limits))
    keys = [f"k{n}" for n in range(60)]
    for label in "abcd":  # One split follows each batch.
        desk.push(*(Came(f"{label} {key}", key, 1) for key in keys))
        desk.run()

    environment, rows = desk.environment, desk.simulation.store.rows
    los = desk.head.intervals["counted"]
    slabs = [len(rows[environment.names.interval("counted", lo)].body.slabs) for lo in los]
    assert len(los) > 3
    assert max(slabs) <= 6
    assert all(desk.state("counted", key) == {"n": 4} for key in keys)

    desk.wait(load_meter.STALE_MS / 1000 + 1)
    desk.run()
    los = desk.head.intervals["counted"]
    assert len(los) > 3
    with pytest.raises(BadLayoutError, match="more slabs than a row has room for"):
        desk.do(merge(environment, "counted", los[1]))


@pytest.mark.parametrize("slot", [5.5, float(MIDDLE), "5", None, True, -1, SLOTS])
@pytest.mark.parametrize("change", [split, merge])
def test_what_is_no_slot_is_refused_as_that(change: Any, slot: Any) -> None:
    desk = Desk(WEBLOG)
    with pytest.raises(BadLayoutError, match="a slot must be a whole number below 65536, got"):
        desk.do(change(desk.environment, "hits", slot))
