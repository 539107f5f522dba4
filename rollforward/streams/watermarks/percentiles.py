"""Percentile watermarks: windows close when most of the expected records are there.

The watermark of a computation waits for the last record. The watermark of 99 % leaves out

- at each source: records that are more delayed than 99 % of its records were;
- of its processes: the slowest ones, as long as they bring at most 1 % of the records;
- in each inbox upstream: the oldest 1 % of the pending records.

So it is an estimate. Only the timers of computations that ask for it, and `ctx.watermark`, follow
it. Their output holds to the watermark of all records, and so does what other computations see.

Source: T. Akidau and others, "MillWheel", 2013.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rollforward.streams.exchange.delays import delay_of
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.storage.schema import Head, SourceRow, chunk_size, is_late, time_of


def of_source(rows: Sequence[SourceRow], watermark: int, percentile: float) -> int:
    """Return the watermark of a source without its slowest records and processes.

    Args:
        rows: Processes that the watermark waits for.
        watermark: The watermark of all records.
    """
    reached = sorted(
        (_of_process(row, percentile), row.records) for row in rows if row.watermark < FOREVER
    )
    budget = sum(records for _, records in reached) * (100 - percentile) / 100
    for time_ms, records in reached:
        if records > budget:
            return max(watermark, time_ms)
        budget -= records
    return watermark


def _of_process(row: SourceRow, percentile: float) -> int:
    delay = delay_of(row.delays, percentile)
    if delay is None:
        return row.watermark
    return max(row.watermark, min(row.latest - delay, FOREVER - 1))


def of_inbox(names: Iterable[str], percentile: float) -> int:
    """Return the earliest time of on-time records but for the oldest few; NEVER: there are none."""
    sizes = [(time_of(name), chunk_size(name)[0]) for name in names if not is_late(name)]
    budget = sum(records for _, records in sizes) * (100 - percentile) / 100
    for time_ms, records in sorted(sizes):
        if records > budget:
            return time_ms
        budget -= records
    return NEVER


class PercentileWatermarks:
    """Percentile watermarks of one tick."""

    def __init__(
        self,
        pipeline: Declaration,
        head: Head,
        watermarks: Mapping[str, int],
        rows: Mapping[str, Sequence[SourceRow]],
    ) -> None:
        """Begin a tick.

        Args:
            watermarks: Watermarks of the sources, by stream.
            rows: Processes that they wait for, by stream.
        """
        self._pipeline, self._head = pipeline, head
        self._watermarks, self._rows = watermarks, rows
        self._outputs: dict[tuple[str, float], int] = {}
        self.inputs: dict[str, int] = {}  # Of the computations that ask for one.

    def add(self, name: str, exact: int, chunks: Sequence[str], hold: int) -> None:
        """Add a computation; computations upstream come first.

        Args:
            exact: Its watermark.
            chunks: Names of its pending chunks.
            hold: The time at which its timers hold its output watermark.
        """
        pipeline = self._pipeline
        for percentile in pipeline.percentiles:
            feeds = [self._feed(stream, percentile) for stream in self._streams(name)]
            feeds += [self._outputs[sender, percentile] for sender in pipeline.graph.upstream[name]]
            reached = max(exact, min([of_inbox(chunks, percentile), *feeds]))
            self._outputs[name, percentile] = min(reached, hold)
            if percentile == pipeline.computations[name].percentile:
                self.inputs[name] = max(self._head.percentile_watermarks.get(name, 0), reached)

    def _streams(self, name: str) -> list[str]:
        inputs = self._pipeline.computations[name].inputs
        return [stream for stream in inputs if stream in self._pipeline.sources]

    def _feed(self, stream: str, percentile: float) -> int:
        return of_source(self._rows[stream], self._watermarks[stream], percentile)
