"""Recovery of stranded records, which a truncated answer of the store has hidden from workers."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.datastore import bodies
from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.driver import Engine
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.remote_calls import ScanKeysMany
from rollforward.streams.storage.schema import CHUNK, DEAD
from rollforward.streams.sweep import sweep, sweep_pipeline
from tests.infra.runs.sampling import one_emulator
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import WEBLOG, hits, stream_world
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import REFUSED, Schedule
from tests.rollforward.streams.simulator.simulator import FAULTY_STEPS

SCHEDULES = 3_000 if IS_SOAK else 60


class Count(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("late" if ctx.late else "in time").add(1)


ONE = Pipeline("p", Count, intervals=1, sources=[PushSource("in", disorder=timedelta(0))])


def tick_that_sees_no_chunk(desk: Desk) -> None:
    """Move the watermarks while each inbox seems to be empty."""
    look = desk.simulation.acts[ScanKeysMany]
    desk.simulation.acts[ScanKeysMany] = lambda call: [[] for _ in call.scans]
    desk.do(tick(desk.environment))
    desk.simulation.acts[ScanKeysMany] = look


def test_a_record_that_the_watermark_has_passed_comes_back_as_a_late_one() -> None:
    """G3: the second look of the sweep finds it, counts it, and it is worked on."""
    desk = Desk(ONE)
    desk.simulation.sweeps = False
    desk.push(Came("r", "k", 10), watermark=100)
    tick_that_sees_no_chunk(desk)
    desk.push(Came("r2", "k", 200), watermark=200)
    desk.run()
    assert (desk.state("count", "k"), len(desk.rows(CHUNK))) == ({"in time": 1}, 1)

    desk.do(sweep(desk.environment))
    desk.run()

    assert desk.state("count", "k") == {"late": 1, "in time": 1}
    assert desk.rows(CHUNK) == []
    status = desk.status().computations["count"]
    assert (status.recovered, status.records, status.waiting) == (1, 2, 0)


def test_a_record_in_an_inbox_that_was_forgotten_comes_back() -> None:
    """G3: a retired inbox that seemed to be empty is forgotten with its records."""
    desk = Desk(ONE)
    desk.push(Came("r0", "k", 1), watermark=1)
    desk.run()
    desk.simulation.sweeps = False
    desk.push(Came("r", "k", 10), watermark=10)
    desk.do(split(desk.environment, "count", 2**15))
    desk.wait(60)
    for _ in range(5):
        tick_that_sees_no_chunk(desk)
        desk.wait(2)
    desk.run()
    assert (desk.head.retired, len(desk.rows(CHUNK))) == ({}, 1)

    desk.do(sweep(desk.environment))
    desk.run()

    assert desk.state("count", "k") == {"in time": 2}
    assert desk.status().computations["count"].recovered == 1


@one_emulator
def test_the_gauge_and_the_log_say_what_came_back(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G3: on the services, also where a wrong answer has moved a watermark."""
    world = stream_world(services)
    engine = Engine(world.clients, WEBLOG)
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("a", "/", 1_000), ("b", "/", 200_000)))
        with monkeypatch.context() as patch:
            patch.setattr(bodies, "first_names_of", lambda client, ranges: [[] for _ in ranges])
            engine.run(tick(engine.environment))
    world.settle()
    assert "streams_recovered_records" not in gauges_above_0(world)

    with world.context():
        sweep_pipeline(world.clients, WEBLOG)
    world.settle()

    assert gauges_above_0(world)["streams_recovered_records"] == 2
    with world.context():
        status = WEBLOG.status(world.clients).computations["hits"]
    assert (status.records + status.late, status.waiting) == (2, 0)
    assert "were stranded" in caplog.text


def gauges_above_0(world: World) -> dict[str, float]:
    """Return the gauges of the first computation that say something."""
    with world.context():
        gauges = list(world.registry.gauges(world.clients))
    return {
        gauge.name: gauge.value
        for gauge in gauges
        if gauge.labels.get("computation") == "hits" and gauge.value
    }


class Lenient(Judge):
    """Invariants that let watermarks pass pending records, since the store's answers are wrong."""

    def _judge_chunk(self, name: str) -> None: ...

    def _judge_hold(self, computation: str, hold: int) -> None: ...

    def _judge_books(self, *args: Any) -> None: ...


class CutShort(Schedule):
    """Stages over a store that truncates its answers for a while."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.simulation.looks_below = True
        self.judge = Lenient(self.simulation)
        self.cut, chance, store = 0, random.Random(seed), self.simulation.store
        full_answer = store.first_names

        def first_names(*query: Any) -> list[str]:
            names = full_answer(*query)
            if self.simulation.steps > FAULTY_STEPS or chance.random() < 0.7:
                return names
            self.cut += bool(names)
            return names[: chance.randrange(len(names) + 1)]

        store.first_names = first_names  # type: ignore[method-assign]

    def _judge_rest(self) -> None:
        """Check that each record counts once, is late, or is dead."""
        self.judge.judge_drained()
        late = [id_ for _, s in self.judge.states("windows") for id_ in s.get("late", ())]
        states = self.judge.states("collect")
        counted = sum(count for _, state in states for _, count in state.get("got", ()))
        dead = sum(key.kind == DEAD for key in self.simulation.store.rows)
        poison = sum(bool({"poison", REFUSED} & {*record}) for record in self.records)
        assert max(Counter(late).values(), default=1) == 1
        assert (counted + len(late), dead) == (len(self.records) - poison, poison)


def test_no_record_is_lost_where_answers_are_cut_short() -> None:
    """G3: a watermark that passes pending records makes them late; no failure loses one."""
    cut = recovered = 0
    for seed in BUDGET.plays(range(SCHEDULES)):
        schedule = CutShort(seed)
        try:
            schedule.run()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        cut += schedule.cut
        recovered += sum(schedule.judge.head.recovered.values())

    assert cut
    assert recovered
