"""Sinks in the simulator: each record is delivered once, whatever order and faults a seed draws."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

from pipelines.streams import Pipeline, PushSource
from pipelines.streams.calls import Commit
from pipelines.streams.environment import Environment
from pipelines.streams.rows import CHUNK, DEAD
from pipelines.streams.sink import Sink, SinkRecord
from pipelines.streams.sink_worker import SinkWorker
from pipelines.streams.worker import Worker
from tests.pipelines.streams.schedules import Client, Rekey
from tests.pipelines.streams.simulator import Simulation
from tests.soak import BUDGET, IS_SOAK

SCHEDULES = 5_000 if IS_SOAK else 150
RECORDS = 8


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


def worker_of(environment: Environment, name: str, *place: Any) -> Worker:
    is_sink = isinstance(environment.pipeline.computations[name], Sink)
    return (SinkWorker if is_sink else Worker)(environment, name, *place)


def test_each_record_is_delivered_once_in_any_schedule() -> None:
    """G9, G7: from a source with ids and from a computation; what it cannot make is dead once."""
    crashes = 0
    for seed in BUDGET.plays(range(SCHEDULES)):
        simulation = Simulation(PIPELINE, seed)
        simulation.worker = worker_of  # type: ignore[assignment]
        delivered: dict[str, list[tuple[str, str]]] = {sink.name: [] for sink in PIPELINE.sinks}

        def collect(commit: Commit, before: Any, *, into: Any = delivered) -> None:
            if commit.delivery is not None:
                into[commit.delivery.sink[0]] += commit.delivery.made

        simulation.store.on_commit = collect
        chance = random.Random(seed)
        records = [{"k": f"k{chance.randrange(4)}", "id": f"r{n}", "at": n} for n in range(RECORDS)]
        simulation.users.append(partial(Client("", records, chance).steps, simulation))
        simulation.run()
        truth = Counter(f"r{n}" for n in range(RECORDS) if n != 5)
        for sink, made in delivered.items():
            assert Counter(label for _, label in made) == truth, f"{sink} in schedule {seed}"
            assert len({id_ for id_, _ in made}) == len(made)
        kinds = Counter(key.kind for key in simulation.store.rows)
        assert (kinds[CHUNK], kinds[DEAD]) == (0, 2), f"schedule {seed}"
        crashes += simulation.counts["crash"]
    assert crashes > BUDGET.counts["played"] / 2
