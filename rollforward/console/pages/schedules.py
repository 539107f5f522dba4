"""Schedules in the code and of users, one with its runs, and the sweeps."""

from __future__ import annotations

from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.changes import ChangeRefusedError
from rollforward.console.api.schedules import (
    MAX_CURSOR_CHARS,
    NO_SCHEDULE,
    ROWS,
    RUNS,
    id_asked,
    schedule_named,
    users_asked,
)
from rollforward.console.pages.frame import Routes, go_to, page, render, with_query
from rollforward.flask.context import clients, registry, settings
from rollforward.flask.guards.fields import limits
from rollforward.look.lists import ListChoice
from rollforward.operations.sweeps import last_sweeps
from rollforward.runtime.clock import TimeRange
from rollforward.schedules.declaration import MAX_ID_BYTES, Schedule
from rollforward.schedules.listing import (
    ScheduleState,
    declared_schedules,
    schedule_state,
)


@page
def schedules() -> ResponseReturnValue:
    """Show the schedules in the code, the names of user schedules, and the sweeps."""
    start_after, chosen = request.args.get("after", ""), ListChoice.of(request.args)
    parts = registry().parts("schedules")
    ran = TimeRange(*chosen.bounds(clients().clock.now()))
    listed = declared_schedules(clients(), parts, start_after=start_after, limit=ROWS, ran=ran)
    older = ""
    if listed.next_after:
        older = with_query("/schedules", **chosen.fields, after=listed.next_after)
    swept = registry().swept
    times = last_sweeps(clients(), swept)
    return render(
        "schedules.html",
        rows=[_to_values(state) for state in listed.schedules],
        users=sorted(part.name for part in parts if not isinstance(part, Schedule)),
        chosen=chosen,
        older=older,
        is_first=not start_after,
        first=with_query("/schedules", **chosen.fields),
        sweeps=[(name, times[name].timestamp() if name in times else None) for name in swept],
    )


@page
@limits(after=MAX_CURSOR_CHARS, id=MAX_ID_BYTES)
def user_page(name: str) -> ResponseReturnValue:
    """Show the schedules of users, by id or by their next tick; a form leads to one."""
    row_id, chosen = id_asked("id").strip(), ListChoice.of(request.args, ages=())
    if row_id:
        return go_to(f"/schedules/one/{name}", "", id=row_id)
    due = TimeRange(*chosen.bounds(clients().clock.now()))
    listed = users_asked(schedule_named(name), due)
    path = f"/schedules/users/{name}"
    older = ""
    if listed.next_after:
        older = with_query(path, **chosen.fields, after=listed.next_after)
    return render(
        "user_schedules.html",
        name=name,
        rows=[_to_values(state) for state in listed.schedules],
        chosen=chosen,
        older=older,
        is_first="after" not in request.args,
        first=with_query(path, **chosen.fields),
    )


@page
@limits(id=MAX_ID_BYTES)
def schedule_page(name: str) -> ResponseReturnValue:
    """Show one schedule with its last runs."""
    state = schedule_state(clients(), schedule_named(name), id_asked("id"), runs=RUNS)
    if state is None:
        raise ChangeRefusedError(404, NO_SCHEDULE)
    platform_url = settings().devserver_url or ""
    return render("schedule.html", schedule=_to_values(state), tasks_url=platform_url)


def _to_values(state: ScheduleState) -> dict[str, Any]:
    return {
        **vars(state),
        "url": with_query(f"/schedules/one/{state.name}", id=state.id),
        "next": state.next.timestamp() if state.next else None,
        "last": state.last.timestamp() if state.last else None,
        "runs": [{**vars(run), "at": run.at.timestamp()} for run in state.runs],
    }


ROUTES: Routes = (
    ("/schedules", "GET", schedules),
    ("/schedules/users/<name>", "GET", user_page),
    ("/schedules/one/<name>", "GET", schedule_page),
)
