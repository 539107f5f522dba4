"""Schedules in the code and of users, one with its runs, and the sweeps."""

from __future__ import annotations

from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.changes import ChangeRefusedError
from rollforward.console.api.schedules import NO_SCHEDULE, ROWS, RUNS, id_asked, schedule_named
from rollforward.console.pages.frame import Routes, go_to, page, render, with_query
from rollforward.flask.context import clients, registry, settings
from rollforward.flask.guards.fields import limits
from rollforward.operations.sweeps import last_sweeps
from rollforward.schedules.declaration import MAX_ID_BYTES, Schedule
from rollforward.schedules.listing import (
    ScheduleState,
    declared_schedules,
    schedule_state,
    user_schedules,
)


@page
def schedules() -> ResponseReturnValue:
    """Show the schedules in the code, the names of user schedules, and the sweeps."""
    start_after = request.args.get("after", "")
    parts = registry().parts("schedules")
    listed = declared_schedules(clients(), parts, start_after=start_after, limit=ROWS)
    swept = registry().swept
    times = last_sweeps(clients(), swept)
    return render(
        "schedules.html",
        rows=[_shown(state) for state in listed.schedules],
        users=sorted(part.name for part in parts if not isinstance(part, Schedule)),
        older=with_query("/schedules", after=listed.next_after) if listed.next_after else "",
        is_first=not start_after,
        first=with_query("/schedules"),
        sweeps=[(name, times[name].timestamp() if name in times else None) for name in swept],
    )


@page
@limits(after=MAX_ID_BYTES, id=MAX_ID_BYTES)
def user_page(name: str) -> ResponseReturnValue:
    """Show the schedules of users, by id; a form leads to one."""
    row_id, start_after = id_asked("id").strip(), id_asked("after")
    if row_id:
        return go_to(f"/schedules/one/{name}", "", id=row_id)
    listed = user_schedules(clients(), schedule_named(name), start_after=start_after, limit=ROWS)
    path = f"/schedules/users/{name}"
    return render(
        "user_schedules.html",
        name=name,
        rows=[_shown(state) for state in listed.schedules],
        older=with_query(path, after=listed.next_after) if listed.next_after else "",
        is_first=not start_after,
        first=with_query(path),
    )


@page
@limits(id=MAX_ID_BYTES)
def schedule_page(name: str) -> ResponseReturnValue:
    """Show one schedule with its last runs."""
    state = schedule_state(clients(), schedule_named(name), id_asked("id"), runs=RUNS)
    if state is None:
        raise ChangeRefusedError(404, NO_SCHEDULE)
    platform_url = settings().devserver_url or ""
    return render("schedule.html", schedule=_shown(state), tasks_url=platform_url)


def _shown(state: ScheduleState) -> dict[str, Any]:
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
