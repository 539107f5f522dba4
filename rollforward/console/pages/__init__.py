"""Pages of the console: they work without a script, by keyboard and on a phone."""

from rollforward.console.pages import dead_tasks, frame, overview, records, runs, waiting

ROUTES: frame.Routes = (
    *overview.ROUTES,
    *dead_tasks.ROUTES,
    *runs.ROUTES,
    *waiting.ROUTES,
    *records.ROUTES,
    *frame.ROUTES,
)

__all__ = ["ROUTES"]
