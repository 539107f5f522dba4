"""Notes of senders: the inboxes that their commits have put records into.

Each commit that puts records into inboxes writes the row of a sender anyway: a worker writes its
interval, a source its own row. The note is a part of it. A tick that has read the row before, and
reads it again, takes from the difference which inboxes got records in between. A replay of dead
letters and a recovery write the head, and are counted there.

Code of an earlier release writes no notes, but preserves them. A worker of such code increments the
`seq` of its interval when it takes the lease, and a source increments its `seq` with each commit.
So a note with another `seq` than its row is incomplete, and the next one replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rollforward.streams.graph.environment import Environment
from rollforward.streams.storage.remote_calls import Key, StoredRow
from rollforward.streams.storage.schema import CHUNK, Head, Interval, Sent, SourceRow

# In one note, some 20 bytes each. The note of a commit to more places is incomplete.
MAX_PLACES = 512

Sender = TypeVar("Sender", Interval, SourceRow)


def with_sent(
    environment: Environment,
    head: Head,
    before: Sender,
    after: Sender,
    inserts: Sequence[tuple[Key, Any]],
) -> Sender:
    """Return a sender's row with a note of where a commit sends.

    Args:
        head: The head by which the records go.
        before: The row that the commit replaces.
        after: The row that it writes.
        inserts: The other rows that it inserts.
    """
    places = [_place_of(key.name) for key, _ in inserts if key.kind == CHUNK]
    sent = before.sent or Sent()
    is_complete = sent.seq == before.seq
    if not environment.follows(head):
        is_broken = places and before.sent is not None and is_complete
        return after._replace(sent=sent._replace(seq=-1)) if is_broken else after
    if is_complete and not places:
        return after if sent.seq == after.seq else after._replace(sent=sent._replace(seq=after.seq))
    number = sent.number + 1
    known = sent.to if is_complete else {}
    since = sent.since if is_complete else number
    numbers = {**known, **dict.fromkeys(places, number)}
    return after._replace(sent=_bounded(Sent(number, after.seq, since, numbers)))


def sent_since(before: StoredRow | None, now: StoredRow) -> Sequence[str] | None:
    """Return where a sender has sent between two reads of its row; None: that is unknown.

    Args:
        before: The earlier read; None: there was no row.

    Returns:
        Places, as "<computation>:<first slot>".
    """
    if before is not None and before.version == now.version:
        return ()
    noted = (before.body.sent if before is not None else None) or Sent()
    sent = now.body.sent or Sent()
    if sent.seq != now.body.seq or not sent.since <= noted.number <= sent.number:
        return None
    return [place for place, number in sent.to.items() if number > noted.number]


def place_of(place: str) -> tuple[str, int]:
    """Return the computation and the first slot of a place.

    >>> place_of("counts:4000")
    ('counts', 16384)
    """
    name, _, lo = place.rpartition(":")
    return name, int(lo, 16)


def _place_of(chunk: str) -> str:
    _, computation, inbox, _ = chunk.split(":", 3)
    return f"{computation}:{inbox.partition('.')[0]}"


def _bounded(sent: Sent) -> Sent:
    """Return a note without its oldest places, if it has too many."""
    if len(sent.to) <= MAX_PLACES:
        return sent
    since = sorted(sent.to.values(), reverse=True)[MAX_PLACES]
    newer = {place: number for place, number in sent.to.items() if number > since}
    return sent._replace(since=since, to=newer)
