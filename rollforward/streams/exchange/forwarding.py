"""Forwarding of records from retired inboxes to the live inboxes of their keys."""

from __future__ import annotations

from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.bundle import Target
from rollforward.streams.storage.layout import Inbox, RetiredInbox
from rollforward.streams.storage.remote_calls import Commit, Key, Scan, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    LATE,
    Head,
    Names,
    is_late,
    late_at,
    past_names,
    trace_of,
)

# Chunks of at most 256 KB in one commit.
MAX_FORWARDED = 8


def scan_retired(
    names: Names, computation: str, inbox: RetiredInbox, watermark: int, limit: int
) -> Scan:
    """Return the call that reads a retired inbox."""
    low, high = names.inbox_range(computation, inbox.lo, watermark, inbox.created_in)
    return Scan(CHUNK, low, high, limit)


def scan_late(names: Names, computation: str, inbox: Inbox, limit: int) -> Scan:
    """Return the call that reads the late lane of an inbox."""
    name = names.inbox(computation, inbox.lo, inbox.created_in)
    return Scan(CHUNK, f"{name}{LATE}", past_names(name), limit)


def forwarded(
    environment: Environment,
    head: Head,
    computation: str,
    chunks: list[tuple[str, StoredRow]],
    *,
    watermark: int = 0,
) -> tuple[Commit, Outbound]:
    """Return the commit that forwards chunks, each in its own lane.

    Args:
        watermark: Records before it go into the late lane.
    """
    commit, outgoing = Commit(), Outbound(environment, head)
    for name, row in chunks:
        commit.deletes.append((Key(CHUNK, name), row.version))
        outgoing.continue_trace(trace_of(name))
        for record in row.body:
            late = late_at(name) or (watermark if record.timestamp_ms < watermark else 0)
            outgoing.send(Target(computation, record.key), record, late_at=late)
    commit.inserts += outgoing.inserts()
    return commit, outgoing


def ready(chunks: list[tuple[str, StoredRow]], watermark: int) -> list[tuple[str, StoredRow]]:
    """Return the chunks that a worker may process while a retired inbox may still have records.

    A late record may have been sent before, on time, and that copy may still be in the retired
    inbox. So late records wait until the watermark shows that no earlier on-time record is pending.
    """
    return [
        (name, row)
        for name, row in chunks
        if not is_late(name) or all(record.timestamp_ms < watermark for record in row.body)
    ]
