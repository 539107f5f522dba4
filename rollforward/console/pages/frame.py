"""The frame of all pages: rendering, notices, refusals, and the files of the look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from flask import Response, abort, current_app, redirect, request
from flask.typing import ResponseReturnValue

from rollforward.console.access import Role
from rollforward.console.api.changes import ChangeRefusedError, caller
from rollforward.console.api.queries import OUTAGES, BadQueryError, outage_text
from rollforward.flask.context import CONSOLE, clients, settings
from rollforward.flask.guards import csrf
from rollforward.look import lists
from rollforward.look.editor import url_of_code
from rollforward.look.lists import BadChoiceError
from rollforward.look.pages import STATIC, STATIC_TYPES, environment, etag_of
from rollforward.operations import BadCursorError

View = Callable[..., ResponseReturnValue]
Routes = Sequence[tuple[str, str, View]]

MENU = [
    ("/", "Overview"),
    ("/dead", "Dead tasks"),
    ("/runs", "Runs"),
    ("/enqueue", "Enqueue"),
    ("/waiting", "Waiting"),
    ("/outbox", "Outbox"),
    ("/lag", "Lag and cost"),
    ("/lanes", "Lanes"),
    ("/schedules", "Schedules"),
    ("/audit", "Audit trail"),
]
TOKENS_KEPT_S = 3_600
# What a page says after a change: the address holds the key, never the text.
NOTICES = {
    "replayed": "Replayed: its task is enqueued.",
    "enqueued": "Enqueued: its task is created, or was by an earlier press.",
    "deleted": "Deleted.",
    "cancel": "Cancelled: finished items stay finished, and the run can be resumed.",
    "resume": "Resumed.",
    "retry": "This run retries the failed items.",
    "batch-cancel": "Cancelled: members that waited do not run, and its callback is called.",
    "step-cancel": "Cancelled: what its steps declared to undo is undone, the last one first.",
    "step-retry": "Retried: steps that are done keep their results, and the others run now.",
    "rebuild": "A new table is being built.",
    "swept": "Swept: tasks that were pending for 15 seconds are being created.",
    "letters": "The run has begun: it takes what was dead a moment ago, each once.",
    "failed-runs": "The run has begun: it takes what had failed a moment ago, each once.",
    "letter-replayed": "Replayed: it is worked on again.",
    "letter-deleted": "Deleted.",
    "queue-pause": "Paused: no attempt begins until it is resumed. Running attempts continue.",
    "queue-resume": "Resumed.",
    "queue-purge": "Purged: Cloud Tasks deletes what waited, within a minute.",
    "queue-rate": "The rate is set, until queue.yaml is deployed with another one.",
    "lane-pause": "Paused: no further task begins. A running turn is finished.",
    "lane-resume": "Resumed: its tasks continue.",
    "lane-drain": "Drained: what waited is deleted, as the audit trail counts it.",
    "lane-drain-more": "Drained in part: more tasks wait, so drain it again.",
    "bulk": "The run has begun: it takes the dead tasks of a moment ago, each once.",
}


def page(view: View) -> View:
    """Return a view whose refusals are pages that say why."""

    @wraps(view)
    def show(**places: str) -> ResponseReturnValue:
        try:
            return view(**places)
        except (BadQueryError, BadCursorError, BadChoiceError) as error:
            return error_page(400, str(error))
        except ChangeRefusedError as refused:
            return error_page(refused.status, refused.reason)
        except OUTAGES as error:
            return error_page(503, outage_text(error))

    return show


def error_page(status: int, message: str) -> Response:
    """Return a page that says why not."""
    title = HTTPStatus(status).phrase
    response = render("refusal.html", code=status, title=title, message=message)
    response.status_code = status
    return response


def render(template: str, **context: object) -> Response:
    """Return a page, with the notice that its address asks for."""
    root, operator = prefix(), caller()
    common: dict[str, Any] = {
        "ROOT": root,
        "now": clients().clock.now().timestamp(),
        "path": request.script_root + request.path,
        "csrf": csrf.token(),
        "project": settings().project,
        "operator": operator,
        "may_operate": operator.role is Role.OPERATE,
        "platform_url": settings().devserver_url or "",
        "is_here": settings().is_local,
        "notice": NOTICES.get(request.args.get("said", ""), ""),
    }
    html = _templates().get_template(template).render(common | context)
    content = html.encode(errors="replace")  # Half a character is none in UTF-8.
    # Tokens of forms are good for a day: those of a page that stays open are made anew each hour.
    tag = etag_of(content + b"%d" % (clients().clock.now().timestamp() // TOKENS_KEPT_S))
    if request.method == "GET" and request.headers.get("If-None-Match") == tag:
        return Response(status=304, headers={"ETag": tag})
    return Response(content, content_type="text/html; charset=utf-8", headers={"ETag": tag})


def prefix() -> str:
    """Return the beginning of the console's URLs, with the app's own."""
    return request.script_root + str(current_app.extensions[CONSOLE].prefix)


def code_url(function: Callable[..., Any]) -> str:
    """Return the URL that opens a function in the editor; "": this is no developer's machine."""
    return url_of_code(function) if settings().is_local else ""


def trace_url(trace_id: str) -> str:
    """Return the URL of a trace at the local platform, or at the app's own backend; "": none."""
    platform_url = settings().devserver_url
    if not trace_id:
        return ""
    if platform_url:
        return f"{platform_url}/traces/{trace_id}"
    template: str = current_app.extensions[CONSOLE].trace_url
    return template.replace("{trace_id}", trace_id)


def go_to(path: str, notice: str = "", /, **query: str) -> ResponseReturnValue:
    """Return the way to a page of the console, which then says a notice."""
    fields = {name: value for name, value in {**query, "said": notice}.items() if value}
    return redirect(f"{prefix()}{path}{'?' + urlencode(fields) if fields else ''}", 303)


def with_query(path: str, /, **query: str) -> str:
    """Return an address of the console, with the parts of its query that are not empty."""
    fields = {name: value for name, value in query.items() if value}
    return f"{prefix()}{path}{'?' + urlencode(fields) if fields else ''}"


def static(name: str) -> ResponseReturnValue:
    """Return a style sheet, a script or the icon."""
    # The system would refuse to look for a name that is too long, or has a zero.
    path = next((file for file in STATIC.iterdir() if file.name == name), None)
    if path is None or path.suffix not in STATIC_TYPES:
        abort(404)
    return Response(
        path.read_bytes(),
        content_type=f"{STATIC_TYPES[path.suffix]}; charset=utf-8",
        headers={"Cache-Control": "private, max-age=300"},
    )


@cache
def _templates() -> jinja2.Environment:
    templates = environment(Path(__file__).parent.parent / "templates")
    templates.globals.update(MENU=MENU, AGES=lists.AGES)
    return templates


ROUTES: Routes = (("/static/<name>", "GET", static),)
