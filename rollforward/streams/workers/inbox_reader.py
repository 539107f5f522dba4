"""Inbox reader: reads a few chunks at a time, or many if they are small.

A push whose records go to many intervals puts a small chunk into each inbox. A bundle of a fixed
number of chunks would then have few records for the price of a commit. The name of a chunk tells
its size. So if the last chunks were small, the worker first reads names, and then as many chunks as
fill a bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rollforward.streams.exchange.forwarding import scan_late
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.storage.inbox import Bundle
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
from rollforward.tracing import Span, context_of, current_traceparent, is_on, start_span

# Limit for the chunks beyond the first `max_chunks`, which may have as many bytes.
MAX_BYTES = 5_000_000

Chunks = list[tuple[str, StoredRow]]


@dataclass
class InboxReader:
    """Reads the inbox of one worker.

    Attributes:
        is_full: The inbox may have more chunks than the last read returned.
        are_small: The first `max_chunks` of the last read did not fill a bundle.
    """

    config: StreamConfig
    names: Names
    computation: str
    is_full: bool = False
    are_small: bool = False

    def read(
        self,
        inbox: Inbox,
        watermark: int,
        records: int,
        *,
        allow_empty: bool = False,
        takes_offers: bool = False,
    ) -> Steps[tuple[Chunks, Chunks]]:
        """Read the first chunks: on-time ones, then late ones.

        Args:
            records: Limit of a bundle.
            allow_empty: Chunks of other instances may be missing if the last scan is recent.
            takes_offers: The chunks may include chunks that pushes offer.

        Returns:
            The chunks, and some late ones in case of an on-time backlog. Late chunks hold the
            watermark, and the first scan does not reach them.
        """
        prefix = self.names.inbox(self.computation, inbox.lo, inbox.created_in)
        low, high, limit, has_late = first_name(prefix, watermark), past_names(prefix), 0, True
        if self.are_small:
            first_names = ScanKeys(CHUNK, low, high, limit=self.config.max_small_chunks)
            names, late = yield ScanKeysMany(
                [first_names, ScanKeys(CHUNK, f"{prefix}{LATE}", high)]
            )
            limit, has_late = count_fitting(names, records), bool(late)
        limit = max(limit, self.config.max_chunks)
        chunks = yield Scan(
            *(CHUNK, low, high, limit),
            allow_partial=True,
            allow_empty=allow_empty,
            takes_offers=takes_offers,
        )
        self.is_full = len(chunks) >= limit
        sizes = [chunk_size(name)[0] for name, _ in chunks[: self.config.max_chunks]]
        self.are_small = len(sizes) == self.config.max_chunks and sum(sizes) < records
        if not self.is_full or not has_late:
            return chunks, []
        late_limit = max(1, self.config.max_chunks // 4)
        return chunks, (yield scan_late(self.names, self.computation, inbox, late_limit))


def count_fitting(names: Sequence[str], max_records: int) -> int:
    """Return how many leading chunks fit into a number of records and `MAX_BYTES`.

    >>> count_fitting(["p:c:0:0:1:a.0.30.900", "p:c:0:0:2:a.1.60.1800", "p:c:0:0:3:a.2.40.60"], 100)
    2
    """
    records = size = 0
    for count, name in enumerate(names):
        chunk_records, chunk_bytes = chunk_size(name)
        records, size = records + chunk_records, size + chunk_bytes
        if records > max_records or size > MAX_BYTES:
            return count
    return len(names)


def bundle_span(
    pipeline: str, computation: str, bundle: Bundle
) -> AbstractContextManager[Span | None]:
    """Process a bundle in a span.

    Records of one trace: the span continues it, and links to the worker's delivery. Records of many
    traces, or of one and of none: the span belongs to the worker's delivery, and links to each of
    them. The records that the bundle emits follow from this span.
    """
    if not is_on():
        return nullcontext()
    traces = [trace for trace in bundle.traceparents if trace]
    is_of_one = len(traces) == 1 and bundle.traceparents == traces
    return start_span(
        f"bundle {pipeline}/{computation}",
        "CONSUMER" if traces else "INTERNAL",
        attributes={"rollforward.records": len(bundle.inputs)},
        parent=context_of(traces[0]) if is_of_one else None,
        links=[current_traceparent()] if is_of_one else traces,
    )
