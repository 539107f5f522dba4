"""Lanes: all of them by backlog, the keys of one, and one key that is paused, resumed, drained."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api import changes
from rollforward.console.api import lanes as api
from rollforward.console.api.changes import ChangeRefusedError
from rollforward.console.pages.frame import Routes, go_to, page, render, trace_url, with_query
from rollforward.flask.context import clients
from rollforward.flask.guards.fields import limits
from rollforward.lanes.listing import dead_task_of, facts_of, next_at, tasks_of
from rollforward.lanes.reading import MAX_BACKLOG, MAX_COUNTED, MAX_LISTED, KeyState
from rollforward.look import words
from rollforward.tracing import trace_id_of


@page
def lanes() -> ResponseReturnValue:
    """Show the lanes of the app, the one with the most tasks first."""
    rows = sorted((api.lane_row(lane) for lane in api.lanes()), key=lambda row: -row["waiting"])
    shown = [{**row, "url": _lane_url(row["name"])} for row in rows]
    return render("lanes.html", rows=shown, most=MAX_BACKLOG)


@page
@limits(after=api.MAX_KEY_BYTES, key=api.MAX_KEY_BYTES)
def lane(name: str) -> ResponseReturnValue:
    """Show keys of a lane by pages; a form leads to one."""
    args = request.args
    declared, key = api.lane_asked(name), args.get("key", "").strip()
    if key:
        return go_to("/lanes/key", "", lane=name, key=key)
    state, start_after = args.get("state", ""), args.get("after", "")
    listed, path = api.keys_page(declared, state, start_after), f"/lanes/of/{quote(name)}"
    older = ""
    if listed.next_after:
        older = with_query(path, state=state, after=listed.next_after)
    return render(
        "lane.html",
        lane=api.lane_row(declared),
        rows=[_shown(key_state) for key_state in listed.keys],
        state=state,
        url=_lane_url(name),
        older=older,
        is_first=not start_after,
        first=with_query(path, state=state),
        most=MAX_LISTED,
        most_of_lane=MAX_BACKLOG,
    )


@page
@limits(key=api.MAX_KEY_BYTES)
def lane_key(drains: str = "") -> ResponseReturnValue:
    """Show one key with its first tasks, its claims and the dead task that blocks it."""
    name, text = request.args.get("lane", ""), request.args.get("key", "")
    key = api.key_asked(name, text)
    state, at = key.state(), next_at(clients(), key)
    dead = dead_task_of(state)
    return render(
        "lane_drain.html" if drains else "lane_key.html",
        key=_shown(state),
        facts=facts_of(key.lane),
        lane_url=_lane_url(name),
        drain_url=with_query("/lanes/drain", lane=name, key=text),
        dead=dead,
        next_at=at.timestamp() if at else None,
        tasks=[_task(task) for task in tasks_of(key)],
        most=MAX_COUNTED,
    )


@page
@limits(key=api.MAX_KEY_BYTES)
def confirm_drain() -> ResponseReturnValue:
    """Show the tasks that a drain deletes, and ask."""
    response: ResponseReturnValue = lane_key(drains="yes")
    return response


@page
@limits(key=api.MAX_KEY_BYTES)
def change_key() -> ResponseReturnValue:
    """Pause, resume or drain a key."""
    form = request.form
    name, key, verb = (form.get(field, "") for field in ("lane", "key", "verb"))
    if verb == "drain" and form.get("typed", "").strip() != key:
        raise ChangeRefusedError(400, "Type the key as it is. Nothing was deleted.")
    result = changes.control_lane(name, key, verb)
    notice = "lane-drain-more" if result.get("has_more") else f"lane-{verb}"
    return go_to("/lanes/key", notice, lane=name, key=key)


def _lane_url(name: str) -> str:
    return with_query(f"/lanes/of/{quote(name)}")


def _shown(state: KeyState) -> dict[str, Any]:
    now_s = clients().clock.now().timestamp()
    return {
        **api.key_row(state),
        "lane": state.lane,
        "url": with_query("/lanes/key", lane=state.lane, key=state.key),
        "first": state.first.timestamp() if state.first else None,
        "rests": state.rests,
        "begun": min((claim.began for claim in state.claims), default=None),
        "at_work": sum(len(claim.tasks) for claim in state.claims),
        "deliveries": len(state.claims),
        "now_s": now_s,
    }


def _task(task: Any) -> dict[str, Any]:
    return {
        **task,
        "added": task["added"].timestamp(),
        "not_before": task["not_before"].timestamp() if task["not_before"] else None,
        "arguments": words.body(task["body"].encode()),
        "trace_url": trace_url(trace_id_of(task["traceparent"]) or ""),
    }


ROUTES: Routes = (
    ("/lanes", "GET", lanes),
    ("/lanes/of/<name>", "GET", lane),
    ("/lanes/key", "GET", lane_key),
    ("/lanes/drain", "GET", confirm_drain),
    ("/lanes/change", "POST", change_key),
)
