"""Gauges of a pipeline: a few reads, and two bounded counts for each computation."""

from __future__ import annotations

from collections.abc import Sequence

from rollforward.datastore import bodies
from rollforward.runtime.clients import Clients
from rollforward.streams.driver import Engine
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.inspection import status
from rollforward.streams.model.records import FOREVER
from rollforward.streams.publications.publication import Publication
from rollforward.streams.publications.registration import unread
from rollforward.streams.storage.schema import CHUNK, DEAD
from rollforward.tasks.pattern import Gauge

MAX_COUNTED = 200
_COUNTED = f"at most {MAX_COUNTED} are counted."
HELP = {
    "streams_waiting_chunks": f"Chunks of up to 500 records in the inbox; {_COUNTED}",
    "streams_watermark_lag_seconds": "Watermark lag behind the latest record of a source.",
    "streams_late_records": "Records dropped as late since the pipeline began.",
    "streams_dead_letters": f"Records and timers that failed for good; {_COUNTED}",
    "streams_waiting_timers": "Timers that have not fired: one for each open window.",
    "streams_owned_intervals": "Intervals that a worker has leased.",
    "streams_recovered_records": "Stranded records that the sweep put back as late ones; above 0 "
    "is a bug, or a wrong answer of the store.",
    "streams_unread_records": "Records of a published stream that its slowest subscriber has not "
    "read.",
    "streams_dedup_missing_seconds": "Declared time that ids are known, minus the actual time.",
}


def gauges_of(clients: Clients, pipeline: Declaration) -> Sequence[Gauge]:
    """Return the gauges of a pipeline; there are none before it first runs."""
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
        prefix = f"{pipeline.name}:{name}"
        return bodies.count(clients.datastore, kind, f"{prefix}:", f"{prefix};", MAX_COUNTED)

    return {
        "streams_waiting_chunks": count(CHUNK),
        "streams_watermark_lag_seconds": _lag_ms(overview, name) / 1000,
        "streams_late_records": sum(row.late + row.late_between_parts for row in intervals),
        "streams_dead_letters": count(DEAD),
        "streams_waiting_timers": sum(row.timers for row in intervals),
        "streams_owned_intervals": sum(row.is_leased(now_ms) for row in intervals),
        "streams_recovered_records": overview.head.recovered.get(name, 0),
        "streams_unread_records": _unread(engine, overview, name),
        "streams_dedup_missing_seconds": _missing_ms(engine, overview, name) / 1000,
    }


def _lag_ms(overview: status.Overview, name: str) -> int:
    watermark = overview.head.inputs.get(name, 0)
    return 0 if watermark >= FOREVER else max(0, overview.latest - watermark)


def _unread(engine: Engine, overview: status.Overview, name: str) -> int:
    environment = engine.environment
    if not isinstance(environment.at(overview.head).computations.get(name), Publication):
        return 0
    by_subscriber = engine.run(unread(environment, name, overview.intervals[name]))
    return max(by_subscriber.values(), default=0)


def _missing_ms(engine: Engine, overview: status.Overview, name: str) -> int:
    plan = engine.environment.at(overview.head)
    known_for_ms = status.known_for(engine.environment, plan, name, overview.intervals[name])
    return 0 if known_for_ms is None else plan.dedup_ms(name) - known_for_ms
