"""Weak stages and sinks behind sources: the ids that records get, and records that kill."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.streams import Context, Pipeline, Pulled, PullSource, Record
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.exchange.ingest import MAX_INLINE_ATTEMPTS
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.execution.quarantine import MAX_CRASHES
from rollforward.streams.model.sink import SinkRecord
from rollforward.streams.storage.schema import CHUNK, DEAD
from rollforward.streams.workers.lease import CAREFUL_AFTER
from rollforward.streams.workers.sink_worker import SinkWorker
from tests.rollforward.streams.exchange.test_weak import Pass, Seen, nothing
from tests.rollforward.streams.simulator.accidents import KilledError
from tests.rollforward.streams.simulator.driver import Came, Desk


class Kills(Pass):
    name = "pass"

    def record(self, ctx: Context, record: Record) -> None:
        if record.value["k"] == "poison":
            raise KilledError
        super().record(ctx, record)


@pytest.mark.parametrize("is_pulled", [True, False], ids=["pulled", "pushed"])
def test_a_record_that_kills_its_source_at_a_weak_stage_is_a_dead_letter_in_the_end(
    is_pulled: bool,
) -> None:
    """G7: twice it kills its source; then it is durable, and kills workers, who are counted."""
    keys = ("a", "poison", "b")

    def read(clients: Any, position: Any, limit: int) -> Pulled:
        return Pulled([({"k": key}, 1_000) for key in keys], 3, is_over=True)

    pulled = [PullSource("in", read)] if is_pulled else []
    desk = Desk(Pipeline("weak", Kills, Seen, intervals=1, sources=pulled))
    crash_count = 0
    while not desk.rows(CHUNK):
        try:
            if is_pulled:
                desk.do(pull(desk.environment, "in"))
            else:
                desk.push(*[Came(f"r-{key}", key, 1_000) for key in keys])
        except KilledError:
            crash_count += 1
            assert crash_count <= MAX_INLINE_ATTEMPTS
            for machine in desk.simulation.machines:
                machine.caches.clear()

    desk.run()

    assert (crash_count, desk.simulation.counts["killed"]) == (
        MAX_INLINE_ATTEMPTS,
        CAREFUL_AFTER + MAX_CRASHES,
    )
    assert len(desk.rows(DEAD)) == 1
    assert [desk.state("seen", key) for key in keys] == [{"seen": 1}, {}, {"seen": 1}]


def test_a_source_passes_records_again_once_the_one_that_kills_is_durable() -> None:
    """G14: later records cost no hop."""
    desk = Desk(Pipeline("weak", Kills, Seen, intervals=1))
    for _ in range(MAX_INLINE_ATTEMPTS):
        with pytest.raises(KilledError):
            desk.push(Came("r-1", "poison", 1_000))
    desk.push(Came("r-1", "poison", 1_000))

    desk.push(Came("r-2", "a", 1_000))

    assert sorted(name.split(":")[1] for name in desk.rows(CHUNK)) == ["pass", "seen"]


@pytest.mark.parametrize("slow_sinks", [0.0, 2.0], ids=["handed on", "by its inbox"])
def test_records_of_two_sinks_and_of_two_pipelines_have_different_ids(slow_sinks: float) -> None:
    """G9: all may charge by one service, which drops records with known ids.

    Pulled records are numbered from 0 in each pipeline.
    """

    def read(clients: Any, position: Any, limit: int) -> Pulled:
        return Pulled([({"k": "a"}, 1_000)], 1, is_over=True)

    acted = list[SinkRecord]()
    for name in ("shop", "archive"):
        sinks = [
            EffectSink("in", nothing, name=sink_name, weak=True)
            for sink_name in ("charge", "notify")
        ]
        desk = Desk(Pipeline(name, intervals=1, sources=[PullSource("in", read)], sinks=sinks))
        simulation = desk.simulation
        simulation.slow_sinks, simulation.worker = slow_sinks, SinkWorker
        simulation.store.on_commit = lambda commit, rows: acted.extend(
            commit.delivery.values if commit.delivery is not None else ()
        )

        desk.do(pull(desk.environment, "in"))
        desk.run()

        acted.extend(record for _, record in simulation.handed)

    assert len(acted) == len({record.id for record in acted}) == 4
