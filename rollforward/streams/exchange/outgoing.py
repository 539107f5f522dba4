"""Outgoing records: a commit puts the records that it emits into the inboxes of their readers.

A record is sent once, by the commit that it follows from, so there is nothing to acknowledge. The
readers are woken after the commit, by one task an interval, named by the interval's generation.

A worker that takes an interval increments its generation, then reads the inbox. If a sender read
the old generation, the worker sees its chunk; if it read the new one, it creates a new task. An
interval with a live lease needs no task: its worker reads the inbox once more after releasing the
lease. The task of a worker that dies is redelivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.bundle import EmittedRecord, Target
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.layout import creation_layout, interval_of
from rollforward.streams.storage.remote_calls import Key
from rollforward.streams.storage.schema import (
    LATE,
    ON_TIME,
    DeadRow,
    Head,
    InboxRecord,
    chunk_id,
)
from rollforward.tracing import current_traceparent

MAX_CHUNK_RECORDS = 500
MAX_CHUNK_BYTES = 256_000
RECORD_BYTES = 50  # In addition to text, key and id.
CHAR_BYTES = 12  # Of an emoji in JSON.


class Outbound:
    """Records that one commit sends.

    A late record holds the watermark of its readers at the watermark by which it was late, until
    it is processed. So its lateness does not depend on how slow workers are, and late records of
    different watermarks go into chunks of their own.
    """

    def __init__(self, environment: Environment, head: Head) -> None:
        self._environment = environment
        self._head = head
        self._records: dict[tuple[str, int, int, str | None], list[InboxRecord]] = defaultdict(list)
        self._on_time: dict[Target, list[InboxRecord]] = {}  # The same lists, by target.
        self._dead: list[DeadRow] = []
        self._traceparent: str | None = None

    def continue_trace(self, traceparent: str) -> None:
        """Send the records that follow as part of a trace; by default it is that of the commit."""
        if traceparent != self._traceparent:
            self._traceparent, self._on_time = traceparent, {}

    def produce(self, productions: Iterable[EmittedRecord]) -> None:
        """Send the records that hooks have emitted."""
        for stream, text, time_ms, late_at, targets, id_ in productions:
            for target in targets:
                record = InboxRecord(target.key, time_ms, stream, id_, text)
                self.send(target, record, late_at=late_at)

    def send(self, target: Target, record: InboxRecord, *, late_at: int) -> None:
        """Send a record to an interval, or to the dead letters if it has no key.

        Args:
            late_at: The watermark by which it was late; 0: it is on time.
        """
        if not late_at and (records := self._on_time.get(target)) is not None:
            records.append(record)
            return
        computation, key, error = target
        if error:
            now_ms = self._environment.now_ms()
            self._dead.append(DeadRow(computation, "", error, now_ms, record))
            return
        lo = interval_of(self._head, computation, slot_of(key))
        # A late record may have to wait until the watermark has passed it (forwarding.py).
        hold = min(max(late_at, record.timestamp_ms + 1), FOREVER - 1) if late_at else 0
        records = self._records[computation, lo, hold, self._traceparent]
        records.append(record)
        if not hold:
            self._on_time[target] = records

    def add_dead_letter(self, dead: DeadRow) -> None:
        """Send a failure to the dead letters."""
        self._dead.append(dead)

    @property
    def dead(self) -> int:
        return len(self._dead)

    @property
    def destinations(self) -> list[tuple[str, int]]:
        """Return the intervals that get records."""
        return sorted({(computation, lo) for computation, lo, *_ in self._records})

    def inserts(self) -> list[tuple[Key, Any]]:
        """Return the rows of all chunks and dead letters."""
        names, id_ = self._environment.names, self._environment.new_id()
        rows: list[tuple[Key, Any]] = []
        current = current_traceparent(if_sampled=True)
        for (computation, lo, hold, traceparent), records in self._records.items():
            lane = LATE if hold else ON_TIME
            for chunk, size in _chunks(records):
                time_ms = hold or min([record.timestamp_ms for record in chunk])
                trace = current if traceparent is None else traceparent
                name = chunk_id(f"{id_}.{len(rows)}", trace, len(chunk), size)
                created_in = creation_layout(self._head, computation, lo)
                key = names.chunk(computation, lo, lane, time_ms, name, created_in)
                rows.append((key, tuple(chunk)))
        for dead in self._dead:
            rows.append((names.dead(dead.computation, f"{id_}.{len(rows)}"), dead))
        return rows


def _chunks(records: list[InboxRecord]) -> Iterable[tuple[list[InboxRecord], int]]:
    """Cut records into chunks by number and size; yield each chunk with its size.

    The row of a chunk may be twice that size, since JSON escapes characters of its texts.
    """
    chunk: list[InboxRecord] = []
    size = 0
    for record in records:
        key, _, _, id_, text = record
        record_size = len(key) + len(id_)
        if not (key.isascii() and id_.isascii()):
            record_size *= CHAR_BYTES
        record_size += len(text) + RECORD_BYTES
        if chunk and (len(chunk) >= MAX_CHUNK_RECORDS or size + record_size > MAX_CHUNK_BYTES):
            yield chunk, size
            chunk, size = [], 0
        chunk.append(record)
        size += record_size
    yield chunk, size
