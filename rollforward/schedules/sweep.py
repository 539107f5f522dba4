"""The sweep of schedules: it writes the rows of those in the code, and moves overdue rows."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.run_all import run_all
from rollforward.schedules.declaration import Schedule
from rollforward.schedules.entities import ScheduleRow, overdue_rows, row_key
from rollforward.schedules.ticks import DeclaredSchedule, Tick, advance, put_row
from rollforward.tasks.errors import OtherVersionError

log = logging.getLogger(__name__)

# The time that a tick's task has, until the sweep does its work.
STALE_S = 60.0
MAX_PER_SWEEP = 500
# The pause between two looks at a row that this version does not know, or fails at.
UNKNOWN = datetime.timedelta(hours=1)


def sweep(
    clients: Clients, schedules: Mapping[str, DeclaredSchedule], *, stale_s: float = STALE_S
) -> Mapping[str, int]:
    """Write missing rows, and move overdue ones; return how many of each."""
    written = _write_rows(
        clients, [part for part in schedules.values() if isinstance(part, Schedule)]
    )
    now_utc = naive_utc(clients.clock.now())
    rows = overdue_rows(now_utc - datetime.timedelta(seconds=stale_s)).fetch(MAX_PER_SWEEP)
    run_all(
        (f"the schedule {row.key.id()} was not moved", partial(_move, clients, schedules, row))
        for row in rows
    ).raise_first()
    return {"written": written, "overdue": len(rows)}


def _move(clients: Clients, schedules: Mapping[str, DeclaredSchedule], row: ScheduleRow) -> None:
    now_utc = naive_utc(clients.clock.now())
    try:
        advance(clients, schedules, _tick_of(row))
    except Exception as error:
        if row.next_at < now_utc - UNKNOWN:
            transact(lambda: _put_off(row, now_utc))
        if not isinstance(error, OtherVersionError):
            raise
        if _is_known(schedules, row):  # One user's row says nothing about the sweep's health.
            log.warning(
                "the schedule %s cannot run: put it again, or delete it: %s", row.key.id(), error
            )


def late_s(clients: Clients, schedules: Mapping[str, DeclaredSchedule]) -> float:
    """Return for how many seconds the first row that this version knows has been overdue.

    A row of a schedule that was removed from the code is overdue for ever.
    """
    now_utc = naive_utc(clients.clock.now())
    first = overdue_rows(now_utc).get()
    if first is not None and not _is_known(schedules, first):
        rows = overdue_rows(now_utc).fetch(MAX_PER_SWEEP)
        first = next((row for row in rows if _is_known(schedules, row)), None)
    return (now_utc - first.next_at).total_seconds() if first is not None else 0.0


def _is_known(schedules: Mapping[str, DeclaredSchedule], row: ScheduleRow) -> bool:
    return row.key.id().partition("|")[0] in schedules


def _write_rows(clients: Clients, schedules: Sequence[Schedule]) -> int:
    keys = [row_key(schedule.name, "") for schedule in schedules]
    written = 0
    for schedule, row in zip(schedules, ndb.get_multi(keys), strict=True):
        if row is None or (row.cron, row.tz) != (schedule.cron, schedule.tz):
            key = row_key(schedule.name, "")
            transact(
                lambda part=schedule, key=key: put_row(clients, key, part.cron, part.tz, None)  # type: ignore[misc]
            )
            written += 1
    return written


def _put_off(row: ScheduleRow, now_utc: datetime.datetime) -> None:
    """Keep a row whose tick fails from starving others; its missed ticks stay known."""
    stored = row.key.get()
    if stored is not None and stored.next_at == row.next_at:
        stored.put_off(now_utc)
        stored.put()


def _tick_of(row: ScheduleRow) -> Tick:
    return Tick(row.key.id(), row.next_at.replace(tzinfo=datetime.UTC), row.revision)
