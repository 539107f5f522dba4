"""Elements of the translated collections: tags, times, and rows of dead letters.

Inside, an element of a stream is the value as text, and `late_at` as in `EmittedRecord`; its time
is Beam's timestamp.
"""

from __future__ import annotations

from typing import Any

from apache_beam.utils.timestamp import Timestamp

from rollforward.streams.model.bundle import Failure, KeyedRecord

# Tags of outputs besides streams; names of streams have no colon.
DEAD, STATES, AFTER, ADOPTED = ":dead", ":states", ":after", ":adopted"


def stamp(at_ms: int) -> Timestamp:
    """Return a time as Beam's."""
    return Timestamp(micros=at_ms * 1_000)


def milliseconds(at: Timestamp) -> int:
    """Return Beam's time in whole milliseconds, rounded down."""
    return int(at.micros // 1_000)


def dead_letter(computation: str, failure: Failure) -> dict[str, Any]:
    """Return a dead letter as JSON: {"computation", "key", "error", and a record or a timer}."""
    row = {"computation": computation, "key": failure.key, "error": failure.error}
    if isinstance(failure.input, KeyedRecord):
        record = failure.input
        return {
            **row,
            "stream": record.stream,
            "value": record.text,
            "timestamp_ms": record.timestamp_ms,
        }
    tag, timer = failure.input
    return {**row, "timer": tag, "timestamp_ms": timer.at_ms}
