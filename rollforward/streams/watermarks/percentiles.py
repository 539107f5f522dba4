"""Percentile watermarks: when most of what is expected is there, for who prefers early to complete.

The watermark of a computation waits for the last record. That of 99 % leaves out

- at each source: what has a longer delay than 99 % of its records had, and the slowest processes,
  as long as they bring at most 1 % of the records;
- in each inbox on the way: the oldest 1 % of what waits.

So it is an estimate. Only the timers of those who ask for it and `ctx.watermark` follow it. What
they write holds to the watermark of all records, and so does what others see.

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
        rows: Its processes that are waited for.
        watermark: That of all of them.
    """
    reached = sorted(
        (_of_process(row, percentile), row.records) for row in rows if row.watermark < FOREVER
    )
    left_out = sum(records for _, records in reached) * (100 - percentile) / 100
    for at, records in reached:
        if records > left_out:
            return max(watermark, at)
        left_out -= records
    return watermark


def _of_process(row: SourceRow, percentile: float) -> int:
    delay = delay_of(row.delays, percentile)
    if delay is None:
        return row.watermark
    return max(row.watermark, min(row.latest - delay, FOREVER - 1))


def of_inbox(names: Iterable[str], percentile: float) -> int:
    """Return the time before which at most so much of what waits in time lies; NEVER: nothing."""
    sizes = [(time_of(name), chunk_size(name)[0]) for name in names if not is_late(name)]
    left_out = sum(letters for _, letters in sizes) * (100 - percentile) / 100
    for at, letters in sorted(sizes):
        if letters > left_out:
            return at
        left_out -= letters
    return NEVER


class PercentileWatermarks:
    """The percentile watermarks of one tick."""

    def __init__(
        self,
        pipeline: Declaration,
        head: Head,
        watermarks: Mapping[str, int],
        rows: Mapping[str, Sequence[SourceRow]],
    ) -> None:
        """Begin a tick.

        Args:
            watermarks: Of the sources, by stream.
            rows: Their processes that are waited for.
        """
        self._pipeline, self._head = pipeline, head
        self._watermarks, self._rows = watermarks, rows
        self._out: dict[tuple[str, float], int] = {}
        self.inputs: dict[str, int] = {}  # Of the computations that ask for one.

    def see(self, name: str, exact: int, names: Sequence[str], hold: int) -> None:
        """Take in a computation, behind those that write for it.

        Args:
            exact: Its watermark.
            names: The chunks that wait for it.
            hold: The time at which its timers hold back what it writes.
        """
        pipeline = self._pipeline
        own = pipeline.computations[name].percentile
        for percentile in pipeline.percentiles:
            feeds = [self._feed(each, percentile) for each in self._streams(name)]
            feeds += [self._out[each, percentile] for each in pipeline.graph.upstream[name]]
            reached = max(exact, min([of_inbox(names, percentile), *feeds]))
            self._out[name, percentile] = min(reached, hold)
            if percentile == own:
                self.inputs[name] = max(self._head.percentile_watermarks.get(name, 0), reached)

    def _streams(self, name: str) -> list[str]:
        inputs = self._pipeline.computations[name].inputs
        return [each for each in inputs if each in self._pipeline.sources]

    def _feed(self, stream: str, percentile: float) -> int:
        return of_source(self._rows[stream], self._watermarks[stream], percentile)
