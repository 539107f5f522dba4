"""Lateness of records: whether the watermark had passed one when it came in.

A DoFn does not see the watermark. A pane does: it is early as long as the watermark is before the
end of its window. So each record goes through a window of one millisecond that begins at its time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import apache_beam as beam
from apache_beam.transforms import trigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.windowed_value import PaneInfoTiming

from rollforward.streams.beam.elements import milliseconds, stamp


def mark_late(records: Any, stream: str, lateness: timedelta) -> Any:
    """Return the records of a source, those marked as late that are behind its watermark.

    Args:
        lateness: Records that are later than this are dropped by Beam.
    """
    windows = beam.WindowInto(
        FixedWindows(0.001),
        trigger=trigger.Repeatedly(trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
        allowed_lateness=lateness.total_seconds(),
    )
    return (
        records
        | f"{stream}/spread" >> beam.ParDo(_SpreadFn()).with_output_types(tuple[str, Any])
        | f"{stream}/windows" >> windows
        | f"{stream}/panes" >> beam.GroupByKey()
        | f"{stream}/late" >> beam.ParDo(_MarkFn())
        | f"{stream}/all time" >> beam.WindowInto(GlobalWindows())
    )


class _SpreadFn(beam.DoFn):  # type: ignore[misc]
    """Gives records keys, so that a runner can spread them."""

    def process(
        self, element: tuple[str, int], at: Any = beam.DoFn.TimestampParam
    ) -> Iterator[Any]:
        text, late_at = element
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        yield digest, (text, milliseconds(at), late_at)


class _MarkFn(beam.DoFn):  # type: ignore[misc]
    """Marks the records of late panes."""

    def process(self, element: Any, pane: Any = beam.DoFn.PaneInfoParam) -> Iterator[Any]:
        is_late = pane.timing != PaneInfoTiming.EARLY
        for text, at, late_at in element[1]:
            marked = late_at or (at + 1 if is_late else 0)
            yield TimestampedValue((text, marked), stamp(at))
