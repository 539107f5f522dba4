"""Apache Beam's local runners on the workload, in an environment of their own.

    .venv/beam/bin/python -m benchmarks.streams_beam.rival batch weblog
    .venv/beam/bin/python -m benchmarks.streams_beam.rival stream zeitgeist

It prints "ready". For each line that it reads it runs the pipeline once, and prints as JSON the
wall time and the processor time in seconds, and for each result the milliseconds since the record
that completed it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue

from benchmarks.streams_beam import workload
from rollforward.streams.beam import translate
from rollforward.streams.beam.elements import milliseconds, stamp


@dataclass
class Seen:
    """Notes of a run.

    Attributes:
        inputs: The event time of each record, and the time the runner received it.
        results: The event time of each result, the time it was computed, and its number.
    """

    inputs: list[tuple[int, float]] = field(default_factory=list)
    results: list[tuple[int, float, int]] = field(default_factory=list)


SEEN = Seen()


class Result(beam.DoFn):  # type: ignore[misc]
    """Notes a result; the runner is in this process."""

    def process(self, value: Any, at: Any = beam.DoFn.TimestampParam) -> Any:
        note = _seen().results.append
        note((milliseconds(at), time.perf_counter(), workload.number_of(value)))
        yield from ()


class Given(beam.DoFn):  # type: ignore[misc]
    """Notes the time at which the runner receives a record."""

    def process(self, value: Any, at: Any = beam.DoFn.TimestampParam) -> Any:
        _seen().inputs.append((milliseconds(at), time.perf_counter()))
        yield value


def _seen() -> Seen:
    # A DoFn is pickled, so it finds this object by the module's name.
    from benchmarks.streams_beam import rival

    return rival.SEEN


def batch(name: str, records: workload.Records) -> None:
    """Run a pipeline over records that are all available from the start."""
    values = [TimestampedValue(value, stamp(at)) for value, at in records]
    with beam.Pipeline(runner=FnApiRunner()) as p:
        inputs = p | beam.Create(values, reshuffle=False)
        _translate(name, p, inputs, workload.end_of(name, records), None)


def stream(name: str, records: workload.Records) -> None:
    """Run a pipeline over records that arrive one after the other."""
    script, watermark = TestStream(), 0
    late_ms = workload.DISORDER_MS[name]
    for value, at in records:
        script = script.add_elements([TimestampedValue(value, stamp(at))])
        if at - late_ms > watermark:
            watermark = at - late_ms
            script = script.advance_watermark_to(stamp(watermark))
    end = workload.end_of(name, records)
    script = script.advance_watermark_to(stamp(end - 1)).advance_watermark_to(stamp(end))
    options = PipelineOptions([], streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as p:
        inputs = p | script.advance_watermark_to_infinity() | beam.ParDo(Given())
        _translate(name, p, inputs, end, timedelta(milliseconds=workload.DISORDER_MS[name]))


def _translate(name: str, p: Any, inputs: Any, end: int, lateness: Any) -> None:
    pipeline, source = workload.declared(name, "beam"), workload.SOURCES[name]
    outputs = translate(pipeline, p, {source: inputs}, lateness=lateness, ends_at=end)
    for out in workload.OUTPUTS[name]:
        _ = outputs[out] | f"note {out}" >> beam.ParDo(Result())


def run(kind: str, name: str) -> dict[str, Any]:
    """Run a pipeline once and check its results."""
    seen, records = _seen(), workload.records_of(name, kind)
    seen.inputs.clear()
    seen.results.clear()
    began, cpu = time.perf_counter(), time.process_time()
    (batch if kind == workload.BATCH else stream)(name, records)
    took = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    workload.check(name, kind, [number for _, _, number in seen.results])
    late_ms = workload.DISORDER_MS[name]
    inputs = [(at - late_ms, when) for at, when in seen.inputs]
    results = [(at, when) for at, when, _ in seen.results]
    return {**took, "lags_ms": workload.lags_ms(inputs, results)}


def main() -> None:
    """Run the pipeline for each line until standard input ends."""
    kind, name = sys.argv[1:]
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(run(kind, name)), flush=True)


if __name__ == "__main__":
    main()
