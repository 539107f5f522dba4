"""The measured app: each demo for each round, at full speed, and paced.

The last computation stores the results, and notes when the commit of each has returned, which makes
it durable.
"""

from __future__ import annotations

from datetime import timedelta

from flask import Flask

from benchmarks.streams import app as streams
from benchmarks.streams_beam import workload
from rollforward.streams import Context, Pipeline, PushSource, Record

WARM_ROUNDS, ROUNDS = 2, 3


class NotedKept(workload.Kept):
    """Stores the results, and notes their commits."""

    name = "kept"

    def __init__(self, run: str, *outputs: str) -> None:
        super().__init__(*outputs)
        self.run = run

    def record(self, ctx: Context, record: Record) -> None:
        super().record(ctx, record)
        streams.marks().append(f"{self.run}:{record.timestamp_ms}")


def pipeline(name: str, run: str) -> Pipeline:
    """Return the pipeline of a demo for one run, with a push source."""
    source = PushSource(
        workload.SOURCES[name], disorder=timedelta(milliseconds=workload.DISORDER_MS[name])
    )
    sink = NotedKept(f"{name}-{run}", *workload.OUTPUTS[name])
    return workload.declared(name, run, sink, source=source)


def run_name(kind: str, round_: int) -> str:
    """Return the name of a run of a kind: all records at once, or one after the other."""
    return f"{kind}-{round_}"


PIPELINES: dict[tuple[str, str], Pipeline] = {
    (name, run): pipeline(name, run)
    for name, kinds in workload.RECORDS.items()
    for kind in kinds
    for run in [run_name(kind, round_) for round_ in range(WARM_ROUNDS + ROUNDS)]
}


def serve() -> Flask:
    """Return the app."""
    return streams.serve(*PIPELINES.values())
