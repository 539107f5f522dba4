"""Following: a cut at the cost of what has changed since the last one of this process.

A full cut reads the row of each interval and scans each inbox. This one begins with what the last
cut has read. It follows the records from there, from sender to reader, by the notes of senders
(`exchange/sent.py`). All of its reads are of one moment. It reads

1. the rows of all sources;
2. the rows of intervals that had a worker, and of those with a timer that may have fired since;
3. the inboxes that had records, and those that the rows of 1 to 3 say records were sent to, and
   the rows of their intervals;
4. some others, in turn.

Everything else is as it was. An inbox gets records only by commits that write their sender's row,
and a worker commits to the state of an interval only if it has records or a due timer. So by
induction over the commits since the last cut, in their order: the row that a commit has written is
read, or the commit has changed nothing that a cut depends on.

- A commit of a source: its row is read.
- A commit of a worker that had a lease, records or a due timer at the last cut: its row is read.
- A commit of another worker: it had got records by an earlier commit, whose note names it.

Only rows that a watermark does not depend on may be older: a worker that found nothing to do has
raised the generation of its interval. A wake-up of that generation has no effect, and the next cut
reads the row, because its timer is due.

Without this knowledge the cut is a full one: where the moment, a note or the last cut is missing,
and after each change of the layout, the topology, or the head's counts of replays and recoveries.
A replay by code of an earlier release is not counted. Its record is late, so no scan of a worker
misses it; until its interval is read, it holds no watermark, as if it had been replayed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rollforward.streams.exchange.sent import is_followed, place_of, sent_since
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import has_pending_change
from rollforward.streams.storage.layout import Inbox, creation_layout
from rollforward.streams.storage.remote_calls import Read, Steps, StoredRow
from rollforward.streams.storage.schema import Head, Interval, Sent, Slab
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.inbox_scan import InboxContents, scan_first, scan_rest

Place = tuple[str, int]  # A computation and the first slot of an interval.
Contents = Mapping[tuple[str, Inbox], InboxContents]
Changes = tuple[dict[Place, StoredRow], Contents]

# Fields of the head that are the same as long as a view can be followed.
SAME = ("layout_version", "intervals", "topology", "recovered", "replays")
# A cut also reads this part of the intervals, in turn: a row may have been restored from a backup.
IN_TURN = 256
# Clocks of machines may differ by this when a processing-time timer is due.
MAX_SKEW_MS = 60_000
_VIEW = "the last cut"


class View(NamedTuple):
    """What a cut has read, as far as a later one needs it.

    Attributes:
        sources: Rows of the processes of sources.
        intervals: Rows of intervals, without their ids and with their slabs summed up.
        pending: Intervals with records in their inbox.
        turn: The number of this view, by which some intervals are read in turn.
    """

    head: Head
    sources: Mapping[Any, StoredRow]
    intervals: Mapping[Place, StoredRow]
    pending: frozenset[Place]
    turn: int = 0


def last_view(environment: Environment) -> View | None:
    """Return what the last cut of this process has read.

    A cut asks for it before its first read. Another one that runs beside it may note a view of a
    later moment, from which no earlier one follows.
    """
    view: View | None = environment.caches.get(_VIEW)
    return view


def _is_valid(environment: Environment, view: View, head: Head) -> bool:
    """Return whether a cut at a head can follow a view."""
    return (
        _can_follow(environment, head)
        and head.gen >= view.head.gen
        and all(getattr(head, name) == getattr(view.head, name) for name in SAME)
    )


def note_view(
    environment: Environment,
    view: View | None,
    head: Head,
    sources: Mapping[Any, StoredRow],
    intervals: Mapping[Place, StoredRow],
    contents: Contents,
) -> None:
    """Keep what a cut has read at one moment, for the next one of this process.

    Args:
        view: The one before.
        intervals: All of them, summed up.
        contents: Of all inboxes that have any.
    """
    count = sum(map(len, head.intervals.values()))
    if _can_follow(environment, head) and len(intervals) == count:
        pending = {(name, inbox.lo) for (name, inbox), found in contents.items() if found.names}
        turn = 0 if view is None else view.turn + 1
        environment.caches[_VIEW] = View(head, sources, intervals, frozenset(pending), turn)


def _can_follow(environment: Environment, head: Head) -> bool:
    """Return whether all senders go by the layout and the topology of a head."""
    return is_followed(environment, head) and not head.retired and not has_pending_change(head)


def read_changes(
    environment: Environment,
    cut: Cut,
    view: View | None,
    sources: Mapping[Any, StoredRow],
    moment: Any,
) -> Steps[Changes | None]:
    """Read what may have changed since the last cut of this process.

    Args:
        sources: Rows of the processes of sources at the moment.

    Returns:
        The rows of all intervals, summed up, and the contents of the inboxes that may have any.
        None: the cut must be a full one.
    """
    head: Head = cut.head.body
    if view is None or head is not cut.stored_head or not _is_valid(environment, view, head):
        return None
    return (yield from _Following(environment, cut, view, moment).run(sources))


class _Following:
    """One cut that follows the last one."""

    def __init__(self, environment: Environment, cut: Cut, view: View, moment: Any) -> None:
        self._environment, self._cut, self._view, self._moment = environment, cut, view, moment
        self._intervals = dict(view.intervals)
        self._contents: dict[tuple[str, Inbox], InboxContents] = {}
        # Places of inboxes that may have records.
        self._filled = {*view.pending, *_in_turn(view)}
        self._scanned: set[Place] = set()
        self._read: set[Place] = set()

    def run(self, sources: Mapping[Any, StoredRow]) -> Steps[Changes | None]:
        if not self._note(sources, self._view.sources):
            return None
        to_read = self._filled | {*_active(self._environment, self._cut.head.body, self._view)}
        while to_read or self._filled - self._scanned:
            yield from self._scan()
            rows = yield from self._read_rows(sorted(to_read))
            if rows is None or not self._note(rows, self._view.intervals):
                return None
            self._intervals.update((place, _summed_up(row)) for place, row in rows.items())
            to_read = self._filled - self._read
        yield from scan_rest(self._cut.plan, self._contents, self._moment)
        return self._intervals, self._contents

    def _note(self, rows: Mapping[Any, StoredRow], before: Mapping[Any, StoredRow]) -> bool:
        """Note where senders have sent; return False if that is unknown."""
        for sender, row in rows.items():
            places = sent_since(before.get(sender), row)
            if places is None:
                return False
            self._filled.update(map(place_of, places))
        return self._filled <= self._view.intervals.keys()

    def _scan(self) -> Steps[None]:
        head, scans = self._cut.head.body, sorted(self._filled - self._scanned)
        inboxes = [(name, Inbox(creation_layout(head, name, lo), lo)) for name, lo in scans]
        plan, moment = self._cut.plan, self._moment
        found = yield from scan_first(self._environment, plan, head, inboxes, moment)
        self._contents |= found
        self._scanned.update(scans)

    def _read_rows(self, places: list[Place]) -> Steps[dict[Place, StoredRow] | None]:
        if not places:
            return {}
        names = self._environment.names
        rows = yield Read([names.interval(*place) for place in places], self._moment)
        self._read.update(places)
        return None if None in rows else dict(zip(places, rows, strict=True))


def _in_turn(view: View) -> list[Place]:
    """Return the intervals whose turn it is to be read."""
    places = sorted(view.intervals)
    count = -(-len(places) // IN_TURN) if places else 0
    first = view.turn * count % max(1, len(places))
    return places[first : first + count]


def _active(environment: Environment, head: Head, view: View) -> Iterable[Place]:
    """Yield the intervals that had a worker, or a timer that may have fired since."""
    latest_ms = environment.now_ms() + MAX_SKEW_MS
    for (name, lo), row in view.intervals.items():
        interval: Interval = row.body
        is_due = interval.due <= head.timer_watermark(name)
        if interval.owner or is_due or interval.processing_due <= latest_ms:
            yield name, lo


def summed_up(rows: Mapping[Place, StoredRow]) -> dict[Place, StoredRow]:
    """Return rows of intervals as a view keeps them."""
    return {place: _summed_up(row) for place, row in rows.items()}


def _summed_up(row: StoredRow) -> StoredRow:
    """Return the row of an interval without its ids, with its slabs summed up in the first one."""
    body: Interval = row.body
    total = Slab(0, body.hold, body.due, body.processing_due, body.timers)
    slabs = (total, *(Slab(0),) * (len(body.slabs) - 1))
    sent = None if body.sent is None else Sent(body.sent.number)
    return StoredRow(body._replace(slabs=slabs, ids=(), inlined={}, sent=sent), row.version)
