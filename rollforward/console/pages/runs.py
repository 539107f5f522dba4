"""Runs of all patterns: a list, and one with its items, numbers and verbs."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from flask import request
from flask.typing import ResponseReturnValue
from google.cloud import ndb

from rollforward.console.api import changes
from rollforward.console.api.changes import NO_RUN, ChangeRefusedError
from rollforward.console.api.queries import list_query
from rollforward.console.pages import run_pictures
from rollforward.console.pages.frame import Routes, go_to, page, render, with_query
from rollforward.flask.context import clients, registry, settings
from rollforward.look import words
from rollforward.tasks.runs import Run, UnknownRunError

SHOWN_PARTS = 50
_URLSAFE_KEY = re.compile(r"[A-Za-z0-9_-]{16,2000}")
VERB_WORDS = {
    "cancel": "Cancel",
    "resume": "Resume",
    "retry": "Retry the failed items",
    "rebuild": "Rebuild",
}
ENDED = ("done", "skipped", "failed")


@page
def runs() -> ResponseReturnValue:
    """Show runs, the newest first, and the parts that have no end."""
    names = ("state", "name", "before")
    state, name, started_before = (request.args.get(key, "").strip() for key in names)
    listed = registry().runs(clients(), list_query(state, name, started_before))
    older = ""
    if listed.next_before:
        next_before = listed.next_before.isoformat()
        older = with_query("/runs", state=state, name=name, before=next_before)
    return render(
        "runs.html",
        rows=[_shown(run) for run in listed.runs],
        standing=registry().standing() if not (state or name or started_before) else (),
        state=state,
        name=name,
        older=older,
        is_first=not started_before,
        first=with_query("/runs", state=state, name=name),
        verb_words=VERB_WORDS,
    )


@page
def run(pattern: str, run_id: str) -> ResponseReturnValue:
    """Show one run."""
    if len(run_id.encode()) > changes.MAX_ID_BYTES:
        raise ChangeRefusedError(404, NO_RUN)
    try:
        details = registry().run(clients(), pattern, run_id)
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_RUN) from None
    columns = list(dict.fromkeys(name for row in details.rows for name in row))
    return render(
        "run.html",
        details=details,
        run=_shown(details.run),
        args=words.body(details.run.args.encode()),
        parts=details.parts[:SHOWN_PARTS],
        part_count=len(details.parts),
        columns=columns,
        dots=run_pictures.dots_of(details),
        curve=run_pictures.curve_of(details, clients().clock.now().timestamp()),
        attempts_url=_attempts_url(pattern, run_id),
        verb_words=VERB_WORDS,
        item_words=_item_words,
    )


@page
def change_run() -> ResponseReturnValue:
    """Cancel, resume or retry a run."""
    form = request.form
    pattern, run_id, verb = (form.get(name, "") for name in ("pattern", "id", "verb"))
    next_id = changes.control_run(pattern, run_id, verb)
    return go_to(f"/runs/{pattern}/{next_id}", verb)


def _item_words(item: str) -> str:
    """Return an item in words: entities are named by their keys as URLs have them.

    >>> _item_words("order 7"), _item_words("YWJj")
    ('order 7', 'YWJj')
    """
    if not _URLSAFE_KEY.fullmatch(item):
        return item
    try:
        pairs = ndb.Key(urlsafe=item.encode()).pairs()
    except Exception:  # A text that looks like a key: ndb raises many errors.
        return item
    return ", ".join(f"{kind} {name}" for kind, name in pairs)


def _attempts_url(pattern: str, run_id: str) -> str:
    """Return the local platform's page of the attempts of a run; "": there is no platform."""
    platform = settings().devserver_url
    return (
        f"{platform}/attempts/{quote(pattern, safe='')}/{quote(run_id, safe='')}"
        if platform
        else ""
    )


def _shown(run: Run) -> dict[str, Any]:
    ended_items = sum(run.counts.get(name, 0) for name in ENDED)
    started = run.started.timestamp() if run.started else None
    ended = run.ended.timestamp() if run.ended else None
    now_s = clients().clock.now().timestamp()
    is_timed = started is not None and (ended is not None or run.state == "running")
    return {
        **vars(run),
        "started": started,
        "ended": ended,
        "ended_items": ended_items,
        "share": min(1.0, ended_items / run.expected) if run.expected else 0.0,
        "elapsed_s": max(0.0, (ended or now_s) - (started or 0.0)) if is_timed else None,
    }


ROUTES: Routes = (
    ("/runs", "GET", runs),
    ("/runs/change", "POST", change_run),
    ("/runs/<pattern>/<path:run_id>", "GET", run),
)
