"""The layout of a pipeline: the intervals (shards) of each computation's keys.

An interval has an inbox, named by its first slot and by the layout version that created it. A split
or merge creates new intervals with new inboxes and *retires* the old inboxes. Senders with an older
layout may still write to a retired inbox. The worker of the interval that covers its first slot
forwards such records.

Each sender stores in its row the layout version of its last commit. Once all senders of a
computation have acknowledged the new version, the retired inbox is sealed. It is forgotten when it
is empty. (Compare the parent shards of Kinesis, and epoch-based reclamation.)

Records are only forwarded to inboxes of later versions. A reader that visits the inboxes of a
computation in order of their versions therefore misses none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.schema import Head, part_of_row


class RetiredInbox(NamedTuple):
    """An inbox whose interval was split or merged.

    Attributes:
        created_in: The layout version that created it.
        retired_in: The layout version that retired it.
        is_sealed: All of its senders have acknowledged that version.
    """

    lo: int
    created_in: int
    retired_in: int
    is_sealed: bool = False


class Inbox(NamedTuple):
    """The name of an inbox: the layout version that created it, and its first slot."""

    created_in: int
    lo: int


def interval_of(head: Head, computation: str, slot: int) -> int:
    """Return the first slot of the interval that covers a slot."""
    los = head.intervals[computation]
    return los[bisect_right(los, slot) - 1]


def creation_layout(head: Head, computation: str, lo: int) -> int:
    """Return the layout version that created an interval."""
    return head.created_in_by_place.get(f"{computation}:{lo:04x}", 0)


def retired_of(head: Head, computation: str) -> list[RetiredInbox]:
    """Return the retired inboxes of a computation."""
    return [part_of_row(RetiredInbox, fields) for fields in head.retired.get(computation, ())]


def retired_within(head: Head, computation: str, lo: int, hi: int) -> list[RetiredInbox]:
    """Return the retired inboxes that the worker of an interval forwards."""
    return [inbox for inbox in retired_of(head, computation) if lo <= inbox.lo < hi]


def inboxes_of(head: Head, computation: str) -> list[Inbox]:
    """Return all inboxes of a computation, in order of their layout versions."""
    live = [
        Inbox(creation_layout(head, computation, lo), lo)
        for lo in head.intervals.get(computation, ())
    ]
    retired = [Inbox(inbox.created_in, inbox.lo) for inbox in retired_of(head, computation)]
    return sorted([*live, *retired])


def with_layout(head: Head, computation: str, replaced: list[Inbox], new_los: list[int]) -> Head:
    """Return a head in which some neighbouring intervals of a computation replace others.

    Args:
        replaced: The inboxes of the replaced intervals.
        new_los: The first slots of the new intervals.
    """
    layout = head.layout_version + 1
    old_los = {lo for _, lo in replaced}
    los = sorted([*(lo for lo in head.intervals[computation] if lo not in old_los), *new_los])
    created_in_by_place = {
        name: created_in
        for name, created_in in head.created_in_by_place.items()
        if name not in {f"{computation}:{lo:04x}" for lo in old_los}
    }
    created_in_by_place |= {f"{computation}:{lo:04x}": layout for lo in new_los}
    retired = [
        *retired_of(head, computation),
        *(RetiredInbox(lo, created_in, layout) for created_in, lo in replaced),
    ]
    return head._replace(
        layout_version=layout,
        intervals={**head.intervals, computation: los},
        created_in_by_place=created_in_by_place,
        retired={**head.retired, computation: retired},
    )


def by_interval(head: Head, computation: str, keys: Iterable[str]) -> Mapping[int, Sequence[str]]:
    """Return keys by the first slot of their interval; none before the pipeline has run."""
    by_lo: dict[int, list[str]] = defaultdict(list)
    for key in keys if computation in head.intervals else ():
        by_lo[interval_of(head, computation, slot_of(key))].append(key)
    return by_lo
