"""The layout of a pipeline: into which intervals the keys of each computation are cut.

Each interval has an inbox, named by its first slot and its birth: the number of the layout that it
came with. When intervals are split or merged, those that come of it are born anew, with inboxes of
their own, and the inboxes of those before are *left*. A sender that does not know of it yet may
still put something there; the owner of the interval that now has the left inbox's first slot
forwards it. Each sender notes in its row under which layout it last wrote. When all who write for a
computation have noted the new one, nothing can come any more: the left inbox is shut, and
forgotten once it is empty.

What is forwarded always goes to an inbox that was born later. So whoever looks at the inboxes of a
computation in order of their births sees it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.schema import Head, part_of_row


class RetiredInbox(NamedTuple):
    """An inbox that an interval has left behind.

    Attributes:
        died: The layout with which it was left.
        is_shut: All who may write to it have noted that layout.
    """

    lo: int
    created_in: int
    retired_in: int
    is_sealed: bool = False


class Inbox(NamedTuple):
    """An inbox: the birth and the first slot that it is named by."""

    created_in: int
    lo: int


def interval_of(head: Head, computation: str, slot: int) -> int:
    """Return the first slot of the interval that a slot belongs to."""
    los = head.intervals[computation]
    return los[bisect_right(los, slot) - 1]


def creation_layout(head: Head, computation: str, lo: int) -> int:
    """Return the layout with which an interval came."""
    return head.created_in_by_place.get(f"{computation}:{lo:04x}", 0)


def retired_of(head: Head, computation: str) -> list[RetiredInbox]:
    """Return the inboxes of a computation that intervals have left behind."""
    return [part_of_row(RetiredInbox, left) for left in head.retired.get(computation, ())]


def retired_within(head: Head, computation: str, lo: int, hi: int) -> list[RetiredInbox]:
    """Return those that the owner of an interval has to forward."""
    return [each for each in retired_of(head, computation) if lo <= each.lo < hi]


def inboxes_of(head: Head, computation: str) -> list[Inbox]:
    """Return all inboxes of a computation, in order of their births."""
    live = [
        Inbox(creation_layout(head, computation, lo), lo)
        for lo in head.intervals.get(computation, ())
    ]
    return sorted(
        [*live, *(Inbox(each.created_in, each.lo) for each in retired_of(head, computation))]
    )


def with_layout(head: Head, computation: str, before: list[Inbox], after: list[int]) -> Head:
    """Return a head with some neighbouring intervals of a computation in the place of others.

    Args:
        before: Those that there were.
        after: The first slots of those that there are instead.
    """
    layout = head.layout_version + 1
    gone = {lo for _, lo in before}
    los = sorted([*(lo for lo in head.intervals[computation] if lo not in gone), *after])
    created_in_by_place = {
        name: created_in
        for name, created_in in head.created_in_by_place.items()
        if name not in {f"{computation}:{lo:04x}" for lo in gone}
    }
    created_in_by_place |= {f"{computation}:{lo:04x}": layout for lo in after}
    left = [
        *retired_of(head, computation),
        *(RetiredInbox(lo, created_in, layout) for created_in, lo in before),
    ]
    return head._replace(
        layout_version=layout,
        intervals={**head.intervals, computation: los},
        created_in_by_place=created_in_by_place,
        retired={**head.retired, computation: left},
    )


def by_interval(head: Head, computation: str, keys: Iterable[str]) -> Mapping[int, Sequence[str]]:
    """Return keys by the first slot of their interval; none before anything has come."""
    found: dict[int, list[str]] = defaultdict(list)
    for key in keys if computation in head.intervals else ():
        found[interval_of(head, computation, slot_of(key))].append(key)
    return found
