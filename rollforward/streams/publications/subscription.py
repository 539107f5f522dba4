"""Subscription: a source that reads the published stream of another pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from rollforward.runtime.clients import Clients
from rollforward.streams.model.codecs import ValueCodec
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.slots import first_slots
from rollforward.streams.model.sources import Pulled, PullSource
from rollforward.streams.publications.publication import Publication

POLL = timedelta(seconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)
Start = Literal["latest", "earliest"] | datetime


class LoggedRecord(NamedTuple):
    """A record of a log, and the watermark that was published before it."""

    value: Any
    timestamp_ms: int
    watermark: int


class Subscription(PullSource):
    """A stream that another pipeline publishes, read from a position of this pipeline.

    It has the partitions and the watermark of the publication: each record that is on time there is
    on time here as well. One that is late there may be on time here, if this pipeline has not read
    so far. Its codecs are those of the published stream, unless the pipeline declares others.
    `Pipeline.pull` begins it, or the sweep does when a computation that reads it is
    attached. Records that were deleted before they could be read become a dead letter when later
    ones of the same log are read; those of a registered subscriber are not deleted.

    Attributes:
        publication: The stream of the other pipeline.
        start: The place of the first read; see `__init__`.
    """

    publication: Publication
    start: Start

    def __init__(
        self,
        publication: Publication,
        *,
        stream: str = "",
        start: Start = "latest",
        poll: timedelta = POLL,
        type: Any = None,
    ) -> None:
        """Declare a subscription.

        Args:
            publication: A sink of another pipeline, which is declared before this.
            stream: The name of the stream here. Default: its name there.
            start: The place of the first read. "latest": after the records that are there;
                "earliest": with the first that is kept; an aware time: with all records that are
                kept and whose event time is not before it.
            poll: The pause of a reader that has caught up.
            type: The type that the computations here expect of a value. None: any.

        Raises:
            TypeError: the publication belongs to no pipeline, its values do not have the type, or
                the start is not a time with a zone.
        """
        if not publication.pipeline:
            raise TypeError(f"{publication.name} belongs to no pipeline: declare that before this")
        if isinstance(start, datetime) and start.tzinfo is None:
            raise TypeError(f"`start` must have a time zone, got {start}")
        if not isinstance(start, datetime) and start not in ("latest", "earliest"):
            raise TypeError(f"`start` must be latest, earliest or a time, got {start!r}")
        if type is not None:
            publication.check_readable(type)
        partitions = publication.partitions or 1
        readers = dict.fromkeys(map(str, range(partitions)), _reject)
        super().__init__(stream or publication.stream, readers, poll=poll)
        object.__setattr__(self, "publication", publication)
        object.__setattr__(self, "start", start)

    @property
    def codecs(self) -> Sequence[ValueCodec]:  # type: ignore[override]
        """The codecs of the published stream."""
        return self.publication.codecs.by_stream.get(self.publication.stream, ())

    @property
    def first_slots(self) -> list[int]:
        """The first slots of the publication's intervals, one for each partition."""
        return first_slots(len(self.processes))

    def first_slot(self, partition: str) -> int:
        """Return the first slot of the interval of a partition."""
        return self.first_slots[int(partition)]

    @property
    def starts_at_end(self) -> bool:
        return self.start == "latest"

    def skips(self, record: LoggedRecord | str) -> bool:
        """Return whether a record is before the start; a note about missing ones never is."""
        if not isinstance(self.start, datetime) or isinstance(record, str):
            return False
        return record.timestamp_ms < (self.start - EPOCH) // timedelta(milliseconds=1)


def _reject(clients: Clients, position: Any, limit: int) -> Pulled:
    raise BadRecordError("a subscription is read by its pipeline alone")
