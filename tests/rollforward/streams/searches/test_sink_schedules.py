"""Sinks in the simulator: each record is delivered once, whatever order and faults a seed draws."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Pipeline, PushSource
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.errors import BadLayoutError
from rollforward.streams.model.limits import Limits
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.model.slots import SLOTS
from rollforward.streams.publications import Publication
from rollforward.streams.scaling.autosplit import split_if_full
from rollforward.streams.scaling.load_meter import LoadMeter
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage.remote_calls import Commit, Pause
from rollforward.streams.storage.schema import CHUNK, DEAD, HEAD, Head
from rollforward.streams.workers.sink_worker import SinkWorker
from rollforward.streams.workers.worker import Worker
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.simulator.schedules import Client, Rekey, found
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 5_000 if IS_SOAK else 100
RECORDS = 8
RESHAPED = 4  # Splits and merges of one schedule.
MAX_SEARCHED = 300


class Picky(Sink):
    """Makes nothing of some records."""

    max_records = 3

    def make(self, record: SinkRecord) -> tuple[str, str]:
        if record.value["id"].endswith("5"):
            raise ValueError("no fives")
        return record.id, record.value["id"]


PIPELINE = Pipeline(
    "sim", Rekey, sources=[PushSource("in")], intervals=2,
    sinks=[Picky("in", name="pushed", key=lambda value: value["k"]), Picky("mid", name="produced")],
)  # fmt: skip


class SinkSchedule:
    """One schedule of the sinks, and what they have delivered."""

    def __init__(self, seed: int) -> None:
        self.simulation = simulation = Simulation(PIPELINE, seed)
        simulation.store.on_commit = self._collect
        self.delivered: dict[str, list[tuple[str, str]]] = {
            sink.name: [] for sink in PIPELINE.sinks
        }
        chance = random.Random(seed)
        records = [{"k": f"k{chance.randrange(4)}", "id": f"r{n}", "at": n} for n in range(RECORDS)]
        simulation.users.append(partial(Client("", records, chance).steps, simulation))

    def _collect(self, commit: Commit, before: Any) -> None:
        if commit.delivery is not None:
            self.delivered[commit.delivery.sink[0]] += commit.delivery.values

    def run(self) -> None:
        """Play it to its end.

        Raises:
            Violation: something was not delivered, or twice.
        """
        self.simulation.run()
        truth = Counter(f"r{n}" for n in range(RECORDS) if n != 5)
        for sink, made in self.delivered.items():
            ids = {id_ for id_, _ in made}
            if Counter(label for _, label in made) != truth or len(ids) != len(made):
                raise Violation(f"{sink} has delivered {made}")
        kinds = Counter(key.kind for key in self.simulation.store.rows)
        if (kinds[CHUNK], kinds[DEAD]) != (0, 2):
            raise Violation(f"{kinds[CHUNK]} chunks are left, {kinds[DEAD]} records are dead")


class Reshaped(SinkSchedule):
    """Somebody splits and merges "pushed" at any time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.luck = random.Random(f"sinks {seed}")
        self.reshaped = 0
        self.simulation.users.append(self._reshape)

    @property
    def head(self) -> Head:
        heads = [row.body for key, row in self.simulation.rows if key.kind == HEAD]
        return heads[0] if heads else Head()

    def _reshape(self) -> Generator[Any, Any, None]:
        simulation = self.simulation
        environment = simulation.environment(simulation.random.choice(simulation.machines))
        while self.reshaped < RESHAPED:
            yield Pause(self.luck.choice((0.001, 0.01, 0.03)))
            los = self.head.intervals.get("pushed", ())[1:]
            with contextlib.suppress(BadLayoutError):
                if los and self.luck.random() < 0.5:
                    yield from merge(environment, "pushed", self.luck.choice(los))
                else:
                    yield from split(environment, "pushed", self.luck.randrange(SLOTS))
            self.reshaped += 1

    def run(self) -> None:
        super().run()
        if self.head.retired:
            raise Violation(f"not forgotten: {self.head.retired}")


def nothing_is_forwarded(schedule: SinkSchedule, patch: pytest.MonkeyPatch) -> None:
    """A sink's worker takes nothing out of inboxes that were left behind."""

    def nothing(worker: Worker) -> Generator[Any, Any, bool]:
        return False
        yield

    patch.setattr(SinkWorker, "forward", nothing)


@pytest.mark.parametrize("kind", [SinkSchedule, Reshaped], ids=lambda kind: kind.__name__)
def test_each_record_is_delivered_once_in_any_schedule(kind: type[SinkSchedule]) -> None:
    """G9, G7: from a source with ids and from a computation; what it cannot make is dead once."""
    crashes = 0
    for seed in BUDGET.plays(range(SCHEDULES)):
        schedule = kind(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"{kind.__name__}({seed}): {violation}") from violation
        crashes += schedule.simulation.counts["crash"]
    assert crashes > BUDGET.counts["played"] / 2


def test_a_sink_that_forwards_nothing_is_noticed() -> None:
    """G9: the schedules see what a merge leaves in an inbox that nobody takes from."""
    assert found(Reshaped, nothing_is_forwarded, range(MAX_SEARCHED)) is not None


class Out(Sink):
    name = "out"


class Counted(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}


def _pipeline(intervals: int, limits: Limits | None = None, *, has_sink: bool = True) -> Pipeline:
    sinks = [Out("in", name="out", key=lambda value: value["k"])] if has_sink else []
    return Pipeline(
        "p", Counted, sources=[PushSource("in")], intervals=intervals, limits=limits, sinks=sinks
    )


def _desk(intervals: int) -> tuple[Desk, list[str]]:
    """Return a desk with a sink that ten records wait for, and the ids of what it delivers."""
    desk, made = Desk(_pipeline(intervals)), list[str]()
    desk.simulation.max_steps = 3_000

    def collect(commit: Commit, before: Any) -> None:
        if commit.delivery is not None:
            made.extend(record.id for record in commit.delivery.values)

    desk.simulation.store.on_commit = collect
    desk.push(*[Came(f"r{n}", f"k{n}", n) for n in range(10)])
    return desk, made


class Weak(Sink):
    """Its records may have acted before they were durable."""

    weak = True
    idempotent = True

    def act(self, clients: Any, record: SinkRecord) -> None: ...


def _by_key(value: Any) -> str:
    return str(value["k"])


FIXED: dict[str, Callable[[], Sink]] = {
    "no `key`": lambda: Out("in", name="out"),
    "weak": lambda: Weak("in", name="out", key=_by_key),
    "declared number": lambda: Publication("in", name="out", key=_by_key, partitions=2),
    "other code": lambda: Out("in", name="out", key=_by_key),
}


@pytest.mark.parametrize("reason", FIXED)
def test_some_sinks_are_neither_split_nor_merged(reason: str) -> None:
    """G9, G10: by hand, by load or by a tick, and the refusal says why."""
    limits, sinks = Limits(intervals=8), [FIXED[reason]()]
    source = PushSource("in")
    pipeline = Pipeline("p", Counted, sources=[source], sinks=sinks, intervals=2, limits=limits)
    desk = Desk(pipeline)
    desk.do(read_head(desk.environment))
    if reason == "other code":
        desk.simulation.machines[0].pipeline = _pipeline(2, limits, has_sink=False)
    meter = LoadMeter(lambda: 0.0)
    meter.split_slot = 7

    for steps in (merge(desk.environment, "out", SLOTS // 2), split(desk.environment, "out", 100)):
        with pytest.raises(BadLayoutError, match=f"out is not split or merged: .*{reason}"):
            desk.do(steps)
    is_tried = [
        next(split_if_full(desk.environment, desk.head, name, meter), None) is not None
        for name in ("out", "counted")
    ]
    assert is_tried == [False, True]


def test_a_deployment_with_fewer_intervals_merges_a_sink_without_a_loss() -> None:
    """G9: also beside a push that has read the head and not committed."""
    desk, made = _desk(4)
    desk.run()
    desk.simulation.pipeline = _pipeline(2, Limits(intervals=8))
    for machine in desk.simulation.machines:
        machine.caches.clear()
    environment = desk.environment
    later = [inbound_record(environment, "in", {"k": f"k{n}"}, 100 + n, f"s{n}") for n in range(10)]
    push = ingest(environment, IngestRequest("in", "", later))
    begun = desk.until(push, Commit)

    desk.do(tick(desk.simulation.environment(desk.simulation.machines[1])))
    desk.finish(push, begun)
    desk.run()

    assert (len(made), desk.rows(CHUNK)) == (20, [])
