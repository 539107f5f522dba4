"""Following: a cut that reads the rows that may have changed since the last cut of its process.

A full cut reads the row of each interval and scans each inbox. A following cut keeps the rows that
the last cut has read, and follows the records from there, from sender to reader, by the notes of
the senders (`exchange/sent.py`). All of its reads are of one moment. It reads

1. the rows of all sources;
2. the rows of intervals that had a worker, and of those with a timer that may have fired since;
3. the inboxes that had records, the inboxes to which records were sent by the notes in the rows of
   1 to 3, and the rows of the intervals of these inboxes;
4. a few others, in turn.

All other inboxes and intervals are unchanged. An inbox gets records only by commits that write the
row of their sender. A worker changes the holds, timers and counts of an interval only if it has
records or a due timer. The proof is by induction over the commits since the last cut:

- A commit of a source: its row is read.
- A commit of a worker that had a lease, records or a due timer at the last cut: its row is read.
- A commit of another worker: an earlier commit had sent records to it, and its note names them.

An interval that is not read may have an older generation and lease: a worker was there and found
nothing to do. If a timer of it becomes due, a wake-up by its old generation may have no effect. The
next cut reads the row, because the timer is due.

The cut is a full one if the service has no snapshots, if a note is incomplete, on the first tick of
a process, while an inbox is retired, the topology changes or the pipeline is stopped, and after any
change of the layout, the topology, or the head's counts of replays and recoveries.

Code of an earlier release does not count its replays. A replayed record is late, so no worker
misses it. It holds no watermark until its interval is read, as if it were replayed at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rollforward.streams.exchange.sent import place_of, sent_since
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import has_pending_change
from rollforward.streams.storage.layout import Inbox, creation_layout
from rollforward.streams.storage.remote_calls import Read, Steps, StoredRow
from rollforward.streams.storage.schema import Head, Interval, Sent, Slab
from rollforward.streams.storage.state_store import is_crowded
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
# A process follows no view after so many ticks of others: a pipeline of the same name that began
# anew has a generation by its time.
MAX_MISSED = 1_000
_VIEW = "the last cut"


class View(NamedTuple):
    """Rows of a cut, as far as a later cut needs them.

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
    """Return the rows of the last cut of this process; None: this is its first one.

    A cut gets the view before its first read. A concurrent one may note a view of a later moment,
    and a cut cannot follow rows of a later moment than its own.
    """
    view: View | None = environment.caches.get(_VIEW)
    return view


def _is_valid(environment: Environment, view: View, head: Head) -> bool:
    """Return whether a cut at a head can follow a view."""
    return (
        _can_follow(environment, head)
        and 0 <= head.gen - view.head.gen < MAX_MISSED
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
    """Keep the rows of a cut, all of one moment, for the next cut of this process.

    Args:
        view: The view before; None: the cut was the first one.
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
    is_changing = head.retired or head.stopped or has_pending_change(head)
    return environment.follows(head) and not is_changing


def read_changes(
    environment: Environment,
    cut: Cut,
    view: View | None,
    sources: Mapping[Any, StoredRow],
    moment: Any,
) -> Steps[Changes | None]:
    """Read the rows that may have changed since the last cut of this process.

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
    """One following cut."""

    def __init__(self, environment: Environment, cut: Cut, view: View, moment: Any) -> None:
        self._environment, self._cut, self._view, self._moment = environment, cut, view, moment
        self._intervals = dict(view.intervals)
        self._contents: dict[tuple[str, Inbox], InboxContents] = {}
        # Places of inboxes that may have records.
        self._filled = {*view.pending, *_due_intervals(view)}
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
            self._intervals.update((place, _merge_rows(row)) for place, row in rows.items())
            to_read = self._filled - self._read
        yield from scan_rest(self._cut.plan, self._cut.head.body, self._contents, self._moment)
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


def _due_intervals(view: View) -> list[Place]:
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


def merge_rows(rows: Mapping[Place, StoredRow]) -> dict[Place, StoredRow]:
    """Return rows of intervals as a view keeps them."""
    return {place: _merge_rows(row) for place, row in rows.items()}


def _merge_rows(row: StoredRow) -> StoredRow:
    """Return the row of an interval without its ids, with its slabs summed up in the first one."""
    body: Interval = row.body
    total = Slab(0, body.hold, body.due, body.processing_due, body.timers)
    count = len(body.slabs) if is_crowded(2 * len(body.slabs)) else 1  # As a merge asks.
    slabs = (total, *(Slab(0),) * (count - 1))
    sent = None if body.sent is None else Sent(body.sent.number)
    return StoredRow(body._replace(slabs=slabs, ids=(), inlined={}, sent=sent), row.version)
