"""Lanes: all of them by backlog, the keys of one, and one key that is paused, resumed, drained."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
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
from rollforward.look.lists import ListChoice
from rollforward.tracing import trace_id_of

SORTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "oldest task": lambda row: -row["oldest_s"],
    "most blocked keys": lambda row: (-row["blocked"], -row["paused"]),
    "slowest rate": lambda row: -row["interval_ms"],
    "name": lambda row: row["name"],
}
KEY_SORTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "most tasks": lambda row: -row["waiting"],
    "oldest task": lambda row: row["first"] or float("inf"),
}
# Lists that people look at first; an address of one's own is as good.
VIEWS = {
    "Oldest task first": "/lanes?sort=oldest+task",
    "Waiting for more than an hour": "/lanes?age=before-1h&sort=oldest+task",
    "Most blocked keys first": "/lanes?sort=most+blocked+keys",
}


@page
def lanes() -> ResponseReturnValue:
    """Show the lanes of the app, the one with the most tasks first."""
    chosen, now_utc = ListChoice.of(request.args, SORTS), clients().clock.now()
    rows = [_lane(lane) for lane in api.lanes()]
    count = len(rows)
    rows = [row for row in rows if chosen.has(_oldest_at(row, now_utc), now_utc)]
    rows.sort(key=SORTS.get(chosen.sort, lambda row: -row["waiting"]))
    return render(
        "lanes.html",
        rows=rows,
        most=MAX_BACKLOG,
        count=count,
        chosen=chosen,
        sorts=SORTS,
        views=VIEWS,
    )


@page
@limits(after=api.MAX_KEY_BYTES, key=api.MAX_KEY_BYTES)
def lane(name: str) -> ResponseReturnValue:
    """Show keys of a lane by pages; a form leads to one."""
    args = request.args
    declared, key = api.lane_asked(name), args.get("key", "").strip()
    if key:
        return go_to("/lanes/key", "", lane=name, key=key)
    chosen, now_utc = ListChoice.of(args, KEY_SORTS), clients().clock.now()
    state, start_after = args.get("state", ""), args.get("after", "")
    listed, path = api.keys_page(declared, state, start_after), f"/lanes/of/{quote(name)}"
    rows = [
        _to_values(key_state) for key_state in listed.keys if chosen.has(key_state.first, now_utc)
    ]
    if chosen.sort:
        rows.sort(key=KEY_SORTS[chosen.sort])
    fields = {"state": state, **chosen.fields}
    older = ""
    if listed.next_after:
        older = with_query(path, **fields, after=listed.next_after)
    return render(
        "lane.html",
        lane=api.lane_row(declared),
        rows=rows,
        looked_at=len(listed.keys) if chosen.fields and older else 0,
        chosen=chosen,
        sorts=KEY_SORTS,
        state=state,
        url=_lane_url(name),
        older=older,
        is_first=not start_after,
        first=with_query(path, **fields),
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
        key=_to_values(state),
        facts=facts_of(key.lane),
        lane_url=_lane_url(name),
        drain_url=with_query("/lanes/drain", lane=name, key=text),
        change_url=with_query("/lanes/change", lane=name, key=text),
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
    # The key is in the address: in a form, browsers change its line breaks.
    name, key, verb = (request.values.get(field, "") for field in ("lane", "key", "verb"))
    if verb == "drain" and request.form.get("typed", "").split() != key.split():
        raise ChangeRefusedError(400, "Type the key as it is. Nothing was deleted.")
    result = changes.control_lane(name, key, verb)
    notice = "lane-drain-more" if result.get("has_more") else f"lane-{verb}"
    return go_to("/lanes/key", notice, lane=name, key=key)


def _lane(lane: Any) -> dict[str, Any]:
    interval_ms = lane.rate.interval_ms if lane.rate else 0.0
    return {**api.lane_row(lane), "url": _lane_url(lane.name), "interval_ms": interval_ms}


def _oldest_at(row: Mapping[str, Any], now_utc: datetime.datetime) -> datetime.datetime | None:
    """Return when the oldest task of a lane was added; None: it has none."""
    return now_utc - datetime.timedelta(seconds=row["oldest_s"]) if row["waiting"] else None


def _lane_url(name: str) -> str:
    return with_query(f"/lanes/of/{quote(name)}")


def _to_values(state: KeyState) -> dict[str, Any]:
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
