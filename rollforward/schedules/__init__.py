"""Schedules: cron expressions in code, and one for each user in rows; each tick once.

    from rollforward.schedules import schedule

    @schedule("0 9 * * 1", tz="Europe/Berlin", missed="once")
    def send_report(at: datetime.datetime) -> None:
        print(f"the report of {at}")

A row holds the time of the next tick, and a task is due then. Its delivery enqueues the work and
the task of the tick after it, in the commit that moves the row. So a tick's work is enqueued once,
however often and late the task comes. The work itself is a task as any other: it may be delivered
more than once.

`missed` says what becomes of ticks while nothing ran: "once" runs the last of them, "all" runs each
of them, "skip" runs none that is more than five minutes late.

Wall clock: a tick in an hour that summer time skips runs right after it; an hour that is repeated
runs once, unless the minute or the hour is `*`. That is how cron of Debian does it.

`UserSchedules` keeps rows of an app's users, each with its own expression, zone and arguments. Only
ticks cost, not rows that wait.

Lost on failure: nothing. If a tick's task is lost, the sweep does its work.

Routes: POST /tasks/schedules/tick; GET /cron/schedules/sweep.
Source: Oban's DynamicCron.
"""

from rollforward.schedules.cron import BadScheduleError
from rollforward.schedules.declaration import Schedule, UserSchedules, schedule

__all__ = [
    "BadScheduleError",
    "Schedule",
    "UserSchedules",
    "schedule",
]
