"""What comes to an inbox that was left behind goes on to those that its keys have now."""

from __future__ import annotations

from rollforward.streams.exchange.outgoing import Outgoing
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
)

# Of at most 256 KB each, in one commit.
MAX_FORWARDED = 8


def scan_retired(
    names: Names, computation: str, left: RetiredInbox, watermark: int, limit: int
) -> Scan:
    """Return the call that reads a left inbox."""
    low, high = names.inbox_range(computation, left.lo, watermark, left.created_in)
    return Scan(CHUNK, low, high, limit)


def scan_late(names: Names, computation: str, inbox: Inbox, limit: int) -> Scan:
    """Return the call that reads the late ones of an inbox."""
    name = names.inbox(computation, inbox.lo, inbox.created_in)
    return Scan(CHUNK, f"{name}{LATE}", past_names(name), limit)


def forwarded(
    environment: Environment,
    head: Head,
    computation: str,
    chunks: list[tuple[str, StoredRow]],
    *,
    watermark: int = 0,
) -> tuple[Commit, Outgoing]:
    """Return the commit that forwards chunks, each in the lane that it came in.

    Args:
        watermark: What is before it goes into the lane for late ones.
    """
    commit, outgoing = Commit(), Outgoing(environment, head)
    for name, found in chunks:
        commit.deletes.append((Key(CHUNK, name), found.version))
        for letter in found.body:
            late = late_at(name) or (watermark if letter.timestamp_ms < watermark else 0)
            outgoing.send(Target(computation, letter.key), letter, late_at=late)
    commit.inserts += outgoing.inserts()
    return commit, outgoing


def ready(chunks: list[tuple[str, StoredRow]], watermark: int) -> list[tuple[str, StoredRow]]:
    """Return the chunks that may be worked on while something may be on its way from a left inbox.

    A record that came late may be one that was sent before, in time, and is on that way: so what is
    late waits until the watermark says that nothing in time of before it is under way.
    """
    return [
        (name, found)
        for name, found in chunks
        if not is_late(name) or all(letter.timestamp_ms < watermark for letter in found.body)
    ]
