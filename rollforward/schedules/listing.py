"""Schedules as an operator sees them: their last and next ticks, and what became of each run.

A page of rows reads the rows, and of each the state of its last run: three entities a row.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.cloud import ndb

from rollforward.outbox.cancellable import tracked_handle
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.schedules.declaration import MAX_ID_BYTES, Schedule
from rollforward.schedules.entities import row_key, rows_of
from rollforward.schedules.ticks import DeclaredSchedule, Tick, name_of
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.entities import CANCELLED, handle_key
from rollforward.tasks.stored.names import hashed_name

RunState = Literal["waiting", "done", "dead", "deleted", "unknown"]


@dataclass(frozen=True)
class TickRun:
    """The run of a tick.

    Attributes:
        task: The name of its task in Cloud Tasks.
        state: "waiting": its task has not ended, and may be failing. "dead": its dead task is open.
            "deleted": that was deleted. "done": neither. "unknown": too long ago.
        dead_id: The id of its dead task; "": it has none that is open.
        error: Why it is dead.
    """

    at: datetime.datetime
    task: str
    state: RunState
    dead_id: str = ""
    error: str = ""


@dataclass(frozen=True)
class ScheduleState:
    """A schedule: one in the code, or one of a user.

    Attributes:
        id: The user's; "": it is in the code.
        next: None: its first sweep has not come, or no tick is left.
        runs: The last ones, the newest first, as many as were asked for.
    """

    name: str
    id: str
    cron: str
    tz: str
    missed: str
    path: str
    queue: str
    next: datetime.datetime | None
    last: datetime.datetime | None
    runs: Sequence[TickRun]


@dataclass(frozen=True)
class SchedulePage:
    """Schedules, and where the next page begins; None: there is none."""

    schedules: Sequence[ScheduleState]
    next_after: str | None = None


def declared_schedules(
    clients: Clients, parts: Sequence[DeclaredSchedule], *, start_after: str = "", limit: int
) -> SchedulePage:
    """Return schedules that are in the code, by name, each with its last run."""
    schedules = [part for part in parts if isinstance(part, Schedule) and part.name > start_after]
    schedules.sort(key=lambda part: part.name)
    shown = schedules[:limit]
    rows = ndb.get_multi([row_key(part.name, "") for part in shown])
    states = _states(clients, list(zip(shown, [""] * len(shown), rows, strict=True)), 1)
    return SchedulePage(states, shown[-1].name if len(schedules) > limit else None)


def user_schedules(
    clients: Clients, part: DeclaredSchedule, *, start_after: str = "", limit: int
) -> SchedulePage:
    """Return schedules of users, by id, each with its last run."""
    rows = rows_of(part.name, start_after).fetch(limit + 1)
    named = [(part, row.key.id().partition("|")[2], row) for row in rows[:limit]]
    return SchedulePage(_states(clients, named, 1), named[-1][1] if len(rows) > limit else None)


def schedule_state(
    clients: Clients, part: DeclaredSchedule, row_id: str, *, runs: int
) -> ScheduleState | None:
    """Return one schedule with its last runs; None: a user has none of this id."""
    if len(row_id.encode()) > MAX_ID_BYTES:
        return None
    row = row_key(part.name, row_id).get()
    if row is None and (row_id or not isinstance(part, Schedule)):
        return None
    [state] = _states(clients, [(part, row_id, row)], runs)
    return state


def _states(
    clients: Clients, named: Sequence[tuple[DeclaredSchedule, str, Any]], max_runs: int
) -> list[ScheduleState]:
    ticks = [
        Tick(row.key.id(), at, revision)
        for _, _, row in named
        if row is not None
        for at, revision in row.recent_ticks[:max_runs]
    ]
    parts = {row.key.id(): part for part, _, row in named if row is not None}
    runs = _runs(clients, [(parts[tick.row].task, tick) for tick in ticks])
    by_row: dict[str, list[TickRun]] = {}
    for tick, run in zip(ticks, runs, strict=True):
        by_row.setdefault(tick.row, []).append(run)
    return [
        ScheduleState(
            name=part.name,
            id=row_id,
            cron=row.cron if row is not None else getattr(part, "cron", ""),
            tz=row.tz if row is not None else getattr(part, "tz", ""),
            missed=part.missed,
            path=part.task.path,
            queue=part.task.queue,
            next=aware_utc(row.next_at) if row is not None else None,
            last=row.recent_ticks[0][0] if row is not None and row.recent_ticks else None,
            runs=by_row.get(row.key.id(), ()) if row is not None else (),
        )
        for part, row_id, row in named
    ]


def _runs(clients: Clients, ticks: Sequence[tuple[Any, Tick]]) -> list[TickRun]:
    """Return what became of the work of some ticks: two reads each."""
    names = [hashed_name(task.path, *name_of(tick)) for task, tick in ticks]
    dead_ids = [hashed_name(task.queue, name) for (task, _), name in zip(ticks, names, strict=True)]
    handles = [handle_key(tracked_handle(task.path, name_of(tick))) for task, tick in ticks]
    rows = ndb.get_multi([*handles, *(ndb.Key(DeadTask, dead_id) for dead_id in dead_ids)])
    now_utc = clients.clock.now()
    runs = []
    for index, (_, tick) in enumerate(ticks):
        handle, dead = rows[index], rows[len(ticks) + index]
        is_dead = dead is not None and not dead.resolved
        runs.append(
            TickRun(
                at=tick.at,
                task=names[index],
                state="dead" if is_dead else _state(handle, now_utc - tick.at),
                dead_id=dead_ids[index] if is_dead else "",
                error=(dead.error or dead.reason[:100]) if is_dead else "",
            )
        )
    return runs


def _state(handle: Any, age: datetime.timedelta) -> RunState:
    if handle is not None:
        return "deleted" if handle.state == CANCELLED else "waiting"
    return "unknown" if age > LIFE else "done"
