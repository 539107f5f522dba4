"""Schedules as the API lists them."""

from __future__ import annotations

from dataclasses import asdict

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.changes import ChangeRefusedError
from rollforward.console.api.queries import time_range_of
from rollforward.console.api.rows import json_response
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.runtime.clock import TimeRange
from rollforward.schedules.declaration import MAX_ID_BYTES
from rollforward.schedules.listing import (
    SchedulePage,
    declared_schedules,
    schedule_state,
    user_schedules,
    user_schedules_due,
)
from rollforward.schedules.ticks import DeclaredSchedule

NO_SCHEDULE = "There is no such schedule."
# Four reads for each row: the schedule, and three of its last run.
ROWS = 12
RUNS = 10
# A time with the id of a row.
MAX_CURSOR_CHARS = 1_550


def schedule_named(name: str) -> DeclaredSchedule:
    """Return a declared schedule, or the schedules of users of this name.

    Raises:
        ChangeRefusedError: there are none.
    """
    for part in registry().parts("schedules"):
        if part.name == name:
            declared: DeclaredSchedule = part
            return declared
    raise ChangeRefusedError(404, NO_SCHEDULE)


def list_declared() -> ResponseReturnValue:
    """List the schedules in the code; of a time, those whose last tick was in it."""
    parts, start_after = registry().parts("schedules"), request.args.get("after", "")
    return _listed(
        declared_schedules(
            clients(), parts, start_after=start_after, limit=ROWS, ran=time_range_of(request.args)
        )
    )


@limits(after=MAX_CURSOR_CHARS)
def list_of_users(name: str) -> ResponseReturnValue:
    """List the schedules of users, by id; of a time, by the next tick."""
    return _listed(users_asked(schedule_named(name), time_range_of(request.args)))


def users_asked(part: DeclaredSchedule, due: TimeRange) -> SchedulePage:
    """Return the page of schedules of users that the address asks for."""
    if not due:
        return user_schedules(clients(), part, start_after=id_asked("after"), limit=ROWS)
    start_after = request.args.get("after", "")
    return user_schedules_due(clients(), part, due, start_after=start_after, limit=ROWS)


@limits(id=MAX_ID_BYTES)
def show_schedule(name: str) -> ResponseReturnValue:
    """Return one schedule with its last runs."""
    state = schedule_state(clients(), schedule_named(name), id_asked("id"), runs=RUNS)
    if state is None:
        raise ChangeRefusedError(404, NO_SCHEDULE)
    return json_response(asdict(state))


def id_asked(name: str) -> str:
    """Return an id of the query, of at most as many bytes as a key takes.

    Raises:
        ChangeRefusedError: it has more.
    """
    text = request.args.get(name, "")
    if len(text.encode()) > MAX_ID_BYTES:
        raise ChangeRefusedError(404, NO_SCHEDULE)
    return text


def _listed(page: SchedulePage) -> ResponseReturnValue:
    rows = [asdict(state) for state in page.schedules]
    return json_response({"schedules": rows, "next_after": page.next_after})
