"""Pages of the console: they work without a script, by keyboard and on a phone."""

from rollforward.console.pages import (
    dead_tasks,
    enqueue,
    frame,
    lanes,
    letters,
    overview,
    queues,
    records,
    runs,
    schedules,
    waiting,
)

ROUTES: frame.Routes = (
    *overview.ROUTES,
    *dead_tasks.ROUTES,
    *enqueue.ROUTES,
    *runs.ROUTES,
    *letters.ROUTES,
    *waiting.ROUTES,
    *queues.ROUTES,
    *lanes.ROUTES,
    *schedules.ROUTES,
    *records.ROUTES,
    *frame.ROUTES,
)

__all__ = ["ROUTES"]
