"""Rows of schedules.

ScheduleRow
    Key: "<name of the schedule>|<id>": the user's id, "" for the schedule that is in the code.
    Queries: next_at <= a time, by next_at: overdue rows. Single-property index.
    Growth: a row for each schedule, until it is removed. 500 and more with one next tick would be
    slowed down when they are written in the same second.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)


class ScheduleRow(ndb.Model):
    """The next tick of a schedule."""

    cron = ndb.TextProperty(required=True)
    tz = ndb.TextProperty(required=True)
    body = ndb.TextProperty()  # Arguments of its task, as JSON; None: the time of the tick.
    next_at = ndb.DateTimeProperty()  # None: never again.
    revision = ndb.TextProperty(required=True)  # Another one whenever the schedule is changed.


def row_key(schedule: str, row_id: str) -> Any:
    """Return the key of a row."""
    return ndb.Key(ScheduleRow, f"{schedule}|{row_id}")


def overdue_rows(end_utc: datetime.datetime) -> Any:
    """Return the query for the rows whose tick was due by some time, the first one first."""
    next_at: Any = ScheduleRow.next_at
    # The lower bound keeps out rows without a tick: None sorts first.
    return ScheduleRow.query(next_at > EPOCH, next_at <= end_utc).order(next_at)
