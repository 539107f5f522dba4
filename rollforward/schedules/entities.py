"""Rows of schedules.

ScheduleRow
    Key: "<name of the schedule>|<id>": the user's id, "" for the schedule that is in the code.
    Queries: next_at <= a time, by next_at: overdue rows. next_at between two times, by next_at and
    key: a list. Single-property index. A range of keys: the rows of one schedule.
    Growth: a row for each schedule, until it is removed. 500 and more with one next tick would be
    slowed down when they are written in the same second.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refusing_key
from rollforward.runtime.clock import naive_utc, parse_time, time_text
from rollforward.runtime.texts import plain_text

# What a row knows of its past, for operators: it is written with the row anyway.
MAX_RECENT = 10
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)

_SUBJECT = "a schedule"


@dataclass(frozen=True)
class RecentTick:
    """A tick that ran.

    Attributes:
        revision: The one that its row had.
        path, queue: Those of its work; "": a version that did not store them ran it.
    """

    at: datetime.datetime
    revision: str
    path: str = ""
    queue: str = ""


class ScheduleRow(ndb.Model):
    """The next tick of a schedule."""

    cron = ndb.TextProperty(required=True)
    tz = ndb.TextProperty(required=True)
    body = ndb.TextProperty()  # Arguments of its task, as JSON; None: the time of the tick.
    next_at = ndb.DateTimeProperty()  # None: never again.
    revision = ndb.TextProperty(required=True)  # Another one whenever the schedule is changed.
    # No version could work on it: its first missed tick, and the time to which it was put off.
    missed_at = ndb.DateTimeProperty(indexed=False)
    put_off_to = ndb.DateTimeProperty(indexed=False)
    # The last ticks that ran, the newest first: a JSON list of pairs, a time and an object with the
    # revision, the path and the queue. Earlier versions write the revision in the object's place,
    # and read an object without an error.
    recent = ndb.TextProperty()

    @property
    def first_missed(self) -> datetime.datetime | None:
        """The tick for which the row waits, from which on it makes up for a downtime."""
        is_put_off = self.put_off_to is not None and self.put_off_to == self.next_at
        tick: datetime.datetime | None = self.missed_at if is_put_off else self.next_at
        return tick

    def put_off(self, to: datetime.datetime) -> None:
        """Let sweeps come to the row later, as if its tick were at another time."""
        self.missed_at = self.first_missed
        self.next_at = self.put_off_to = to

    @property
    def recent_ticks(self) -> Sequence[RecentTick]:
        """Return the last ticks that ran, the newest first."""
        return [_recent_tick(at, work) for at, work in json.loads(self.recent or "[]")]

    def note_ticks(self, ticks: Sequence[datetime.datetime], path: str, queue: str) -> None:
        """Note that ticks of this revision run, as tasks of a path in a queue."""
        work = {"revision": self.revision, "path": path, "queue": queue}
        pairs = [[time_text(naive_utc(at)), work] for at in reversed(ticks)]
        self.recent = json.dumps([*pairs, *json.loads(self.recent or "[]")][:MAX_RECENT])


def _recent_tick(at: str, work: dict[str, str] | str) -> RecentTick:
    time = parse_time(at).replace(tzinfo=datetime.UTC)
    if isinstance(work, str):
        return RecentTick(time, work)
    return RecentTick(time, work["revision"], work["path"], work["queue"])


def row_key(schedule: str, row_id: str) -> Any:
    """Return the key of a row."""
    return refusing_key(_SUBJECT, ScheduleRow, f"{schedule}|{plain_text(row_id)}")


def rows_of(schedule: str, start_after: str) -> Any:
    """Return the query for the rows of a schedule, by their ids, behind one of them."""
    key = ScheduleRow._key
    ends_before = refusing_key(_SUBJECT, ScheduleRow, f"{schedule}}}")
    return ScheduleRow.query(key > row_key(schedule, start_after), key < ends_before).order(key)


def overdue_rows(end_utc: datetime.datetime) -> Any:
    """Return the query for the rows whose tick was due by some time, the first one first."""
    next_at: Any = ScheduleRow.next_at
    # The lower bound keeps out rows without a tick: None sorts first.
    return ScheduleRow.query(next_at > EPOCH, next_at <= end_utc).order(next_at)


def rows_between(
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    start_after: tuple[datetime.datetime, str] | None,
) -> Sequence[Any]:
    """Return the queries, one behind the other, for the rows of all schedules by their next tick.

    Args:
        since, until: The next tick is then or later, and before; None: at any time.
        start_after: The tick and the key's id of a row; None: from the first one.
    """
    key: Any = ScheduleRow._key
    next_at: Any = ScheduleRow.next_at
    upper = [next_at < until] if until else []
    if start_after is None:
        lower = next_at >= since if since else next_at > EPOCH  # None sorts first.
        return [ScheduleRow.query(lower, *upper).order(next_at)]
    at, row_id = start_after
    # Those of the same tick are many: users like nine o'clock.
    same = ScheduleRow.query(
        next_at == at, key > refusing_key(_SUBJECT, ScheduleRow, row_id)
    ).order(key)
    return [same, ScheduleRow.query(next_at > at, *upper).order(next_at)]
