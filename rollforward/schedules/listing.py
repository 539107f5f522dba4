"""Schedules as an operator sees them: their last and next ticks, and what became of each run.

A page of rows reads the rows, and of each the state of its last run: four entities a row. A page
of a time range reads up to 24 rows for it.

Cloud Tasks tells nobody of a task that is deleted from its queue, so its run counts as waiting.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.cloud import ndb

from rollforward.outbox.cancellable import tracked_handle
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import (
    ANY_TIME,
    TimeRange,
    aware_utc,
    naive_utc,
)
from rollforward.runtime.texts import has_unpaired_surrogate
from rollforward.schedules.declaration import MAX_ID_BYTES, Schedule
from rollforward.schedules.entities import RecentTick, ScheduleRow, row_key, rows_between, rows_of
from rollforward.schedules.ticks import DeclaredSchedule, Tick, name_of
from rollforward.tasks.attempt_entities import attempts_key
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.errors import BadArgumentsError
from rollforward.tasks.runs import BadCursorError, parse_cursor, timed_cursor
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.entities import CANCELLED, GIVEN_UP, handle_key
from rollforward.tasks.stored.names import hashed_name

# Rows that a page of a time range reads.
MAX_SEARCHED = 24
RunState = Literal["waiting", "retrying", "done", "dead", "deleted", "given up", "unknown"]
_ENDED: Mapping[str, RunState] = {CANCELLED: "deleted", GIVEN_UP: "given up"}


@dataclass(frozen=True)
class TickRun:
    """The run of a tick.

    Attributes:
        task: The name of its task in Cloud Tasks.
        state: "waiting": its task has not ended, or was deleted from its queue. "retrying": it has
            failed, and is tried again. "dead": its dead task is open. "deleted": that was deleted.
            "given up": by `on_give_up`, without a dead task. "done": it succeeded. "unknown": too
            long ago.
        dead_id: The id of its dead task; "": it has none that is open.
        error: Why it is dead, or has failed last.
        failures: How often it has failed, while it is retried.
    """

    at: datetime.datetime
    task: str
    state: RunState
    dead_id: str = ""
    error: str = ""
    failures: int = 0


@dataclass(frozen=True)
class ScheduleState:
    """A schedule: one in the code, or one of a user.

    Attributes:
        id: The user's; "": it is in the code.
        lane: The key of a lane in which its work waits, "<lane>|<key>"; "": none.
        next: None: its first sweep has not come, or no tick is left.
        runs: The last ones, the newest first, as many as were asked for.
        problem: Why no tick of it can run: its task does not take the stored arguments; "": none.
    """

    name: str
    id: str
    cron: str
    tz: str
    missed: str
    path: str
    queue: str
    lane: str
    next: datetime.datetime | None
    last: datetime.datetime | None
    runs: Sequence[TickRun]
    problem: str = ""


@dataclass(frozen=True)
class SchedulePage:
    """Schedules, and where the next page begins; None: there is none."""

    schedules: Sequence[ScheduleState]
    next_after: str | None = None


def declared_schedules(
    clients: Clients,
    parts: Sequence[DeclaredSchedule],
    *,
    start_after: str = "",
    limit: int,
    ran: TimeRange = ANY_TIME,
) -> SchedulePage:
    """Return schedules that are in the code, by name, each with its last run.

    Args:
        ran: The time of the last tick.
    """
    schedules = [part for part in parts if isinstance(part, Schedule) and part.name > start_after]
    schedules.sort(key=lambda part: part.name)
    read = schedules[: max(limit, MAX_SEARCHED) if ran else limit]
    rows = ndb.get_multi([row_key(part.name, "") for part in read])
    matching = [
        (part, "", row)
        for part, row in zip(read, rows, strict=True)
        if not ran or (row is not None and any(ran.has(tick.at) for tick in row.recent_ticks[:1]))
    ]
    shown = matching[:limit]
    next_after: str | None = None
    if len(matching) > limit:
        next_after = shown[-1][0].name
    elif len(read) < len(schedules):
        next_after = read[-1].name
    return SchedulePage(_states(clients, shown, 1), next_after)


def user_schedules(
    clients: Clients, part: DeclaredSchedule, *, start_after: str = "", limit: int
) -> SchedulePage:
    """Return schedules of users, by id, each with its last run."""
    rows = rows_of(part.name, start_after).fetch(limit + 1)
    named = [(part, row.key.id().partition("|")[2], row) for row in rows[:limit]]
    return SchedulePage(_states(clients, named, 1), named[-1][1] if len(rows) > limit else None)


def user_schedules_due(
    clients: Clients,
    part: DeclaredSchedule,
    due: TimeRange,
    *,
    start_after: str = "",
    limit: int,
) -> SchedulePage:
    """Return schedules of users whose next tick is in a time, the earliest first.

    The index has those of all names, so a page searches a few rows and may be short.

    Args:
        start_after: `next_after` of a page; "": the first one.

    Raises:
        BadCursorError: it is of no page of this time.
    """
    place = parse_cursor(start_after, "after must be next_after of a list")
    if place is not None and not due.has(place[0].replace(tzinfo=datetime.UTC)):
        raise BadCursorError("after must be next_after of a list of the same time")
    since, until = (naive_utc(at) if at else None for at in (due.since, due.until))
    rows: list[Any] = []
    for query in rows_between(since, until, place):
        if len(rows) <= MAX_SEARCHED:
            rows += query.fetch(MAX_SEARCHED + 1 - len(rows))
    prefix = f"{part.name}|"
    matching = [row for row in rows[:MAX_SEARCHED] if row.key.id().startswith(prefix)]
    shown, end_row = matching[:limit], None
    if len(matching) > limit:
        end_row = shown[-1]
    elif len(rows) > MAX_SEARCHED:
        end_row = rows[MAX_SEARCHED - 1]
    named = [(part, row.key.id().removeprefix(prefix), row) for row in shown]
    following = timed_cursor(end_row.next_at, end_row.key.id()) if end_row else None
    return SchedulePage(_states(clients, named, 1), following)


def schedule_state(
    clients: Clients, part: DeclaredSchedule, row_id: str, *, runs: int
) -> ScheduleState | None:
    """Return one schedule with its last runs; None: a user has none of this id."""
    if has_unpaired_surrogate(row_id) or len(row_id.encode()) > MAX_ID_BYTES:
        return None
    row = row_key(part.name, row_id).get()
    if row is None and (row_id or not isinstance(part, Schedule)):
        return None
    [state] = _states(clients, [(part, row_id, row)], runs)
    return state


def _states(
    clients: Clients, named: Sequence[tuple[DeclaredSchedule, str, Any]], max_runs: int
) -> list[ScheduleState]:
    works = [
        _work(part, row.key.id(), tick)
        for part, _, row in named
        if row is not None
        for tick in row.recent_ticks[:max_runs]
    ]
    by_row: dict[str, list[TickRun]] = {}
    for work, run in zip(works, _runs(clients, works), strict=True):
        by_row.setdefault(work.tick.row, []).append(run)
    return [
        ScheduleState(
            name=part.name,
            id=row_id,
            cron=row.cron if row is not None else getattr(part, "cron", ""),
            tz=row.tz if row is not None else getattr(part, "tz", ""),
            missed=part.missed,
            path=part.task.path,
            queue=part.task.queue,
            lane=_lane_id(part, row_id),
            next=aware_utc(row.next_at) if row is not None else None,
            last=row.recent_ticks[0].at if row is not None and row.recent_ticks else None,
            runs=by_row.get(row.key.id(), ()) if row is not None else (),
            problem=_problem(part, row),
        )
        for part, row_id, row in named
    ]


def _problem(part: DeclaredSchedule, row: ScheduleRow | None) -> str:
    if row is None or row.body is None:
        return ""
    try:
        part.task.read(row.body.encode())
    except BadArgumentsError as error:
        return str(error)
    return ""


def _lane_id(part: DeclaredSchedule, row_id: str) -> str:
    try:
        lane = part.lane_of(row_id)
    except BadArgumentsError:  # The id was put before there was a lane, and can be no key.
        return ""
    return lane.id if lane is not None else ""


@dataclass(frozen=True)
class _Work:
    """The work of a tick: a task of the path and the queue that its schedule had then."""

    tick: Tick
    path: str
    queue: str

    @property
    def task_name(self) -> str:
        return hashed_name(self.path, *name_of(self.tick))

    @property
    def handle(self) -> str:
        return tracked_handle(self.path, name_of(self.tick))

    @property
    def first_dead_id(self) -> str:
        """The id of its attempts; its dead task has it, too, unless it died as a replay."""
        return hashed_name(self.queue, self.task_name)


def _work(part: DeclaredSchedule, row_id: str, recent: RecentTick) -> _Work:
    tick = Tick(row_id, recent.at, recent.revision)
    return _Work(tick, recent.path or part.task.path, recent.queue or part.task.queue)


def _runs(clients: Clients, works: Sequence[_Work]) -> list[TickRun]:
    """Return what became of the work of some ticks: three reads each."""
    handles = ndb.get_multi([handle_key(work.handle) for work in works])
    dead_ids = [
        getattr(handle, "dead_id", None) or work.first_dead_id
        for work, handle in zip(works, handles, strict=True)
    ]
    entities = ndb.get_multi(
        [
            *(ndb.Key(DeadTask, dead_id) for dead_id in dead_ids),
            *(attempts_key(work.first_dead_id) for work in works),
        ]
    )
    dead_tasks, attempts = entities[: len(works)], entities[len(works) :]
    now_utc = clients.clock.now()
    return [
        _run(*of_work, now_utc)
        for of_work in zip(works, handles, dead_tasks, attempts, strict=True)
    ]


def _run(work: _Work, handle: Any, dead: Any, attempts: Any, now_utc: datetime.datetime) -> TickRun:
    at, name = work.tick.at, work.task_name
    if dead is not None and not dead.resolved:
        return TickRun(at, name, "dead", dead.key.id(), dead.error or dead.reason[:100])
    if handle is None:
        return TickRun(at, name, "done" if now_utc - at <= LIFE else "unknown")
    state = _ENDED.get(handle.state, "waiting")
    if state == "waiting" and attempts is not None and attempts.failures:
        return TickRun(at, name, "retrying", "", attempts.error or "", attempts.failures)
    return TickRun(at, name, state)
