"""What a worker reads of its inbox at a time: some chunks, or many where they are small.

A push whose records go to many intervals puts a small chunk into each. A batch of a fixed number of
them would have few records, for the price of a commit. The names of chunks say how large they are:
so where the last ones were small the worker looks at names first, and then reads as many chunks as
fill a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollforward.streams.exchange.forwarding import scan_late
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.storage.layout import Inbox
from rollforward.streams.storage.remote_calls import Scan, ScanKeys, ScanKeysMany, Steps, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    LATE,
    Names,
    chunk_size,
    first_name,
    past_names,
)

# Of chunks beyond the first `max_chunks`; as many as those may have.
MAX_BYTES = 5_000_000

Chunks = list[tuple[str, StoredRow]]


@dataclass
class InboxReader:
    """How a worker reads one inbox.

    Attributes:
        is_full: More may be waiting than was read last.
        are_small: The first `max_chunks` that were read last did not fill a batch.
    """

    config: StreamConfig
    names: Names
    computation: str
    is_full: bool = False
    are_small: bool = False

    def read(self, inbox: Inbox, watermark: int, records: int) -> Steps[tuple[Chunks, Chunks]]:
        """Read the first chunks, in time before late ones.

        Args:
            records: Of a batch, at most.

        Returns:
            The chunks, and of late ones those to come to where much waits in time: they hold the
            watermark, and no look at the first chunks would find them.
        """
        begin = self.names.inbox(self.computation, inbox.lo, inbox.created_in)
        low, high, most, has_late = first_name(begin, watermark), past_names(begin), 0, True
        if self.are_small:
            look = ScanKeys(CHUNK, low, high, limit=self.config.max_small_chunks)
            seen, late = yield ScanKeysMany([look, ScanKeys(CHUNK, f"{begin}{LATE}", high)])
            most, has_late = count_fitting(seen, records), bool(late)
        most = max(most, self.config.max_chunks)
        found = yield Scan(CHUNK, low, high, most, allow_partial=True)
        self.is_full = len(found) >= most
        first = [chunk_size(name)[0] for name, _ in found[: self.config.max_chunks]]
        self.are_small = len(first) == self.config.max_chunks and sum(first) < records
        if not self.is_full or not has_late:
            return found, []
        few = max(1, self.config.max_chunks // 4)
        return found, (yield scan_late(self.names, self.computation, inbox, few))


def count_fitting(names: Sequence[str], records: int) -> int:
    """Return how many of the first chunks have no more than so many records, and `MAX_BYTES`.

    >>> fitting(["p:c:0:0:1:a.0.30.900", "p:c:0:0:2:a.1.60.1800", "p:c:0:0:3:a.2.40.1200"], 100)
    2
    """
    letters = size = 0
    for count, name in enumerate(names):
        more, more_bytes = chunk_size(name)
        letters, size = letters + more, size + more_bytes
        if letters > records or size > MAX_BYTES:
            return count
    return len(names)
