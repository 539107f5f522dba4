"""Routes of the JSON API; the package's docstring lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from typing import Annotated, Any

import pydantic
from flask import request
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors

from rollforward.console.api import changes, lanes, pings, schedules
from rollforward.console.api.changes import (
    NO_DEAD_TASK,
    NO_LETTER,
    NO_LETTERS,
    NO_RUN,
    ChangeRefusedError,
)
from rollforward.console.api.queries import (
    MAX_FACET_CHARS,
    OUTAGES,
    BadQueryError,
    filter_of,
    limit_of,
    outage_text,
    run_query,
    time_of,
    time_range_of,
)
from rollforward.console.api.rows import (
    audit_row,
    dead_task_row,
    json_response,
    letter_row,
    run_row,
)
from rollforward.flask.api.json_requests import idempotency_key, json_body, typed_body
from rollforward.flask.api.problems import problem
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.operations import (
    BadCursorError,
    UnknownDeadTaskError,
    list_audit,
    list_dead_tasks,
)
from rollforward.operations.bulk import MAX_SELECTED
from rollforward.operations.replays import get_dead_task
from rollforward.operations.waiting import (
    MAX_OUTBOX_CURSOR,
    CannotListError,
    list_outbox,
    list_waiting,
    queue_states,
)
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.runs import (
    MAX_STEP_BYTES,
    LetterQuery,
    UnknownLetterError,
    UnknownRunError,
)

View = Callable[..., ResponseReturnValue]
Routes = Sequence[tuple[str, str, View]]
MAX_BODY_BYTES = 200_000
MAX_CURSOR_CHARS = 1_100
MAX_TIME_CHARS = 50
_STRICT: pydantic.ConfigDict = {"extra": "forbid"}


@dataclass(frozen=True)
class FilterFields:
    """A choice of dead tasks; what is left out takes any."""

    __pydantic_config__ = _STRICT
    pattern: Annotated[str, pydantic.Field(max_length=MAX_FACET_CHARS)] = ""
    queue: Annotated[str, pydantic.Field(max_length=MAX_FACET_CHARS)] = ""
    error: Annotated[str, pydantic.Field(max_length=MAX_FACET_CHARS)] = ""
    since: Annotated[str, pydantic.Field(max_length=MAX_TIME_CHARS)] = ""
    until: Annotated[str, pydantic.Field(max_length=MAX_TIME_CHARS)] = ""


@dataclass(frozen=True)
class BulkChange:
    """Dead tasks to change: ids, or all that a filter takes."""

    __pydantic_config__ = _STRICT
    ids: Annotated[
        list[Annotated[str, pydantic.Field(min_length=1, max_length=1_000)]],
        pydantic.Field(max_length=MAX_SELECTED),
    ] = field(default_factory=list)
    filter: FilterFields | None = None


@dataclass(frozen=True)
class LettersChange:
    """Dead letters to change: ids, or all that died in a time."""

    __pydantic_config__ = _STRICT
    ids: Annotated[
        list[Annotated[str, pydantic.Field(min_length=1, max_length=1_000)]],
        pydantic.Field(max_length=MAX_SELECTED),
    ] = field(default_factory=list)
    all: bool = False
    since: Annotated[str, pydantic.Field(max_length=MAX_TIME_CHARS)] = ""
    until: Annotated[str, pydantic.Field(max_length=MAX_TIME_CHARS)] = ""


@dataclass(frozen=True)
class RetryChange:
    """A retry of the failed step, or of a step and all later ones."""

    __pydantic_config__ = _STRICT
    from_step: Annotated[str, pydantic.Field(max_length=MAX_STEP_BYTES)] = ""
    runs: Annotated[int, pydantic.Field(ge=0)] = 0


@dataclass(frozen=True)
class FailedRunsChange:
    """Failed runs to retry: ids, or all, or all of a name."""

    __pydantic_config__ = _STRICT
    ids: Annotated[
        list[Annotated[str, pydantic.Field(min_length=1, max_length=1_000)]],
        pydantic.Field(max_length=MAX_SELECTED),
    ] = field(default_factory=list)
    all: bool = False
    name: Annotated[str, pydantic.Field(max_length=MAX_FACET_CHARS)] = ""


@dataclass(frozen=True)
class RateChange:
    """The rate of a queue."""

    __pydantic_config__ = _STRICT
    max_per_s: float


def _answering(view: View) -> View:
    """Return a view whose refusals are problem details."""

    @wraps(view)
    def answer(**places: str) -> ResponseReturnValue:
        try:
            return view(**places)
        except (BadQueryError, BadCursorError) as error:
            return problem(400, str(error))
        except UnknownLetterError:
            return problem(404, NO_LETTER)
        except ChangeRefusedError as refused:
            return problem(refused.status, refused.reason)
        except CannotListError as error:
            return problem(_status_of(error), str(error))
        except OUTAGES as error:
            return problem(503, outage_text(error))
        except rpc_errors.PermissionDenied as error:
            return problem(403, f"The app's account may not: {error.message}")

    return answer


def _status_of(error: CannotListError) -> int:
    """Return the status by which Cloud Tasks has refused a list; 501: the app has other queues."""
    cause = error.__cause__
    return int(cause.code or 501) if isinstance(cause, rpc_errors.GoogleAPICallError) else 501


@_answering
@limits(cursor=MAX_CURSOR_CHARS)
def dead_tasks() -> ResponseReturnValue:
    """List open dead tasks, the newest first."""
    args = request.args
    names = ("pattern", "queue", "error", "since", "until")
    chosen = filter_of(*(args.get(name, "") for name in names))
    page = list_dead_tasks(
        chosen, cursor=args.get("cursor", ""), limit=limit_of(args.get("limit", ""))
    )
    rows = [dead_task_row(dead) for dead in page.dead_tasks]
    return json_response({"dead_tasks": rows, "next_cursor": page.next_cursor or None})


@_answering
def dead_task(dead_id: str) -> ResponseReturnValue:
    """Return a dead task, with its body and the whole reason."""
    try:
        return json_response(dead_task_row(get_dead_task(dead_id), is_whole=True))
    except UnknownDeadTaskError:
        return problem(404, NO_DEAD_TASK)


@_answering
def change_dead_task(target: str) -> ResponseReturnValue:
    """Replay or delete a dead task."""
    _check_empty_body()
    dead_id, _, verb = target.rpartition(":")
    return json_response({"id": dead_id, "result": changes.change_dead_task(dead_id, verb)})


@_answering
def change_dead_tasks(verb: str) -> ResponseReturnValue:
    """Start a run that replays or deletes dead tasks."""
    asked = typed_body(BulkChange, MAX_BODY_BYTES)
    if (asked.filter is None) == (not asked.ids):
        return problem(400, 'Send either "ids" or "filter".')
    chosen = None if asked.filter is None else filter_of(**asdict(asked.filter))
    run_id = changes.change_dead_tasks(verb, chosen, asked.ids, idempotency_key())
    return json_response({"run": {"pattern": "continuations", "id": run_id}}, 202)


@_answering
def runs() -> ResponseReturnValue:
    """List runs, the newest first."""
    query = run_query(request.args, list(registry().patterns))
    listed = registry().runs(clients(), query)
    return json_response(
        {"runs": [asdict(run) for run in listed.runs], "next_before": listed.next_before}
    )


@_answering
def run(pattern: str, run_id: str) -> ResponseReturnValue:
    """Return a run, with its items."""
    if len(run_id.encode()) > changes.MAX_ID_BYTES:
        return problem(404, NO_RUN)
    if pattern not in registry().patterns:
        names = ", ".join(registry().patterns)
        return problem(404, f"There is no pattern {pattern:.50}; it is one of {names}.")
    try:
        return json_response(run_row(registry().run(clients(), pattern, run_id)))
    except UnknownRunError:
        return problem(404, NO_RUN)


@_answering
def control_run(pattern: str, target: str) -> ResponseReturnValue:
    """Cancel, resume or retry a run, or retry it from one of its steps."""
    run_id, _, verb = target.rpartition(":")
    if verb != "retry":
        _check_empty_body()
        next_id = changes.control_run(pattern, run_id, verb, idempotency_key=idempotency_key())
        return json_response({"id": next_id})
    asked = typed_body(RetryChange, MAX_BODY_BYTES)
    key = idempotency_key()
    next_id = changes.control_run(pattern, run_id, verb, idempotency_key=key, **asdict(asked))
    return json_response({"id": next_id})


@_answering
def retry_failed_runs(pattern: str) -> ResponseReturnValue:
    """Start a run that retries failed runs of a pattern."""
    asked = typed_body(FailedRunsChange, MAX_BODY_BYTES)
    if asked.all == bool(asked.ids) or (asked.name and not asked.all):
        return problem(400, 'Send either "ids" or "all": true, of one "name" if there is one.')
    run_id = changes.retry_failed_runs(pattern, asked.name, asked.ids, idempotency_key())
    return json_response({"run": {"pattern": "continuations", "id": run_id}}, 202)


@_answering
@limits(cursor=MAX_CURSOR_CHARS)
def letters(pattern: str, part: str) -> ResponseReturnValue:
    """List the dead letters of a pipeline or a pull queue."""
    args = request.args
    limit = limit_of(args.get("limit", ""))
    query = LetterQuery(args.get("cursor", ""), limit, time_range_of(args))
    try:
        page = registry().letters(clients(), pattern, part, query)
    except UnknownRunError:
        return problem(404, NO_LETTERS)
    rows = [letter_row(letter) for letter in page.letters]
    return json_response({"dead_letters": rows, "next_cursor": page.next_cursor or None})


@_answering
def letter(pattern: str, part: str, letter_id: str) -> ResponseReturnValue:
    """Return a dead letter with its body."""
    try:
        shown = registry().letter(clients(), pattern, part, letter_id)
    except UnknownRunError:
        return problem(404, NO_LETTERS)
    return json_response(letter_row(shown, is_whole=True))


@_answering
def change_letter(pattern: str, part: str, target: str) -> ResponseReturnValue:
    """Replay or delete a dead letter."""
    _check_empty_body()
    letter_id, _, verb = target.rpartition(":")
    result = changes.change_letter(pattern, part, letter_id, verb)
    return json_response({"id": letter_id, "result": result})


@_answering
def change_letters(pattern: str, target: str) -> ResponseReturnValue:
    """Start a run that replays or deletes dead letters."""
    asked = typed_body(LettersChange, MAX_BODY_BYTES)
    died = time_range_of(vars(asked))
    if asked.all == bool(asked.ids) or (asked.ids and died):
        return problem(400, 'Send either "ids" or "all": true, of a time if you name one.')
    part, _, verb = target.rpartition(":")
    run_id = changes.change_letters(pattern, part, verb, asked.ids, idempotency_key(), died=died)
    return json_response({"run": {"pattern": "continuations", "id": run_id}}, 202)


@_answering
@limits(cursor=MAX_CURSOR_CHARS)
def tasks() -> ResponseReturnValue:
    """List waiting tasks of a queue, as Cloud Tasks has them."""
    args = request.args
    page = list_waiting(
        clients(),
        args.get("queue", "default"),
        cursor=args.get("cursor", ""),
        limit=limit_of(args.get("limit", "")),
    )
    rows = [asdict(task) for task in page.tasks]
    return json_response({"tasks": rows, "next_cursor": page.next_cursor or None})


@_answering
@limits(cursor=MAX_OUTBOX_CURSOR)
def outbox() -> ResponseReturnValue:
    """List rows of the outbox, the oldest first."""
    limit = limit_of(request.args.get("limit", ""))
    return json_response(asdict(list_outbox(cursor=request.args.get("cursor", ""), limit=limit)))


@_answering
def queues() -> ResponseReturnValue:
    """List the queues, with their states and limits."""
    return json_response({"queues": [asdict(queue) for queue in queue_states(clients())]})


@_answering
def control_queue(target: str) -> ResponseReturnValue:
    """Pause, resume or purge a queue, or set its rate."""
    queue, _, verb = target.rpartition(":")
    if verb == "rate":
        changes.control_queue(queue, verb, typed_body(RateChange, MAX_BODY_BYTES).max_per_s)
    else:
        _check_empty_body()
        changes.control_queue(queue, verb)
    return json_response({"queue": queue, "done": verb})


@_answering
def send_pings() -> ResponseReturnValue:
    """Send a ping through each queue of the app."""
    _check_empty_body()
    return pings.send()


@_answering
def control_lane(name: str, target: str) -> ResponseReturnValue:
    """Pause, resume or drain a key of a lane."""
    _check_empty_body()
    key, _, verb = target.rpartition(":")
    return json_response({"lane": name, "key": key, **changes.control_lane(name, key, verb)})


@_answering
@limits(key=lanes.MAX_KEY_BYTES)
def control_lane_key(target: str) -> ResponseReturnValue:
    """Pause, resume or drain the key of a lane that the query names."""
    _check_empty_body()
    name, _, verb = target.rpartition(":")
    key = request.args.get("key", "")
    return json_response({"lane": name, "key": key, **changes.control_lane(name, key, verb)})


@_answering
def audit() -> ResponseReturnValue:
    """List the audit trail, the newest entry first."""
    args = request.args
    until = time_of(args.get("before", ""), "before")
    entries, next_before = list_audit(until=until, limit=limit_of(args.get("limit", "")))
    return json_response(
        {"entries": [audit_row(entry) for entry in entries], "next_before": aware_utc(next_before)}
    )


def _check_empty_body() -> None:
    """End a change without arguments with 400 or 415 unless it is JSON, and says nothing."""
    body: Any = json_body(MAX_BODY_BYTES)
    if body != {}:
        raise BadQueryError("Send {} as the body: this takes no arguments.")


ROUTES: Routes = (
    ("/dead-tasks", "GET", dead_tasks),
    ("/dead-tasks/<path:dead_id>", "GET", dead_task),
    ("/dead-tasks/<path:target>", "POST", change_dead_task),
    ("/dead-tasks:<verb>", "POST", change_dead_tasks),
    ("/runs", "GET", runs),
    ("/runs/<pattern>:retry", "POST", retry_failed_runs),
    ("/runs/<pattern>/<path:run_id>", "GET", run),
    ("/runs/<pattern>/<path:target>", "POST", control_run),
    ("/dead-letters/<pattern>/<part>", "GET", letters),
    ("/dead-letters/<pattern>/<target>", "POST", change_letters),
    ("/dead-letters/<pattern>/<part>/<path:letter_id>", "GET", letter),
    ("/dead-letters/<pattern>/<part>/<path:target>", "POST", change_letter),
    ("/tasks", "GET", tasks),
    ("/outbox", "GET", outbox),
    ("/queues", "GET", queues),
    ("/queues/<target>", "POST", control_queue),
    ("/pings", "POST", send_pings),
    ("/pings/<ping_id>", "GET", _answering(pings.show)),
    ("/lanes", "GET", _answering(lanes.list_lanes)),
    (
        "/lanes/<name>",
        "GET",
        _answering(limits(after=lanes.MAX_KEY_BYTES, key=lanes.MAX_KEY_BYTES)(lanes.list_keys)),
    ),
    ("/lanes/<target>", "POST", control_lane_key),
    ("/lanes/<name>/<path:key>", "GET", _answering(lanes.show_key)),
    ("/lanes/<name>/<path:target>", "POST", control_lane),
    ("/schedules", "GET", _answering(schedules.list_declared)),
    ("/schedules/<name>", "GET", _answering(schedules.show_schedule)),
    ("/schedules/<name>/users", "GET", _answering(schedules.list_of_users)),
    ("/audit", "GET", audit),
)
