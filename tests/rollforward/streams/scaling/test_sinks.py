"""Sinks that are split by their load, on the services."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams.connectors.sinks import TaskSink
from rollforward.streams.model.limits import Limits
from rollforward.streams.scaling import load_meter
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import PACE
from tests.rollforward.streams.scenarios.sink_pipeline import Note, note_outlet, notes

LABELS = [f"v{n}" for n in range(40)]
NOTED = Pipeline(
    "growing-outlets",
    sinks=[
        TaskSink(
            "visits", note_outlet, lambda record: Note(record.id, record.value["label"]),
            name="notes", key=lambda visit: visit["label"],
        )
    ],
    intervals=1,
    limits=Limits(intervals=3),
)  # fmt: skip


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_spread_sink_is_split_under_load_and_merged_when_it_rests(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9, G10: and a task is created for each record, once."""
    monkeypatch.setattr(load_meter, "PERIOD_MS", 0)
    monkeypatch.setattr(load_meter, "SPLIT_BUSY", 0.0)
    monkeypatch.setattr(load_meter, "MERGE_BUSY", 0.0)
    world = World(services, streams=[NOTED], tasks=[note_outlet])
    pace = replace(PACE, max_records=4)
    world.clients.process_state.get_or_create("streams config", lambda: pace)
    with world.context():
        records = [PushedRecord(label, {"label": label}, 1_000) for label in LABELS]
        NOTED.push(world.clients, "visits", records)
    world.settle()
    assert len(intervals(world)) == 3

    monkeypatch.setattr(load_meter, "MERGE_BUSY", 0.3)
    for _ in range(2):
        world.clock.sleep(load_meter.STALE_MS / 1000 + 1)
        world.sweep()
        world.settle()
    assert len(intervals(world)) == 1
    with world.context():
        assert notes() == Counter(LABELS)


def intervals(world: World) -> list[int]:
    with world.context():
        found = NOTED.status(world.clients).computations["notes"].intervals
    return [interval.first_slot for interval in found]
