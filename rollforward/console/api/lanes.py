"""Lanes as the API and the pages list them: lanes, their keys by pages, and one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.changes import NO_KEY, ChangeRefusedError
from rollforward.console.api.rows import json_response
from rollforward.flask.context import clients, registry
from rollforward.lanes.listing import facts_of, key_named, lane_named, next_at, tasks_of
from rollforward.lanes.reading import KeyPage, KeyState, backlog_of
from rollforward.lanes.rows.entities import quoted
from rollforward.tasks.runs import UnknownRunError

NO_LANE = "There is no such lane."
MAX_KEY_BYTES = 600
# A key of a list costs a query of its ids, and its state.
ROWS = 15


def lanes() -> Sequence[Any]:
    """Return the lanes of the app, by name."""
    return sorted(registry().parts("lanes"), key=lambda lane: str(lane.name))


def lane_asked(name: str) -> Any:
    """Return a lane of the app.

    Raises:
        ChangeRefusedError: there is none of this name.
    """
    try:
        return lane_named(lanes(), name)
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_LANE) from None


def key_asked(name: str, key: str) -> Any:
    """Return a key of a lane, as its programs know it.

    Raises:
        ChangeRefusedError: the app has no lane of this name, or the key is invalid.
    """
    try:
        return key_named(lanes(), f"{name}|{quoted(key)}")
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_KEY) from None


def lane_row(lane: Any) -> dict[str, Any]:
    """Return a lane with its backlog."""
    return {"name": lane.name, **facts_of(lane), **asdict(backlog_of(clients(), lane))}


def keys_page(lane: Any, state: str, start_after: str) -> KeyPage:
    """Return keys that have tasks, or paused and blocked ones if `state` is "resting".

    Raises:
        ChangeRefusedError: the state is another one, or the place is too long.
    """
    if state not in ("", "resting") or len(start_after.encode()) > MAX_KEY_BYTES:
        raise ChangeRefusedError(400, 'state is "resting" or left out, after is next_after.')
    listed = lane.resting if state else lane.keys
    page: KeyPage = listed(start_after=start_after, limit=ROWS)
    return page


def key_row(state: KeyState) -> dict[str, Any]:
    """Return a key."""
    return {
        "key": state.key,
        "waiting": state.waiting,
        "first": state.first,
        "is_paused": state.is_paused,
        "blocked_by": state.blocked_by or None,
        "claims": [
            {"tasks": list(claim.tasks[:1]), "claimed": len(claim.tasks), "began_s": claim.began}
            for claim in state.claims
        ],
    }


def task_row(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task without its body."""
    return {name: value for name, value in task.items() if name != "body"}


def list_lanes() -> ResponseReturnValue:
    """List the lanes of the app, with their backlogs."""
    return json_response({"lanes": [lane_row(lane) for lane in lanes()]})


def list_keys(name: str) -> ResponseReturnValue:
    """List keys of a lane, or return one with its first tasks."""
    args = request.args
    if "key" in args:
        return show_key(name, args["key"])
    page = keys_page(lane_asked(name), args.get("state", ""), args.get("after", ""))
    rows = [key_row(state) for state in page.keys]
    return json_response({"keys": rows, "next_after": page.next_after})


def show_key(name: str, key: str) -> ResponseReturnValue:
    """Return a key with its first tasks.

    In the path of a URL a key has no slash at its beginning, and no part of `.` or `..`, which
    clients resolve. The parameter `key` takes any.
    """
    lane_key = key_asked(name, key)
    row = key_row(lane_key.state())
    tasks = [task_row(task) for task in tasks_of(lane_key)]
    return json_response({**row, "next_at": next_at(clients(), lane_key), "tasks": tasks})
