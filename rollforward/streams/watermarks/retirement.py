"""Retirement of inboxes: a retired inbox is forgotten once it is sealed and empty.

A sender writes under the layout that it has read, and stores that layout in its own row, in the
same commit: it acknowledges it. Once all senders of a computation have acknowledged the layout that
retired an inbox, the inbox is sealed. No commit under an older layout can succeed, because it names
an old version of the sender's row. The tick acknowledges for idle senders. An inbox that was
sealed when a tick began, and is empty then, stays empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import has_pending_change
from rollforward.streams.storage.layout import Inbox, RetiredInbox, retired_of
from rollforward.streams.storage.remote_calls import Key
from rollforward.streams.storage.schema import MAX_LEASE_MS, Head, Interval, SourceRow

# Acknowledgements for idle senders in one tick.
MAX_PUTS, MAX_PUT_BYTES = 200, 1_000_000
# Rough sizes of a row, of each slab in it, and of each part of its ids.
ROW_BYTES, SLAB_BYTES, IDS_BYTES = 1_000, 70, 60
# A source that wrote within this time will write again, and acknowledges the layout itself.
BUSY_MS = 1_000

# A computation and a first slot, or a stream and a process.
Sender = tuple[str, int] | tuple[str, str]
Row = tuple[Any, int]  # With its version.
Put = tuple[Key, Any, int]


def acknowledged_layout(rows: Mapping[Sender, Row]) -> int:
    """Return the latest layout that all intervals and sources have acknowledged."""
    return min((row.layout_version for row, _ in rows.values()), default=0)


def remaining_retired(
    plan: Declaration, head: Head, rows: Mapping[Sender, Row], filled: set[tuple[str, Inbox]]
) -> dict[str, list[RetiredInbox]]:
    """Return the retired inboxes that cannot be forgotten yet.

    Args:
        rows: Rows of intervals and sources.
        filled: Inboxes that are not empty.
    """
    remaining: dict[str, list[RetiredInbox]] = {}
    for name in head.retired:
        layout = min((row.layout_version for _, row, _ in _senders(plan, name, rows)), default=0)
        inboxes = [
            inbox._replace(is_sealed=inbox.is_sealed or layout >= inbox.retired_in)
            for inbox in retired_of(head, name)
            if not inbox.is_sealed or (name, Inbox(inbox.created_in, inbox.lo)) in filled
        ]
        if inboxes:
            remaining[name] = inboxes
    return remaining


def acknowledgements(
    environment: Environment, head: Head, rows: Mapping[Sender, Row], now_ms: int
) -> list[Put]:
    """Return the writes that acknowledge the layout for idle senders."""
    puts: dict[Key, Put] = {}
    plan = environment.at(head)
    everyone = [(sender, *row) for sender, row in rows.items()] if has_pending_change(head) else []
    for senders in (everyone, *(_senders(plan, name, rows) for name in head.retired)):
        for sender, row, version in senders:
            if row.layout_version < head.layout_version and _is_idle(row, now_ms):
                key = _key(environment, sender)
                puts[key] = (key, row._replace(layout_version=head.layout_version), version)
    return _within_limits([*puts.values()][:MAX_PUTS])


def _within_limits(puts: list[Put]) -> list[Put]:
    """Return as many writes as one commit has room for, and at least one."""
    sums = accumulate(_bytes(row) for _, row, _ in puts)
    count = sum(size <= MAX_PUT_BYTES for size in sums)
    return puts[: max(1, count)]


def _bytes(row: Interval | SourceRow) -> int:
    """Return the rough size of a row."""
    if isinstance(row, SourceRow):
        return ROW_BYTES
    return ROW_BYTES + SLAB_BYTES * len(row.slabs) + IDS_BYTES * len(row.ids)


def _senders(
    plan: Declaration, computation: str, rows: Mapping[Sender, Row]
) -> Iterator[tuple[Sender, Any, int]]:
    """Yield the senders of a computation, and its own intervals, which forward records."""
    names = {computation, *plan.graph.senders[computation]}
    for sender, (row, version) in rows.items():
        if sender[0] in names:
            yield sender, row, version


def _is_idle(row: Interval | SourceRow, now_ms: int) -> bool:
    if isinstance(row, Interval):
        return not row.is_leased(now_ms)
    # A time in the future was written by a wrong clock.
    return not now_ms - BUSY_MS <= row.seen_ms < now_ms + MAX_LEASE_MS


def _key(environment: Environment, sender: Sender) -> Key:
    name, place = sender
    if isinstance(place, int):
        return environment.names.interval(name, place)
    return environment.names.source(name, place)
