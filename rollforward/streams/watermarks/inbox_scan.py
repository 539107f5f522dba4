"""A look into the inboxes of computations: what lies there, from which the watermarks follow.

All inboxes are looked into side by side, where that is sound: if all is read of one moment, or for
inboxes between which nothing moves. The first name of each says how far the watermark may go, that
of its lane for late ones as well. The others are only counted, for back-pressure: once a
computation has more than may wait for it, nobody counts further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.layout import Inbox, inboxes_of
from rollforward.streams.storage.remote_calls import ScanKeys, ScanKeysMany, Steps
from rollforward.streams.storage.schema import (
    CHUNK,
    LATE,
    Head,
    inbox_of,
    is_late,
    past_names,
    time_of,
)

# Of an inbox, at first: as many as an answer of the service has.
FIRST_NAMES = 300
Place = tuple[str, Inbox]


@dataclass
class InboxContents:
    """What lies in an inbox: the first names, those in time before all.

    `late`: the earliest time at which its late ones hold the watermark.
    """

    names: list[str]
    late: int = NEVER

    @property
    def first(self) -> int:
        """The earliest time at which those in time hold the watermark."""
        in_time = self.names and not is_late(self.names[0])
        return time_of(self.names[0]) if in_time else NEVER


def look(
    environment: Environment,
    plan: Declaration,
    head: Head,
    computations: Sequence[str],
    moment: Any,
) -> Steps[Mapping[Place, InboxContents]]:
    """Look into all inboxes of some computations, as they are at a moment.

    Args:
        moment: None: the service has none. Then `computations` is one, and an inbox that was left
            behind is looked into before those that came later: what lies there goes on to them.
    """
    places = [(name, inbox) for name in computations for inbox in inboxes_of(head, name)]
    groups = [places]
    if moment is None:
        groups = [list(group) for _, group in groupby(places, lambda place: place[1].created_in)]
    found: dict[Place, InboxContents] = {}
    for group in groups:
        found |= yield from _first_look(environment, plan, head, group, moment)
    yield from _count_on(plan, found, moment)
    return found


def _first_look(
    environment: Environment,
    plan: Declaration,
    head: Head,
    places: Sequence[Place],
    moment: Any,
) -> Steps[dict[Place, InboxContents]]:
    """Find the first names of inboxes, and when their late ones hold the watermark."""
    names, limit = environment.names, _limit(plan)
    ranges = [
        names.inbox_range(name, inbox.lo, head.inputs.get(name, 0), inbox.created_in)
        for name, inbox in places
    ]
    answers = yield from _look_at([ScanKeys(CHUNK, *each, moment, limit) for each in ranges])
    found = [InboxContents(answer) for answer in answers]
    hidden = []  # Late ones behind so many in time that none was seen.
    for seen, (_, high) in zip(found, ranges, strict=True):
        late = [time_of(each) for each in seen.names if is_late(each)]
        seen.late = min(late, default=NEVER)
        if not late and len(seen.names) >= limit:
            hidden.append((seen, ScanKeys(CHUNK, f"{inbox_of(seen.names[0])}{LATE}", high, moment)))
    answers = yield from _look_at([peek for _, peek in hidden])
    for (seen, _), late_names in zip(hidden, answers, strict=True):
        seen.late = min(map(time_of, late_names), default=NEVER)
    return dict(zip(places, found, strict=True))


def _count_on(plan: Declaration, found: Mapping[Place, InboxContents], moment: Any) -> Steps[None]:
    """Count what else lies in full inboxes, up to what may wait for their computation."""
    waiting: Counter[str] = Counter()
    for (name, _), seen in found.items():
        waiting[name] += len(seen.names)
    full = []
    for (name, _), seen in found.items():
        left = plan.limits.waiting_rows + 1 - waiting[name]
        if left > 0 and len(seen.names) >= _limit(plan):
            high = past_names(inbox_of(seen.names[0]))
            full.append((seen, ScanKeys(CHUNK, f"{seen.names[-1]}\0", high, moment, left)))
    answers = yield from _look_at([peek for _, peek in full])
    for (seen, _), names in zip(full, answers, strict=True):
        seen.names += names


def _look_at(peeks: Sequence[ScanKeys]) -> Steps[list[list[str]]]:
    return (yield ScanKeysMany(peeks)) if peeks else []


def _limit(plan: Declaration) -> int:
    return min(FIRST_NAMES, plan.limits.waiting_rows + 1)
