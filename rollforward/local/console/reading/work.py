"""Queues and tasks as the pages show them, and problems that need attention."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server import views
from rollforward.local.cloudtasks.store.records import TaskRecord
from rollforward.look import lists
from rollforward.look.attention import Attention
from rollforward.look.words import age, pluralize

PAGE_TASKS = 50
MAX_SEARCHED = 5000
MAX_SORTED = 2000
AGES = {name: text for name, text in lists.AGES.items() if not name.startswith("before-")}
SORTS: dict[str, Callable[[TaskRecord], float]] = {
    "oldest": lambda task: task.sequence,
    "attempts": lambda task: -task.dispatch_count,
}
_SCAN_PAGE = 250
_KEPT_SAMPLES = 120
_STUCK_S = 60.0
_MANY_ATTEMPTS = 5
# A request that takes longer is looked at; a person who comes after it wants to know for a while.
_SLOW_S, _RECENT_S = 15.0, 300.0
_LOOKED_AT_RUNNING, _LOOKED_AT_ENDED = 60, 2000


def queue_rows(engine: Engine) -> list[dict[str, Any]]:
    """Return every queue with its load; adds `waiting` and `oldest_at`."""
    with engine.lock:
        rows = views.queues_json(engine)
        tasks_by_queue = {queue.name: queue.tasks for queue in engine.queues.all()}
        for row in rows:
            tasks = tasks_by_queue[row["name"]].values()
            row["waiting"] = row["counts"]["scheduled"] + row["counts"]["queued"]
            row["oldest_at"] = min((task.created_at for task in tasks), default=None)
            row["overdue_s"] = _overdue_s(engine, tasks)
        return rows


def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the task counts of all queues together."""
    return {state: sum(row["counts"][state] for row in rows) for state in views.STATES}


@dataclass(frozen=True)
class TaskFilter:
    """A filter of tasks to show or to act on; an empty field lets all pass.

    Attributes:
        queue: The short id of a queue.
        state: One of views.STATES, or LIVE for all that have not ended.
        text: In name, path, last error or body.
        before: Only tasks created before the one with this sequence.
        age: Only tasks created within one of AGES.
        since: The moment at which that time begins, in seconds since 1970.
        sort: One of SORTS; "" is the newest first.
    """

    queue: str = ""
    state: str = ""
    text: str = ""
    before: int = 0
    age: str = ""
    since: float = 0.0
    sort: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """The fields of an address that ask for the same, without `before`."""
        fields = {"queue": self.queue, "state": self.state, "q": self.text}
        fields |= {"age": self.age, "sort": self.sort}
        return {name: value for name, value in fields.items() if value}

    @property
    def fixed_fields(self) -> dict[str, str]:
        """The same for a change of many: its time does not move on while a person reads."""
        fields = {"queue": self.queue, "state": self.state, "q": self.text}
        fields |= {"since": f"{self.since:.3f}" if self.since else ""}
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True)
class Found:
    """Tasks, newest first.

    Attributes:
        searched_to: The sequence below which nothing was looked at; 0: all was.
    """

    tasks: list[TaskRecord]
    searched_to: int = 0


def find_tasks(engine: Engine, chosen: TaskFilter, limit: int = PAGE_TASKS) -> Found:
    """Return at most `limit` tasks; a text is looked for in MAX_SEARCHED of them."""
    queue_name = engine.place.queue_name(chosen.queue) if chosen.queue else ""
    if chosen.text:
        return _search(engine, queue_name, chosen, limit)
    tasks = engine.history.newest(queue_name, chosen.state, chosen.before, limit + 1)
    return _first(_recent(tasks, chosen), limit)


def sorted_tasks(engine: Engine, chosen: TaskFilter, limit: int = PAGE_TASKS) -> Found:
    """Return the first tasks by an order of SORTS, among the newest that match."""
    search = find_tasks(engine, chosen, MAX_SORTED)
    tasks = sorted(search.tasks, key=SORTS[chosen.sort])
    return Found(tasks[:limit], search.searched_to)


def attention(engine: Engine, rows: list[dict[str, Any]]) -> list[Attention]:
    """Return the problems of the queues and their tasks."""
    warnings: list[Attention] = []
    for row in rows:
        name, link = row["id"], f"/tasks?queue={row['id']}"
        if row["state"] == "paused" and row["waiting"]:
            warnings.append(
                Attention("⏸", "retrying", f"{name} is paused, {row['waiting']} wait", link)
            )
        elif row["overdue_s"] > _STUCK_S:
            late = age(row["overdue_s"])
            warnings.append(Attention("◷", "failed", f"{name} runs {late} behind", link))
        if row["counts"]["failed"]:
            count = row["counts"]["failed"]
            text = f"{name}: {pluralize(count, 'task')} out of retries"
            warnings.append(Attention("✕", "failed", text, f"{link}&state=failed"))
        if row["speed_factor"] < 1:
            text = f"{name} is slowed down by 429 or 5xx answers"
            warnings.append(Attention("↻", "retrying", text, f"{link}&state=retrying"))
    warnings += _slow(engine)
    retrying = engine.history.newest("", "retrying", 0, 1000)
    stubborn = [task for task in retrying if task.dispatch_count >= _MANY_ATTEMPTS]
    if stubborn:
        text = f"{pluralize(len(stubborn), 'task')} tried {_MANY_ATTEMPTS} times or more"
        warnings.append(Attention("↻", "retrying", text, "/tasks?state=retrying"))
    return warnings


def _slow(engine: Engine) -> list[Attention]:
    """Return what hangs, or hung in the last minutes: a queue that keeps up again says nothing."""
    now_s, warnings = engine.clock.now(), []
    for task, rows in engine.history.running(_LOOKED_AT_RUNNING):
        since = min(
            (row["started_at"] for row in rows if row["duration_ms"] is None), default=now_s
        )
        if now_s - since > _SLOW_S:
            text = f"{engine.place.queue_id(task.queue)}: an attempt runs for {age(now_s - since)}"
            warnings.append(Attention("◔", "retrying", text, "/workers"))
    recent = engine.history.attempts_since(now_s - _RECENT_S, _LOOKED_AT_ENDED)
    ended = [row for row in recent if row["duration_ms"] is not None]
    unanswered = sum(row["status"] is None for row in ended)
    link = "/latency?range=5m"
    if unanswered:
        text = f"{pluralize(unanswered, 'attempt')} without a response in the last 5 minutes"
        warnings.append(Attention("✕", "failed", text, f"{link}&sort=errors"))
    longest_s = max((row["duration_ms"] for row in ended), default=0.0) / 1000
    if longest_s > _SLOW_S:
        text = f"An attempt took {age(longest_s)} in the last 5 minutes"
        warnings.append(Attention("◷", "retrying", text, f"{link}&sort=p95"))
    return warnings


class Samples:
    """Two minutes of depth and flow, one sample a second."""

    def __init__(self, engine: Engine) -> None:
        """Begin without samples."""
        self.engine = engine
        self.depth: deque[float] = deque(maxlen=_KEPT_SAMPLES)
        self.created: deque[float] = deque(maxlen=_KEPT_SAMPLES)
        self.ended: deque[float] = deque(maxlen=_KEPT_SAMPLES)
        self._last: tuple[float, int, int] | None = None

    def take(self, now_s: float | None = None) -> None:
        """Take a sample; rates are since the one before."""
        now_s = time.monotonic() if now_s is None else now_s
        depth = sum(sum(queue.phases.values()) for queue in self.engine.queues.all())
        newest = self.engine.history.newest(limit=1)
        sequence = newest[0].sequence if newest else 0
        if self._last is not None and now_s > self._last[0]:
            span_s = now_s - self._last[0]
            created = max(0, sequence - self._last[1])
            ended = max(0, created - (depth - self._last[2]))
            self.created.append(created / span_s)
            self.ended.append(ended / span_s)
        self.depth.append(depth)
        self._last = (now_s, sequence, depth)


def _overdue_s(engine: Engine, tasks: Any) -> float:
    """Return how long the task that waits longest has been due."""
    now_s = engine.clock.now()
    return max((now_s - task.due_at for task in tasks if not task.running), default=0.0)


def _search(engine: Engine, queue_name: str, chosen: TaskFilter, limit: int) -> Found:
    """Return the tasks that hold the text."""
    sought, below = chosen.text.lower(), chosen.before
    matches: list[TaskRecord] = []
    for _ in range(MAX_SEARCHED // _SCAN_PAGE):
        tasks = engine.history.newest(queue_name, chosen.state, below, _SCAN_PAGE)
        young = _recent(tasks, chosen)
        matches += [task for task in young if _matches(engine, task, sought)]
        if len(matches) > limit or len(young) < _SCAN_PAGE:
            return _first(matches, limit)
        below = tasks[-1].sequence
    return Found(matches, below)


def _recent(tasks: list[TaskRecord], chosen: TaskFilter) -> list[TaskRecord]:
    """Return the tasks that are young enough: older ones are behind them."""
    return [task for task in tasks if task.created_at >= chosen.since]


def _first(tasks: list[TaskRecord], limit: int) -> Found:
    is_cut = len(tasks) > limit
    return Found(tasks[:limit], tasks[limit - 1].sequence if is_cut else 0)


def _matches(engine: Engine, task: TaskRecord, sought: str) -> bool:
    readable = f"{task.name} {task.path} {engine.history.last_error(task)}".lower()
    return sought in readable or sought in task.spec.decode("utf-8", "ignore").lower()
