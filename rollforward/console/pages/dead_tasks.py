"""Dead tasks: a list with filters, one with its traceback, and changes to one, some or all."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api import changes
from rollforward.console.api.changes import NO_DEAD_TASK, ChangeRefusedError, bulk_verb
from rollforward.console.api.queries import PAGE_ROWS, filter_of
from rollforward.console.api.rows import dead_task_row
from rollforward.console.pages.frame import (
    Routes,
    code_url,
    go_to,
    page,
    render,
    trace_url,
    with_query,
)
from rollforward.console.pages.runs import patterns_with_runs
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.look import words
from rollforward.look.lists import ListChoice
from rollforward.operations import DeadTaskFilter, UnknownDeadTaskError, list_dead_tasks
from rollforward.operations.dead_task_lists import count_dead_tasks
from rollforward.operations.replays import get_dead_task
from rollforward.runtime.texts import has_unpaired_surrogate

MAX_COUNTED = 1_000
SHOWN = 5
MAX_CURSOR_CHARS = 1_100
SORTS = ("oldest", "most deliveries")
# Lists that people look at first; an address of one's own is as good.
VIEWS = {
    "Failed in the last hour": "/dead?age=1h",
    "Oldest first": "/dead?sort=oldest",
    "More than a day old": "/dead?age=before-24h&sort=oldest",
    "Most deliveries in the last 24 hours": "/dead?age=24h&sort=most+deliveries",
    "Of flows": "/dead?pattern=flows",
}
VERB_WORDS = {"replay": "Replay", "delete": "Delete"}


@dataclass(frozen=True)
class Choice:
    """The filters of a list, as its address has them.

    Attributes:
        chosen: Its time and its order.
    """

    chosen: ListChoice
    pattern: str = ""
    queue: str = ""
    error: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """Return the filters that are set."""
        texts = {"pattern": self.pattern, "queue": self.queue, "error": self.error}
        return {name: value for name, value in texts.items() if value} | self.chosen.fields

    @property
    def is_filtered(self) -> bool:
        """Return whether it leaves out dead tasks."""
        return bool(self.fields.keys() - {"sort"})

    def filter(self) -> DeadTaskFilter:
        """Return the choice of dead tasks."""
        since, until = self.chosen.bounds(clients().clock.now())
        return DeadTaskFilter(self.pattern, self.queue, self.error, since, until)


def _choice() -> Choice:
    names = ("pattern", "queue", "error")
    texts = {name: request.args.get(name, "").strip() for name in names}
    return Choice(ListChoice.of(request.args, SORTS), **texts)


@page
@limits(cursor=MAX_CURSOR_CHARS)
def dead_tasks() -> ResponseReturnValue:
    """Show open dead tasks, the newest first, as the address filters them."""
    choice, cursor = _choice(), request.args.get("cursor", "")
    oldest_first = choice.chosen.sort == "oldest"
    listed = list_dead_tasks(
        choice.filter(), cursor=cursor, limit=PAGE_ROWS, oldest_first=oldest_first
    )
    rows = [_to_values(dead) for dead in listed.dead_tasks]
    is_sorted = choice.chosen.sort == "most deliveries"
    if is_sorted:
        rows.sort(key=lambda row: -row["deliveries"])
    older = ""
    if listed.next_cursor:
        older = with_query("/dead", **choice.fields, cursor=listed.next_cursor)
    return render(
        "dead.html",
        rows=rows,
        choice=choice,
        chosen=choice.chosen,
        sorts=SORTS,
        views=VIEWS,
        sorted_count=len(rows) if is_sorted and (older or cursor) else 0,
        oldest_first=oldest_first,
        older=older,
        is_first=not cursor,
        first=with_query("/dead", **choice.fields),
        confirm={verb: with_query(f"/dead/all/{verb}", **choice.fields) for verb in VERB_WORDS},
        patterns=sorted(registry().patterns),
        queues=sorted({task.queue for task in registry().tasks.values()}),
    )


@page
def dead_task(dead_id: str) -> ResponseReturnValue:
    """Show one dead task: its reason with the traceback, its body, its attempts."""
    try:
        dead = get_dead_task(dead_id)
    except UnknownDeadTaskError:
        raise ChangeRefusedError(404, NO_DEAD_TASK) from None
    row, task = _to_values(dead, is_whole=True), registry().tasks.get(dead.path)
    return render(
        "dead_one.html",
        dead=row,
        is_known=task is not None,
        code_url=code_url(task.work) if task else "",
        trace_url=trace_url(str(row["trace_id"])),
        run_id=_run_of(dead.pattern, dead.body),
        lane_url=_lane_url(row["lane"]),
    )


def _lane_url(lane: Any) -> str:
    """Return the address of the key of the lane that a dead task waited in; "": in none."""
    return with_query("/lanes/key", lane=lane["name"], key=lane["key"]) if lane else ""


def _run_of(pattern: str, body: str) -> str:
    """Return the id of a task's run, by its arguments; "": it has none."""
    try:
        run_id = json.loads(body).get("run_id", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    if not isinstance(run_id, str) or has_unpaired_surrogate(run_id):
        return ""
    return run_id if pattern in patterns_with_runs() else ""


@page
@limits(target=1_100)
def change() -> ResponseReturnValue:
    """Replay or delete one dead task."""
    dead_id, _, verb = request.form.get("target", "").rpartition(":")
    return go_to("/dead", changes.change_dead_task(dead_id, verb))


@page
@limits(id=1_000)
def change_selected() -> ResponseReturnValue:
    """Start a run that changes the dead tasks that were selected."""
    verb, ids = request.form.get("verb", ""), request.form.getlist("id")
    if not ids:
        raise ChangeRefusedError(400, "Select at least one dead task.")
    run_id = changes.change_dead_tasks(verb, None, ids, request.form.get("key"))
    return go_to(f"/runs/continuations/{run_id}", "bulk")


@page
def confirm(verb: str) -> ResponseReturnValue:
    """Say how many dead tasks a change would take, and ask."""
    bulk_verb(verb)
    choice, started = _choice(), clients().clock.now()
    chosen = choice.filter()
    # Dead tasks that are new while a person reads are left alone.
    chosen = replace(chosen, until=min(started, chosen.until or started))
    count = count_dead_tasks(chosen, MAX_COUNTED)
    rows = list_dead_tasks(chosen, limit=SHOWN).dead_tasks
    return render(
        "dead_confirm.html",
        verb=verb,
        word=VERB_WORDS[verb],
        count=count,
        is_cut=count == MAX_COUNTED,
        rows=[_to_values(dead) for dead in rows],
        choice=choice,
        since=chosen.since.isoformat() if chosen.since else "",
        until=chosen.until.isoformat() if chosen.until else "",
        key=clients().new_id(),
        list_url=with_query("/dead", **choice.fields),
    )


@page
def change_all(verb: str) -> ResponseReturnValue:
    """Start a run that changes the dead tasks that matched when the count was shown."""
    names = ("pattern", "queue", "error", "since", "until")
    form = request.form
    if not form.get("until") or not form.get("key"):
        raise ChangeRefusedError(400, "The form names no dead tasks. Go back to the list.")
    chosen = filter_of(*(form.get(name, "") for name in names))
    run_id = changes.change_dead_tasks(verb, chosen, (), form["key"])
    return go_to(f"/runs/continuations/{run_id}", "bulk")


def _to_values(dead: object, *, is_whole: bool = False) -> dict[str, Any]:
    row = dead_task_row(dead, is_whole=is_whole)  # type: ignore[arg-type]
    for name in ("created", "updated"):
        row[name] = row[name].timestamp()
    if is_whole:
        row["body"] = words.body(row["body"].encode())
    return row


ROUTES: Routes = (
    ("/dead", "GET", dead_tasks),
    ("/dead/one/<path:dead_id>", "GET", dead_task),
    ("/dead/change", "POST", change),
    ("/dead/selected", "POST", change_selected),
    ("/dead/all/<verb>", "GET", confirm),
    ("/dead/all/<verb>", "POST", change_all),
)
