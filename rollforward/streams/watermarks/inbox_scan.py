"""Scan of the inboxes of computations, from which the watermarks follow.

All inboxes are scanned side by side if all scans read the same moment. Without snapshots that is
sound only for inboxes between which no record moves. The first name of an inbox bounds the
watermark, and so does the first name of its late lane. Further names are only counted, for
backpressure, up to the limit of their computation.
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
from rollforward.streams.watermarks.backpressure import max_waiting_rows

# Of an inbox at first: as many as one answer of the service has.
FIRST_NAMES = 300
Place = tuple[str, Inbox]


@dataclass
class InboxContents:
    """Names of an inbox's first chunks, on-time ones before late ones.

    `late`: the earliest time at which a late chunk holds the watermark.
    """

    names: list[str]
    late: int = NEVER

    @property
    def on_time(self) -> int:
        """The earliest time at which an on-time chunk holds the watermark."""
        has_on_time = self.names and not is_late(self.names[0])
        return time_of(self.names[0]) if has_on_time else NEVER


def scan_inboxes(
    environment: Environment,
    plan: Declaration,
    head: Head,
    computations: Sequence[str],
    moment: Any,
) -> Steps[Mapping[Place, InboxContents]]:
    """Scan all inboxes of some computations at a moment.

    Args:
        moment: None: the service has no snapshots. Then `computations` has one name, and a retired
            inbox is scanned before newer ones, because its records move on to them.
    """
    places = [(name, inbox) for name in computations for inbox in inboxes_of(head, name)]
    groups = [places]
    if moment is None:
        groups = [list(group) for _, group in groupby(places, lambda place: place[1].created_in)]
    contents: dict[Place, InboxContents] = {}
    for group in groups:
        contents |= yield from scan_first(environment, plan, head, group, moment)
    yield from scan_rest(plan, head, contents, moment)
    return contents


def scan_first(
    environment: Environment,
    plan: Declaration,
    head: Head,
    places: Sequence[Place],
    moment: Any,
) -> Steps[dict[Place, InboxContents]]:
    """Scan the first names of inboxes, and the time at which late ones hold the watermark."""
    names, limit = environment.names, _limit(plan)
    ranges = [
        names.inbox_range(name, inbox.lo, head.inputs.get(name, 0), inbox.created_in)
        for name, inbox in places
    ]
    scans = [ScanKeys(CHUNK, low, high, moment, limit) for low, high in ranges]
    contents = [InboxContents(answer) for answer in (yield from _scan_all(scans))]
    unseen = []  # Late lanes beyond the limit.
    for content, (_, high) in zip(contents, ranges, strict=True):
        late = [time_of(name) for name in content.names if is_late(name)]
        content.late = min(late, default=NEVER)
        if not late and len(content.names) >= limit:
            low = f"{inbox_of(content.names[0])}{LATE}"
            unseen.append((content, ScanKeys(CHUNK, low, high, moment)))
    answers = yield from _scan_all([scan for _, scan in unseen])
    for (content, _), late_names in zip(unseen, answers, strict=True):
        content.late = min(map(time_of, late_names), default=NEVER)
    return dict(zip(places, contents, strict=True))


def scan_rest(
    plan: Declaration, head: Head, contents: Mapping[Place, InboxContents], moment: Any
) -> Steps[None]:
    """Scan further names of full inboxes, up to the backlog limit of their computation.

    The full inboxes of a computation share what is left of its limit. So together they list about
    as many names as that, and not each as many. If some have fewer than their share, the others are
    scanned again.
    """
    full = [place for place, content in contents.items() if len(content.names) >= _limit(plan)]
    while full:
        rows: Counter[str] = Counter()
        for (name, _), content in contents.items():
            rows[name] += len(content.names)
        scans = _shared_scans(plan, head, contents, rows, full, moment)
        answers = yield from _scan_all([*scans.values()])
        for place, names in zip(scans, answers, strict=True):
            contents[place].names += names
        both = zip(scans.items(), answers, strict=True)
        full = [place for (place, scan), names in both if len(names) >= scan.limit]


def _shared_scans(
    plan: Declaration,
    head: Head,
    contents: Mapping[Place, InboxContents],
    rows: Mapping[str, int],
    full: Sequence[Place],
    moment: Any,
) -> dict[Place, ScanKeys]:
    """Return a scan for each full inbox of a computation that is below its limit.

    Args:
        rows: The names that were scanned so far, by computation.
    """
    sharing = Counter(name for name, _ in full)
    scans = {}
    for name, inbox in full:
        left = max_waiting_rows(plan, head, name) + 1 - rows[name]
        if left > 0:
            last = contents[name, inbox].names[-1]
            share = min(left, max(_limit(plan), -(-left // sharing[name])))
            high = past_names(inbox_of(last))
            scans[name, inbox] = ScanKeys(CHUNK, f"{last}\0", high, moment, share)
    return scans


def _scan_all(scans: Sequence[ScanKeys]) -> Steps[list[list[str]]]:
    return (yield ScanKeysMany(scans)) if scans else []


def _limit(plan: Declaration) -> int:
    return min(FIRST_NAMES, plan.limits.max_waiting_rows(1) + 1)
