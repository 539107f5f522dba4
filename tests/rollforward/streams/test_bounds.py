"""Bounds of streams, the gauges that show them, and the cost of these."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.registry import Registry
from rollforward.runtime.channel.rpc import Cost
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    PushedRecord,
    PushSource,
    Record,
    StreamTest,
    Timer,
    driver,
)
from rollforward.streams.gauges import HELP
from rollforward.streams.operators.windows import Session, Windowed
from rollforward.streams.storage import dedup
from rollforward.testing.injection import Crash
from tests.infra.runs import sampling
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import PACE, WEBLOG, hits, is_drained, stream_world

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


class Bomb(Computation):
    """Timers, of which some kill their process as long as the bomb is live."""

    inputs: ClassVar = {"orders": lambda order: order["key"]}
    is_live: ClassVar = True

    def record(self, ctx: Context, record: Record) -> None:
        for tag in record.value["tags"]:
            ctx.set_timer(tag, record.timestamp_ms)

    def timer(self, ctx: Context, timer: Timer) -> None:
        if timer.tag == "kill" and self.is_live:
            raise Crash
        ctx.state.list("fired").append(timer.tag)


BOMB = Pipeline("bomb", Bomb, intervals=1)


@sampling.long
@one_emulator
def test_a_timer_that_kills_its_workers_is_a_dead_letter_and_can_be_replayed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: the other timers of its key, and the other keys, are not affected."""
    monkeypatch.setattr(driver, "StreamConfig", lambda: replace(PACE, lease_ms=1_000))
    world = stream_world(services, BOMB)
    orders = {"a": ["x"], "b": ["e", "kill", "z"], "c": ["y"]}
    records = [
        PushedRecord(key, {"key": key, "tags": tags}, 1_000 + n)
        for n, (key, tags) in enumerate(orders.items())
    ]
    with world.context():
        BOMB.push(world.clients, "orders", records)
        BOMB.close(world.clients, "orders")
    world.settle(rounds=400, patience_s=30, revives=True)
    with world.context():
        assert is_drained()
        assert fired(world) == {"a": ["x"], "b": ["e", "z"], "c": ["y"]}
        [letter] = BOMB.dead_letters(world.clients)
        assert (letter.key, letter.tag, letter.timestamp_ms) == ("b", "kill", 1_001)
        assert "workers died" in letter.error
        monkeypatch.setattr(Bomb, "is_live", False)
        assert BOMB.replay(world.clients, letter.id)
    world.settle()
    with world.context():
        assert fired(world)["b"] == ["e", "z", "kill"]
        assert BOMB.dead_letters(world.clients) == []


def fired(world: World) -> dict[str, list[str]]:
    return {key: state["fired"] for key, state in BOMB.states(world.clients, "bomb")}


@one_emulator
def test_how_long_ids_are_known_is_said_when_there_is_no_room_for_all(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: what is younger than that is known; here there is room for three rows of two ids."""
    monkeypatch.setattr(dedup, "MAX_PART", 2)
    monkeypatch.setattr(dedup, "MAX_PARTS", 3)
    pipeline = Pipeline(
        "crowded", *WEBLOG.computations.values(), intervals=1,
        sources=[PushSource("requests", dedup=timedelta(minutes=10))],
    )  # fmt: skip
    world = stream_world(services, pipeline)

    def push(*names: int) -> tuple[int, int | None]:
        with world.context():
            pipeline.push(world.clients, "requests", hits(*((f"r{n}", "/", 1_000) for n in names)))
        world.settle(patience_s=10)
        with world.context():
            status = pipeline.status(world.clients).computations["hits"]
        return status.repeated, status.known_for_ms

    assert push(0, 1) == (0, 600_000)
    for number in (2, 4, 6):
        world.clock.sleep(60)
        repeated, known_for_ms = push(number, number + 1)
    assert (repeated, known_for_ms) == (0, pytest.approx(120_000, abs=2_000))
    assert missing(world) == pytest.approx(480, abs=2)

    assert push(4, 5)[0] == 2  # A minute old: known.
    assert push(0)[0] == 2  # Three minutes old: taken for a new one.


def missing(world: World) -> float:
    with world.context():
        values = {
            (gauge.labels.get("computation"), gauge.name): gauge.value
            for gauge in world.registry.gauges(world.clients)
        }
    return values["hits", "streams_dedup_missing_seconds"]


@one_emulator
def test_gauges_say_how_a_pipeline_is_at_a_cost_that_does_not_grow_with_what_waits(
    services: Services,
) -> None:
    world = stream_world(services)
    registry = Registry(WEBLOG)

    def looked() -> tuple[dict[tuple[str, str], float], Cost]:
        with world.context():
            spent = world.clients.meter.cost()
            gauges = list(registry.gauges(world.clients))
            cost = world.clients.meter.cost() - spent
        values = {
            (gauge.labels["computation"], gauge.name): gauge.value
            for gauge in gauges
            if gauge.name in HELP
        }
        return values, cost

    assert looked()[0] == {}  # It has never run.
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("a", "/", 1_000), ("b", "/x", 61_000)))
    baseline, cost = looked()
    with world.context():
        for n in range(20):
            WEBLOG.push(world.clients, "requests", hits((f"c{n}", "/", 61_000)))
    waiting, same = looked()
    assert same == cost
    assert (
        baseline["hits", "streams_waiting_chunks"],
        waiting["hits", "streams_waiting_chunks"],
    ) == (
        1,
        21,
    )
    assert waiting["hits", "streams_watermark_lag_seconds"] == 61

    world.settle()
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("p", "/", 61_000), poison=1))
        WEBLOG.push(world.clients, "requests", hits(("m", "/", 125_000)))
    world.settle()
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("l", "/", 100)))
    world.settle()
    values = looked()[0]
    assert values["hits", "streams_waiting_chunks"] == 0
    assert values["hits", "streams_watermark_lag_seconds"] == 2
    assert values["hits", "streams_dead_letters"] == 1
    assert values["hits", "streams_late_records"] == 1
    assert values["hits", "streams_waiting_timers"] == 1
    assert values["hits", "streams_owned_intervals"] == 0


VISITS = Pipeline(
    "visits-of-many",
    Windowed(
        "visits", Session(timedelta(minutes=30)),
        inputs={"requests": lambda value: value}, output="sessions",
    ),
)  # fmt: skip


def test_a_record_costs_a_stream_test_no_more_when_there_are_many_live_keys() -> None:
    """In calls of functions: 2,000 keys with open windows, or 100."""
    assert calls_of_a_record(2_000) <= 1.2 * calls_of_a_record(100)


def calls_of_a_record(keys: int) -> float:
    """Return how many calls one of 100 records leads to, while each key has an open window."""
    test = StreamTest(VISITS)
    for n in range(keys):
        test.push("requests", f"k{n}", timestamp_ms=1_000)
    counted = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for n in range(100):
            test.push("requests", f"k{n}", timestamp_ms=2_000 + n)
            test.advance_watermark(2_000 + n)
    finally:
        sys.setprofile(None)
    test.close()
    assert len(test.read("sessions")) == keys
    return counted / 100
