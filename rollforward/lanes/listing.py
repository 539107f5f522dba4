"""Lanes as an operator sees them: tasks that wait or run, and keys that rest.

A lane is a standing part, by its name. Each key is one more, "<lane>|<key>": no list has it but the
lane's own pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from google.cloud import ndb

from rollforward.lanes.declaration import Lane, LaneKey
from rollforward.lanes.errors import BadLaneError
from rollforward.lanes.reading import MAX_COUNTED, KeyState, backlog_of
from rollforward.lanes.rows.entities import (
    LaneState,
    LaneTask,
    state_key,
    task_key,
    unquote,
    waiting,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.runs import Fact, RunDetails, UnknownRunError, named_run

if TYPE_CHECKING:
    import datetime

PATTERN = "lanes"
LaneVerb = Literal["pause", "resume", "drain"]
LANE_VERBS: tuple[LaneVerb, ...] = ("pause", "resume", "drain")
MAX_TASKS = 20
MAX_REASON_CHARS = 200


def lane_named(lanes: Sequence[Lane], name: str) -> Lane:
    """Return a lane of the app.

    Raises:
        UnknownRunError: there is none of this name.
    """
    for lane in lanes:
        if lane.name == name:
            return lane
    raise UnknownRunError(f"there is no lane {name}")


def key_named(lanes: Sequence[Lane], run_id: str) -> LaneKey:
    """Return a key by "<lane>|<key>", the key quoted.

    Raises:
        UnknownRunError: the app has no lane of this name, or the key is invalid.
    """
    name, _, key = run_id.partition("|")
    try:
        return lane_named(lanes, name).key(unquote(key))
    except BadLaneError as error:
        raise UnknownRunError(str(error)) from error


def details(clients: Clients, lanes: Sequence[Lane], run_id: str) -> RunDetails:
    """Return a lane, or a key of it.

    Raises:
        UnknownRunError: the app has no lane of this name, or the key is invalid.
    """
    if "|" in run_id:
        return _key_details(clients, key_named(lanes, run_id))
    lane = lane_named(lanes, run_id)
    backlog = backlog_of(clients, lane)
    numbers: dict[str, Fact] = {
        **facts_of(lane),
        "tasks": backlog.waiting,
        "oldest_s": backlog.oldest_s,
        "paused_keys": backlog.paused,
        "blocked_keys": backlog.blocked,
        "counted_up_to": MAX_COUNTED,
    }
    return RunDetails(named_run(PATTERN, lane.name), numbers=numbers)


def facts_of(lane: Lane) -> dict[str, Fact]:
    """Return the declaration of a lane in words."""
    rate, timing = lane.rate, getattr(lane, "timing", None)
    gathers: dict[str, Fact] = {} if timing is None else {"gathers": type(timing).__name__.lower()}
    return gathers | {
        "queue": lane.queue,
        "order": "yes" if lane.order else "no",
        "limit": lane.limit,
        "rate": f"{rate.tasks:g} in {rate.per_s:g} s" if rate else "any",
        "weight": lane.weight,
        "dead_task": "blocks its key" if lane.on_dead == "block" else "lets the next one pass",
    }


def tasks_of(key: LaneKey) -> list[Mapping[str, Any]]:
    """Return the first tasks of a key: at work, and next in turn."""
    state: LaneState | None = state_key(key.id).get()
    began = _started(state)
    rows: list[LaneTask] = waiting(key.id).fetch(MAX_TASKS)
    shown = {row.key: row for row in rows}
    others = [task_key(task_id) for task_id in began if task_key(task_id) not in shown]
    shown |= {row.key: row for row in ndb.get_multi(others) if row is not None}
    return [_task(row, began.get(row.key.id())) for row in shown.values()]


def _started(state: LaneState | None) -> Mapping[str, float]:
    """Return when the deliveries at work have begun, by the tasks that each is at, or before."""
    if state is None:
        return {}
    if state.gathered:
        return {task_id: claim.began for claim in state.claims for task_id in state.ids_at_work}
    return {task_id: claim.began for claim in state.claims for task_id in claim.tasks[:1]}


def _task(row: LaneTask, began: float | None) -> Mapping[str, Any]:
    return {
        "id": row.key.id(),
        "path": row.path,
        "body": row.body,
        "added": aware_utc(row.added),
        "began": began,
        "failures": int(row.failures),
        "waits": int(row.waits),
        "not_before": aware_utc(row.not_before),
        "reason": (row.reason or "")[:MAX_REASON_CHARS],
        "traceparent": row.traceparent or "",
    }


def next_at(clients: Clients, key: LaneKey) -> datetime.datetime | None:
    """Return when the rate lets the next task of a key begin; None: now."""
    state: LaneState | None = state_key(key.id).get() if key.lane.rate is not None else None
    if state is None or key.lane.rate is None:
        return None
    now_utc = clients.clock.now()
    at = key.lane.rate.next_at(state.arrival_ms, int(now_utc.timestamp() * 1000))
    return at if at > now_utc else None


def dead_task_of(state: KeyState) -> DeadTask | None:
    """Return the dead task that blocks a key; None: none does, or it is gone."""
    dead: DeadTask | None = DeadTask.get_by_id(state.blocked_by) if state.blocked_by else None
    return dead


def _key_details(clients: Clients, key: LaneKey) -> RunDetails:
    state = key.state()
    numbers: dict[str, Fact] = {
        "tasks": state.waiting,
        "counted_up_to": MAX_COUNTED,
        "paused": "yes" if state.is_paused else "no",
        "blocked_by": state.blocked_by or "nothing",
        "deliveries_at_work": len(state.claims),
    }
    if state.first is not None:
        numbers["first_at"] = state.first.timestamp()
    if (at := next_at(clients, key)) is not None:
        numbers["next_at"] = at.timestamp()
    rows = [_row(task) for task in tasks_of(key)]
    return RunDetails(named_run(PATTERN, key.id), numbers=numbers, rows=rows)


def _row(task: Mapping[str, Any]) -> dict[str, Fact]:
    row: dict[str, Fact] = {
        "task": task["path"],
        "added_at": task["added"].timestamp(),
        "failures": task["failures"],
    }
    if task["began"] is not None:
        row["begun_at"] = task["began"]
    if task["not_before"] is not None:
        row["not_before_at"] = task["not_before"].timestamp()
    if task["reason"]:
        row["error"] = task["reason"]
    return row
