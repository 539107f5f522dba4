"""A sink: where records of a stream leave the pipeline.

It reads a stream as a computation does, with an inbox, a lease and dead letters of its own, and has
no state: the transaction that takes records out of the inbox is the one that writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.tasks.declaration import Task


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """A record that leaves the pipeline.

    Attributes:
        id: Of this record at this sink of this pipeline; the same however often it is tried.
        late: Whether it came too late, or follows from one that did.
    """

    id: str
    key: str
    value: Any
    timestamp_ms: int
    stream: str
    late: bool = False


class Sink(Computation):
    """Base class: what a stream's records become, and how that is written.

    Attributes:
        max_records: So many at most are written by one transaction.
        pipeline: The name of the one that it is a part of.
    """

    max_records = 100

    def __init__(self, stream: str, *, name: str = "", key: KeyOf | None = None) -> None:
        """Declare a sink.

        Args:
            stream: The one that it reads.
            name: Stands in keys and routes; by default that of the stream with "-sink".
            key: Spreads records over the pipeline's intervals, on each of which one worker at a
                time writes. None: there is one for all of them.
        """
        self.name = name or f"{stream}-sink"
        self.stream = stream
        self.inputs = {stream: key or _one}
        self.is_spread = key is not None
        self.pipeline = ""

    def _check_weak(self) -> None:
        super()._check_weak()
        if type(self).act is Sink.act:
            raise TypeError(
                f"the sink {self.name} cannot be weak: what it writes is a part of the commit that "
                "takes records out of the stream, so nothing of it comes before that"
            )

    def make(self, record: SinkRecord) -> Any:
        """Return what is written of a record; what this raises makes it a dead letter."""
        return record

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        """Write what records became, in the transaction that takes them out of the stream.

        It may run again when that is not committed: it reads and writes Datastore and nothing else.
        """
        raise NotImplementedError

    def act(self, clients: Clients, record: SinkRecord) -> None:
        """Do outside what is to be done with a record: of a weak sink, at least once."""
        raise NotImplementedError

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """Return the tasks that it brings along."""
        return ()


def _one(value: Any) -> str:
    return "all"
