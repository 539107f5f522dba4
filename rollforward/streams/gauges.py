"""Gauges of a pipeline: some reads for all of it, and for each computation one bounded count."""

from __future__ import annotations

from collections.abc import Sequence

from rollforward.datastore import bodies
from rollforward.runtime.clients import Clients
from rollforward.streams.driver import Engine
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.inspection import status
from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.schema import CHUNK, DEAD
from rollforward.tasks.pattern import Gauge

MAX_COUNTED = 200
_COUNTED = f"at most {MAX_COUNTED} are counted."
HELP = {
    "streams_waiting_chunks": f"Chunks of up to 500 records in the inbox; {_COUNTED}",
    "streams_watermark_lag_seconds": "From the sources' latest record back to the watermark.",
    "streams_late_records": "Records that were dropped as late, since the pipeline began.",
    "streams_dead_letters": f"Records and timers that wait for somebody; {_COUNTED}",
    "streams_waiting_timers": "Timers that have not fired: one for each open window.",
    "streams_owned_intervals": "Intervals that a worker has.",
    "streams_recovered_records": "Records that lay where no worker looks, and came back as late; "
    "above 0 a bug, or a wrong answer of the store.",
    "streams_dedup_missing_seconds": "How much less long ids are known than is declared.",
}


def gauges_of(clients: Clients, pipeline: Declaration) -> Sequence[Gauge]:
    """Return the gauges of a pipeline; of one that has never run there are none."""
    engine = Engine(clients, pipeline)
    overview = engine.run(status.overview(engine.environment))
    return [
        Gauge(name, HELP[name], value, {"pipeline": pipeline.name, "computation": computation})
        for computation in overview.intervals
        for name, value in _values(engine, clients, overview, computation).items()
    ]


def _values(
    engine: Engine, clients: Clients, overview: status.Overview, name: str
) -> dict[str, float]:
    environment, intervals = engine.environment, overview.intervals[name]
    pipeline, now_ms = environment.pipeline, environment.now_ms()

    def count(kind: str) -> int:
        first = f"{pipeline.name}:{name}"
        return bodies.count(clients.datastore, kind, f"{first}:", f"{first};", MAX_COUNTED)

    return {
        "streams_waiting_chunks": count(CHUNK),
        "streams_watermark_lag_seconds": _lag_ms(overview, name) / 1000,
        "streams_late_records": sum(each.late + each.late_between_parts for each in intervals),
        "streams_dead_letters": count(DEAD),
        "streams_waiting_timers": sum(each.timers for each in intervals),
        "streams_owned_intervals": sum(each.is_leased(now_ms) for each in intervals),
        "streams_recovered_records": overview.head.recovered.get(name, 0),
        "streams_dedup_missing_seconds": _missing_ms(engine, overview, name) / 1000,
    }


def _lag_ms(overview: status.Overview, name: str) -> int:
    watermark = overview.head.inputs.get(name, 0)
    return 0 if watermark >= FOREVER else max(0, overview.latest - watermark)


def _missing_ms(engine: Engine, overview: status.Overview, name: str) -> int:
    plan = engine.environment.at(overview.head)
    known_for_ms = status.known_for(engine.environment, plan, name, overview.intervals[name])
    return 0 if known_for_ms is None else plan.dedup_ms(name) - known_for_ms
