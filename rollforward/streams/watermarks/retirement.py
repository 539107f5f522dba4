"""When an inbox that was left behind can be forgotten: nobody writes to it, and it is empty.

A sender writes under the layout that it has read, and notes it in its own row, in the same commit.
Once all who write for a computation have noted the layout with which an inbox was left, no commit
under an older one can succeed: it names a version of the sender's row that is gone. Senders that
are at rest have theirs noted by the tick. What was shut when a tick began, and is empty then,
stays empty.
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

# Of senders at rest, by one tick.
MAX_NOTED, MAX_NOTED_BYTES = 200, 1_000_000
# About so many has a row, and each slab in it, and each row of ids.
ROW_BYTES, SLAB_BYTES, IDS_BYTES = 1_000, 70, 60
# A source that has written within this time will again, and notes the layout itself.
BUSY_MS = 1_000

# A computation and a first slot, or a stream and a process.
Sender = tuple[str, int] | tuple[str, str]
Row = tuple[Any, int]  # With its version.


def acknowledged_layout(rows: Mapping[Sender, Row]) -> int:
    """Return the layout that all intervals and sources have noted, or a later one."""
    return min((row.layout_version for row, _ in rows.values()), default=0)


def remaining_retired(
    plan: Declaration, head: Head, rows: Mapping[Sender, Row], filled: set[tuple[str, Inbox]]
) -> dict[str, list[RetiredInbox]]:
    """Return the left inboxes that cannot be forgotten yet.

    Args:
        rows: Of intervals and sources.
        filled: The inboxes that are not empty.
    """
    found: dict[str, list[RetiredInbox]] = {}
    for name in head.retired:
        noted = min((row.layout_version for _, row, _ in _senders(plan, name, rows)), default=0)
        kept = [
            left._replace(is_sealed=left.is_sealed or noted >= left.retired_in)
            for left in retired_of(head, name)
            if not left.is_sealed or (name, Inbox(left.created_in, left.lo)) in filled
        ]
        if kept:
            found[name] = kept
    return found


def acknowledgements(
    environment: Environment, head: Head, rows: Mapping[Sender, Row], now_ms: int
) -> list[tuple[Key, Any, int]]:
    """Return the writes that note the layout for senders that are at rest."""
    found: dict[Key, tuple[Key, Any, int]] = {}
    plan = environment.at(head)
    changed = [(each, *row) for each, row in rows.items()] if has_pending_change(head) else []
    for senders in (changed, *(_senders(plan, name, rows) for name in head.retired)):
        for sender, row, version in senders:
            if row.layout_version < head.layout_version and _rests(row, now_ms):
                key = _key(environment, sender)
                found[key] = (key, row._replace(layout_version=head.layout_version), version)
    return _some([*found.values()][:MAX_NOTED])


def _some(notes: list[tuple[Key, Any, int]]) -> list[tuple[Key, Any, int]]:
    """Return as many as one commit has room for, and one at least."""
    sums = accumulate(_bytes(row) for _, row, _ in notes)
    count = sum(size <= MAX_NOTED_BYTES for size in sums)
    return notes[: max(1, count)]


def _bytes(row: Interval | SourceRow) -> int:
    """Return about how many bytes a row has."""
    if isinstance(row, SourceRow):
        return ROW_BYTES
    return ROW_BYTES + SLAB_BYTES * len(row.slabs) + IDS_BYTES * len(row.ids)


def _senders(
    plan: Declaration, computation: str, rows: Mapping[Sender, Row]
) -> Iterator[tuple[Sender, Any, int]]:
    """Yield who writes to inboxes of a computation: its own intervals do, too: they forward."""
    names = {computation, *plan.graph.senders[computation]}
    for sender, (row, version) in rows.items():
        if sender[0] in names:
            yield sender, row, version


def _rests(row: Interval | SourceRow, now_ms: int) -> bool:
    if isinstance(row, Interval):
        return not row.is_leased(now_ms)
    # If that seems to be still to come, it was by a wrong clock.
    return not now_ms - BUSY_MS <= row.seen_ms < now_ms + MAX_LEASE_MS


def _key(environment: Environment, sender: Sender) -> Key:
    name, part = sender
    if isinstance(part, int):
        return environment.names.interval(name, part)
    return environment.names.source(name, part)
