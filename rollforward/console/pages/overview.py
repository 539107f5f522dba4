"""The first page: what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from flask.typing import ResponseReturnValue

from rollforward.console.api.queries import failing_calls
from rollforward.console.api.rows import audit_row
from rollforward.console.pages.frame import Routes, page, render
from rollforward.console.pages.records import recent_alerts
from rollforward.flask.context import clients, registry, settings
from rollforward.flask.endpoints.health import service_states
from rollforward.look.attention import Attention
from rollforward.look.words import age, pluralize
from rollforward.operations import DeadTaskFilter, list_audit
from rollforward.operations.dead_task_lists import count_dead_tasks
from rollforward.operations.sweeps import last_sweeps
from rollforward.operations.waiting import failing_tasks, recent_queue_states
from rollforward.outbox.depth import Depth, depth
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.pattern import Pattern, SteppedPattern
from rollforward.tasks.runs import LetterQuery, RunQuery

MAX_COUNTED = 1_000
MAX_FAILING = 20
MAX_FAILED = 1_000
# Of patterns whose failed runs are listed and not counted, such as builds of views.
MAX_LISTED = 20
# Each costs a query.
MAX_PARTS_WITH_LETTERS = 20
# A call now and then may fail: it is repeated.
FAILING_CALLS = 3
_COUNTED_GAUGES = (
    *("dead_tasks_open", "flows_failed", "streams_dead_letters", "pull_queue_dead_letters"),
    *("outbox_oldest_seconds", "outbox_oldest_unacked_seconds"),
)
_KINDS = {"flows": "flow", "materialized-views": "view build"}
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
        is_failed_cut=any(count == _most(name) for name, count in failed_runs.items()),
        depth=rows,
        failing_count=len(failing),
        is_failing_cut=len(failing) == MAX_FAILING,
        attention=[
            *_unavailable(),
            *_queues(),
            *_failed(failed_runs),
            *_dead(dead_count),
            *_letters(),
            *_late(rows),
            *_retried_tasks(failing),
            *_sweeps(),
            *_above_alerts(),
        ],
        entries=[audit_row(entry) for entry in entries],
    )


def _unavailable() -> list[Attention]:
    """Return what does not answer, or fails calls. Without Datastore there is no page."""
    states, away = service_states(), []
    if not states["tasks"]:
        text = "Cloud Tasks does not answer: committed tasks are kept, and wait"
        away.append(Attention("✕", "failed", text, "/outbox"))
    if settings().memcached and not states["memcached"]:
        text = "memcached does not answer: the results are the same, and batches smaller"
        away.append(Attention("◷", "retrying", text, "/lag"))
    failing = failing_calls(FAILING_CALLS)
    return [*away, *(Attention("◷", "retrying", text, "/waiting") for text in failing)]


def _queues() -> list[Attention]:
    """Return queues of the app's tasks that deliver nothing, if the app may list them."""
    queues = recent_queue_states(clients())
    if queues is None:
        return []
    states = {queue.name: queue.state for queue in queues}
    needed = sorted({task.queue for task in registry().tasks.values()})
    still = [name for name in needed if states.get(name, "running") != "running"]
    texts = [f"The queue {name} is {states[name]}: resume it" for name in still]
    texts += [f"The queue {name} does not exist" for name in needed if name not in states]
    return [Attention("✕", "failed", text, "/waiting") for text in texts]


def _failed_runs() -> dict[str, int]:
    """Return how many runs wait for a person, by pattern, as far as they are counted."""
    return {
        name: _count_failed(name, pattern)
        for name, pattern in registry().patterns.items()
        if pattern.can_fail
    }


def _count_failed(name: str, pattern: Pattern[Any]) -> int:
    if isinstance(pattern, SteppedPattern):
        return pattern.count_failed(MAX_FAILED)
    if not registry().parts(name):
        return 0
    query = RunQuery(state="failed", pattern=name, limit=MAX_LISTED)
    return min(MAX_LISTED, len(registry().runs(clients(), query).runs))


def _most(pattern: str) -> int:
    is_counted = isinstance(registry().patterns[pattern], SteppedPattern)
    return MAX_FAILED if is_counted else MAX_LISTED


def _failed(counts: dict[str, int]) -> list[Attention]:
    attention = []
    for pattern, count in counts.items():
        if count:
            suffix = " or more" if count == _most(pattern) else ""
            text = f"{pluralize(count, _KINDS.get(pattern, 'run'))}{suffix} failed"
            text += ": retry or cancel" if _most(pattern) == MAX_FAILED else ""
            link = f"/runs?pattern={pattern}&state=failed"
            attention.append(Attention("✕", "failed", text, link))
    return attention


def _letters() -> list[Attention]:
    """Return parts with dead letters: pipelines and pull queues."""
    attention = []
    with_letters = [
        (name, part)
        for name, pattern in registry().patterns.items()
        if type(pattern).letters is not Pattern.letters
        for part in pattern.part_names(registry().parts(name))
    ]
    for pattern, part in with_letters[:MAX_PARTS_WITH_LETTERS]:
        if registry().letters(clients(), pattern, part, LetterQuery(limit=1)).letters:
            text = f"{part} has dead letters to replay or delete"
            attention.append(Attention("✕", "failed", text, f"/letters/{pattern}/{quote(part)}"))
    return attention


def _dead(count: int) -> list[Attention]:
    if not count:
        return []
    suffix = " or more" if count == MAX_COUNTED else ""
    text = f"{pluralize(count, 'dead task')}{suffix} to replay or delete"
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


def _retried_tasks(failing: Sequence[TaskAttempts]) -> list[Attention]:
    unknown = sum(row.unknown_since is not None for row in failing)
    counts = {
        "failed and will be retried": len(failing) - unknown,
        "unknown to this version of the code: deploy one that knows them": unknown,
    }
    suffix = " or more" if len(failing) == MAX_FAILING else ""
    return [
        Attention("↻", "retrying", f"{pluralize(count, 'task')}{suffix} {words}", "/waiting")
        for words, count in counts.items()
        if count
    ]


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


def _above_alerts() -> list[Attention]:
    """Return gauges above their alerts that no other line of the page counts."""
    return [
        Attention("◷", "retrying", text, "/lag")
        for name, text in recent_alerts().items()
        if name not in _COUNTED_GAUGES
    ]


ROUTES: Routes = (("/", "GET", overview),)
