"""The first page: what needs attention."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from rollforward.console.api.rows import audit_row
from rollforward.console.pages.frame import Routes, page, render
from rollforward.flask.context import clients, registry
from rollforward.look.attention import Attention
from rollforward.look.words import age, counted
from rollforward.operations import DeadTaskFilter, list_audit
from rollforward.operations.dead_task_lists import count_dead_tasks
from rollforward.operations.sweeps import last_sweeps
from rollforward.operations.waiting import failing_tasks
from rollforward.outbox.depth import Depth, depth
from rollforward.tasks.pattern import SteppedPattern

MAX_COUNTED = 1_000
MAX_FAILING = 20
MAX_FAILED = 1_000
# As docs/operations.md says of the gauges.
LATE_S, UNACKED_LATE_S, SWEEP_LATE_S = 120.0, 600.0, 600.0


@page
def overview() -> ResponseReturnValue:
    """Show what needs attention, and the last changes."""
    dead_count = count_dead_tasks(DeadTaskFilter(), MAX_COUNTED)
    rows = depth(clients())
    failing = failing_tasks(MAX_FAILING)
    failed_runs = _failed_runs()
    entries, _ = list_audit(limit=5)
    return render(
        "overview.html",
        dead_count=dead_count,
        is_cut=dead_count == MAX_COUNTED,
        failed_count=sum(failed_runs.values()),
        is_failed_cut=MAX_FAILED in failed_runs.values(),
        depth=rows,
        failing_count=len(failing),
        is_failing_cut=len(failing) == MAX_FAILING,
        attention=[
            *_failed(failed_runs),
            *_dead(dead_count),
            *_late(rows),
            *_failing(len(failing)),
            *_sweeps(),
        ],
        entries=[audit_row(entry) for entry in entries],
    )


def _failed_runs() -> dict[str, int]:
    """Return how many runs wait for a person, by pattern; at most MAX_FAILED are counted."""
    return {
        name: pattern.count_failed(MAX_FAILED)
        for name, pattern in registry().patterns.items()
        if isinstance(pattern, SteppedPattern)
    }


def _failed(counts: dict[str, int]) -> list[Attention]:
    attention = []
    for pattern, count in counts.items():
        if count:
            suffix = " or more" if count == MAX_FAILED else ""
            text = f"{counted(count, pattern.removesuffix('s'))}{suffix} failed: retry or cancel"
            link = f"/runs?pattern={pattern}&state=failed"
            attention.append(Attention("✕", "failed", text, link))
    return attention


def _dead(count: int) -> list[Attention]:
    if not count:
        return []
    suffix = " or more" if count == MAX_COUNTED else ""
    text = f"{counted(count, 'dead task')}{suffix} to replay or delete"
    return [Attention("✕", "failed", text, "/dead")]


def _late(rows: Depth) -> list[Attention]:
    late = []
    if rows.oldest_s > LATE_S:
        text = f"A row of the outbox has no task since {age(rows.oldest_s)}"
        late.append(Attention("◷", "retrying", text, "/outbox"))
    if rows.oldest_unacked_s > UNACKED_LATE_S:
        text = f"A task has not done its work since {age(rows.oldest_unacked_s)}"
        late.append(Attention("◷", "retrying", text, "/outbox"))
    return late


def _failing(count: int) -> list[Attention]:
    if not count:
        return []
    suffix = " or more" if count == MAX_FAILING else ""
    text = f"{counted(count, 'task')}{suffix} failed and will be retried"
    return [Attention("↻", "retrying", text, "/waiting")]


def _sweeps() -> list[Attention]:
    now_utc = clients().clock.now()
    late = [
        name
        for name, at in last_sweeps(clients(), registry().swept).items()
        if (now_utc - at).total_seconds() > SWEEP_LATE_S and name != "operations"
    ]
    if not late:
        return []
    text = f"{', '.join(late)} not swept for ten minutes"
    return [Attention("◷", "failed", text, "/schedules")]


ROUTES: Routes = (("/", "GET", overview),)
