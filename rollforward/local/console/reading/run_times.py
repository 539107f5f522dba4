"""A run's tasks below each other: when each waited in its queue, ran, and waited for an attempt.

Only numbers and coordinates, which a template draws as SVG.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.local.cloudtasks.store.records import TaskRecord
from rollforward.local.console.reading.attempt_stats import outcome_of, own

WIDTH = 1000.0
MAX_LANES = 60
MAX_EVENTS = 60
_MIN_WIDTH = 2.0
_COLOURS = {"done": "done", "failed": "failed", "deferred": "retrying", "running": "running"}


@dataclass(frozen=True)
class Segment:
    """A part of a task's time: in its queue, running, or between two attempts."""

    kind: str  # queue, running, waiting
    begins: float
    ends: float
    outcome: str = ""  # Of an attempt.

    @property
    def seconds(self) -> float:
        """How long it is."""
        return max(0.0, self.ends - self.begins)


@dataclass(frozen=True)
class Rect:
    """A stretch on the axis."""

    x: float
    width: float
    kind: str
    colour: str


@dataclass(frozen=True)
class TaskLane:
    """A task on the axis of its run."""

    task: TaskRecord
    rects: Sequence[Rect]
    seconds: float
    outcome: str


@dataclass(frozen=True)
class Event:
    """Something that happened to a task of the run."""

    at: float
    task: TaskRecord
    text: str
    colour: str


@dataclass(frozen=True)
class RunTimes:
    """The times of a run's tasks, as far as the queue keeps them.

    Attributes:
        spent_s: Seconds of all tasks together: in the queue, running, waiting for a retry.
        slowest: The task that took the longest.
    """

    begins: float
    seconds: float
    lanes: Sequence[TaskLane]
    events: Sequence[Event]
    event_count: int
    spent_s: dict[str, float]
    slowest: TaskRecord

    def mark(self, share: float) -> float:
        """Return the seconds at a part of the axis."""
        return self.seconds * share


def run_times(
    tasks: Sequence[TaskRecord], attempts: Iterable[Any], now_s: float
) -> RunTimes | None:
    """Return the times of some tasks; None: there are none."""
    if not tasks:
        return None
    rows: dict[int, list[Any]] = {task.sequence: [] for task in tasks}
    for row in own(attempts):
        rows[row["sequence"]].append(row)
    stretches = {task.sequence: _segments(task, rows[task.sequence], now_s) for task in tasks}
    begins = min(task.created_at for task in tasks)
    ends = max(parts[-1].ends for parts in stretches.values())
    spent_s = dict.fromkeys(("queue", "running", "waiting"), 0.0)
    for parts in stretches.values():
        for part in parts:
            spent_s[part.kind] += part.seconds
    in_order = sorted(tasks, key=lambda task: task.created_at)
    seconds = max(0.001, ends - begins)
    events = [event for task in tasks for event in _events(task, rows[task.sequence])]
    events.sort(key=lambda event: event.at)
    return RunTimes(
        begins=begins,
        seconds=seconds,
        lanes=[
            _lane(task, stretches[task.sequence], begins, seconds) for task in in_order[:MAX_LANES]
        ],
        events=events[-MAX_EVENTS:],
        event_count=len(events),
        spent_s=spent_s,
        slowest=max(tasks, key=lambda task: sum(s.seconds for s in stretches[task.sequence])),
    )


def _segments(task: TaskRecord, rows: Sequence[Any], now_s: float) -> list[Segment]:
    """Return the parts of a task's time without a gap, from its creation to its end or to now."""
    stretches, at = [], task.created_at
    for number, row in enumerate(rows):
        begins = max(at, row["started_at"])
        stretches.append(Segment("waiting" if number else "queue", at, begins))
        is_running = row["duration_ms"] is None
        at = max(begins, now_s if is_running else begins + row["duration_ms"] / 1000)
        stretches.append(Segment("running", begins, at, outcome_of(row)))
    ends = now_s if task.ended_at is None else task.ended_at
    if ends > at or not stretches:
        stretches.append(Segment("waiting" if rows else "queue", at, max(at, ends)))
    return stretches


def _lane(
    task: TaskRecord, stretches: Sequence[Segment], begins: float, seconds: float
) -> TaskLane:
    rects = []
    for part in stretches:
        x = min((part.begins - begins) / seconds * WIDTH, WIDTH - _MIN_WIDTH)
        width = part.seconds / seconds * WIDTH
        if part.kind == "running":
            width = max(width, _MIN_WIDTH)
        if width:
            colour = _COLOURS.get(part.outcome, "queued")
            rects.append(Rect(round(x, 2), round(min(width, WIDTH - x), 2), part.kind, colour))
    outcomes = [part.outcome for part in stretches if part.outcome]
    return TaskLane(
        task, rects, stretches[-1].ends - task.created_at, outcomes[-1] if outcomes else "queued"
    )


def _events(task: TaskRecord, rows: Sequence[Any]) -> list[Event]:
    events = [Event(task.created_at, task, "Created", "queued")]
    for number, row in enumerate(rows, start=1):
        events.append(Event(row["started_at"], task, f"Attempt {number} begins", "running"))
        if row["duration_ms"] is not None:
            ended = row["started_at"] + row["duration_ms"] / 1000
            outcome = outcome_of(row)
            why = ", ".join([str(row["error"] or row["status"]), *json.loads(row["faults"])])
            text = f"Attempt {number} {outcome}: {why}"
            events.append(Event(ended, task, text, _COLOURS[outcome]))
    if task.ended_at is not None:
        colour = "done" if task.state == "done" else "failed"
        events.append(Event(task.ended_at, task, task.state.capitalize(), colour))
    return events
