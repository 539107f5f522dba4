"""Publication: a sink that keeps the records of a stream in a log, for other pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pydantic

from rollforward.streams.model.codecs import encoded_of
from rollforward.streams.model.computation import KeyOf
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.limits import MAX_INTERVALS
from rollforward.streams.model.records import value_text
from rollforward.streams.model.sink import Sink, SinkRecord

KEEP = timedelta(days=7)


class LogRecord(NamedTuple):
    """A record for a log, and the size of its value in characters as it is stored.

    `value`: an `Encoded`, if the stream has a codec.
    """

    timestamp_ms: int
    value: Any
    size: int


class Publication(Sink):
    """Keeps each record of a stream once, in the order in which its interval processes them.

    A pipeline reads it by a `Subscription`, and is attached and detached while both run. A record
    that is on time here is on time there. As long as a pipeline subscribes, its unread records are
    kept, and the publication is not detached.
    """

    max_records = 500

    def __init__(
        self,
        stream: str,
        *,
        type: Any = None,
        keep: timedelta = KEEP,
        name: str = "",
        key: KeyOf | None = None,
        partitions: int = 1,
    ) -> None:
        """Declare a publication.

        Args:
            stream: A stream of its pipeline; a source, or written by a computation.
            type: The type of its values, as pydantic has it (a dataclass, a model, a TypedDict).
                A value of another form is a dead letter. With a codec that is the form of the
                decoded value. None: any value.
            keep: The minimum time for which records are kept, for pipelines that subscribe later.
            name: A part of stored names. Default: the stream's name with "-log".
            key: Spreads the records over the partitions, by a value.
            partitions: The number of its logs, each with a writer and, in each subscriber, a
                reader of its own. It must not change while the publication runs.

        Raises:
            TypeError: it is invalid; the message says why.
        """
        super().__init__(stream, name=name or f"{stream}-log", key=key)
        if keep < timedelta(0):
            raise TypeError(f"{self.name}: `keep` must not be negative")
        if not 1 <= partitions <= MAX_INTERVALS:
            raise TypeError(f"{self.name}: `partitions` must be 1 to {MAX_INTERVALS}")
        if partitions > 1 and key is None:
            raise TypeError(f"{self.name}: several `partitions` require a `key`")
        self.partitions, self.keep = partitions, keep
        self.values = None if type is None else pydantic.TypeAdapter[Any](type)

    @property
    def keep_ms(self) -> int:
        return self.keep // timedelta(milliseconds=1)

    def make(self, record: SinkRecord) -> LogRecord:
        """Return the record for the log, checked."""
        codec = self.codecs.writers.get(self.stream)
        if self.values is not None:
            try:
                if codec is None:
                    self.values.validate_json(value_text(record.value), strict=True)
                else:
                    self.values.validate_python(record.value, strict=True)
            except pydantic.ValidationError as error:
                raise BadRecordError(f"{self.stream}: {error}") from error
        text = value_text(record.value, codec)
        return LogRecord(record.timestamp_ms, encoded_of(text) or record.value, len(text))

    def check_readable(self, type: Any) -> None:
        """Check that a subscriber's type reads the values of this one.

        Raises:
            TypeError: a field is missing here, or has another type; the message names it.
        """
        if self.values is None:
            raise TypeError(f"{self.name} has no `type`: a subscription can have none")
        written = self.values.json_schema(mode="serialization")
        read = pydantic.TypeAdapter(type).json_schema()
        for reason in _diff(written, read):
            raise TypeError(f"{self.name}: {reason}")


def _diff(written: dict[str, Any], read: dict[str, Any]) -> Sequence[str]:
    """Return why one schema does not read what another writes; empty: it does."""
    written, read = _resolved(written, written), _resolved(read, read)
    if "properties" not in written or "properties" not in read:
        return [] if written == read else ["it has values of another type"]
    fields, required = written["properties"], written.get("required", ())
    reasons = [
        f"its values may lack {name!r}" for name in read.get("required", ()) if name not in required
    ]
    for name, field in read["properties"].items():
        if name in fields and fields[name] != field:
            reasons.append(f"{name!r} has another type there than here")
    return reasons


def _resolved(schema: Any, root: dict[str, Any], within: tuple[str, ...] = ()) -> Any:
    """Return a schema without names of types, defaults and references.

    Args:
        within: The types around it. A type within itself is its distance there.
    """
    if isinstance(schema, list):
        return [_resolved(part, root, within) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in within:
            return len(within) - within.index(name)
        return _resolved(root["$defs"][name], root, (*within, name))
    return {
        key: {name: _resolved(field, root, within) for name, field in value.items()}
        if key == "properties"
        else _resolved(value, root, within)
        for key, value in schema.items()
        if key not in ("title", "description", "default", "$defs")
    }
