"""A sink: the exit of a stream's records from the pipeline.

It reads a stream like a computation, with its own inbox, lease and dead letters, but has no state.
One transaction takes records out of the inbox and writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.streams.model.codecs import NO_CODECS
from rollforward.streams.model.computation import Computation, KeyOf, check_plain
from rollforward.tasks.declaration import Task


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """A record that leaves the pipeline.

    Attributes:
        id: The id of this record at this sink of this pipeline, the same in each attempt, except
            after a split or merge of its interval; nothing was written under the other id.
        late: Whether it arrived late, or derives from a late record.
    """

    id: str
    key: str
    value: Any
    timestamp_ms: int
    stream: str
    late: bool = False


class Sink(Computation):
    """Base class of sinks: converts a stream's records and writes them.

    Attributes:
        max_records: The maximum number of records of one transaction.
        pipeline: The name of its pipeline.
        codecs: Those of its pipeline.
        partitions: The number of its intervals; None: that of its pipeline if it is spread, else 1.
    """

    max_records = 100
    partitions: int | None = None

    def __init__(self, stream: str, *, name: str = "", key: KeyOf | None = None) -> None:
        """Declare a sink.

        Args:
            stream: The stream to read.
            name: A part of stored names and routes. Default: the stream's name with "-sink".
            key: Spreads records over the pipeline's intervals (shards). One worker at a time
                writes the records of an interval. None: a single interval for all records.
        """
        self.name = name or f"{stream}-sink"
        self.stream = stream
        self.inputs = {stream: key or _one}
        self.is_spread = key is not None
        self.pipeline = ""
        self.codecs = NO_CODECS

    def check(self) -> None:
        super().check()
        for hook in (self.write, self.act):
            check_plain(self.name, hook)

    def _check_weak(self) -> None:
        super()._check_weak()
        if type(self).act is Sink.act:
            raise TypeError(
                f"the sink {self.name} cannot be weak: it writes in the commit that takes records "
                "out of the stream, so nothing can be written before that"
            )

    @property
    def fixed_reason(self) -> str:
        """Why its intervals are never split or merged; "": they may be.

        A record that moves to another inbox gets another id there. Nothing outside knows the first
        one, because only the transaction that takes the record out of its inbox writes. A weak sink
        acts before that.
        """
        if self.weak:
            return "it is weak, and would act again under another id"
        if self.partitions is not None:
            return "it has a declared number of partitions"
        return "" if self.is_spread else "it has no `key`, and so one interval"

    def make(self, record: SinkRecord) -> Any:
        """Return the value to write for a record; if this raises, the record is a dead letter."""
        return record

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        """Write the values of records, in the transaction that takes them out of the stream.

        It may run again if that is not committed, so it must only read and write Datastore.
        """
        raise NotImplementedError

    def act(self, clients: Clients, record: SinkRecord) -> None:
        """Execute a weak sink's external effect for a record, at least once."""
        raise NotImplementedError

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """Return the tasks that this sink adds to the app's registry."""
        return ()


def _one(value: Any) -> str:
    return "all"
