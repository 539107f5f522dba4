"""Runs of all patterns, for an operator's program: the console of the local platform, or a script.

    GET  /control/runs?pattern=&state=&name=&before=&limit=   {"runs": [...], "next_before": ...}
    GET  /control/runs/<pattern>/<id>                a run with its items
    POST /control/runs/<pattern>/<id>:<verb>         cancel, resume, retry: {"id": ...}
    POST /control/runs/flows/<id>:retry?from_step=   the step and all later ones: {"id": ...}

Times are ISO 8601 in UTC. The caller proves itself as the scheduler does. Errors are problem
details (RFC 9457). The verb follows a colon, as in Google's APIs (AIP-136): no id has one.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, jsonify, request
from flask.typing import ResponseReturnValue

from rollforward.flask.api.problems import problem
from rollforward.flask.context import clients, registry
from rollforward.flask.endpoints.tasks import ANY_METHOD
from rollforward.flask.guards.auth import operators_only, proved_account
from rollforward.look.lists import parse_integer
from rollforward.operations.audit import recorded
from rollforward.tasks.runs import (
    MAX_LISTED,
    MAX_STEP_BYTES,
    STATES,
    VERBS,
    RunQuery,
    RunRefusedError,
    UnknownRunError,
)

NO_RUN = "There is no such run."
# Patterns put the names of their rows in front.
MAX_ID_BYTES = 1_000

bp = Blueprint("rollforward_runs", __name__, url_prefix="/control")


@bp.get("/runs", provide_automatic_options=False)
@operators_only
def list_runs() -> ResponseReturnValue:
    """Return runs, the newest first."""
    try:
        query = _query()
    except ValueError as error:
        return problem(400, str(error))
    matching = registry().runs(clients(), query)
    return _json(
        {"runs": [asdict(run) for run in matching.runs], "next_before": matching.next_before}
    )


def _is_id(run_id: str) -> bool:
    """Return whether a run may be called so: Datastore takes no longer names."""
    return len(run_id.encode()) <= MAX_ID_BYTES


@bp.get("/runs/<pattern>/<path:run_id>", provide_automatic_options=False)
@operators_only
def show_run(pattern: str, run_id: str) -> ResponseReturnValue:
    """Return one run, with its items."""
    if not _is_id(run_id):
        return problem(404, NO_RUN)
    try:
        return _json(asdict(registry().run(clients(), pattern, run_id)))
    except UnknownRunError:
        return problem(404, NO_RUN)


@bp.post("/runs/<pattern>/<path:target>", provide_automatic_options=False)
@operators_only
def control_run(pattern: str, target: str) -> ResponseReturnValue:
    """Cancel, resume or retry a run; return the id of the run to look at."""
    step = request.args.get("from_step", "")
    run_id, _, action = target.rpartition(":")
    verb = next((verb for verb in VERBS if verb == action), None)
    if verb is None or not run_id:
        return problem(404, f"A run is told what to do by {', '.join(f':{v}' for v in VERBS)}.")
    if not _is_id(run_id):
        return problem(404, NO_RUN)
    if len(step.encode()) > MAX_STEP_BYTES:
        return problem(400, f"A step has a name of at most {MAX_STEP_BYTES} bytes.")
    try:
        with recorded(
            clients(),
            operator=proved_account(),
            role="account",
            action=f"{verb} run",
            target=f"{pattern}/{run_id}" + (f" from {step}" if step else ""),
        ):
            next_id = registry().control_run(clients(), pattern, run_id, verb, from_step=step)
        return jsonify({"id": next_id})
    except UnknownRunError:
        return problem(404, NO_RUN)
    except RunRefusedError as error:
        return problem(409, f"This run does not take {verb}: {error}.")


@bp.route("/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@operators_only
def unknown(rest: str) -> ResponseReturnValue:
    """Answer 404 to authenticated callers: a stranger learns no route."""
    return "", 404


def _query() -> RunQuery:
    """Return the query in the address.

    Raises:
        ValueError: it cannot be understood; the text says which part.
    """
    state = request.args.get("state", "")
    limit = parse_integer(request.args.get("limit", "20"), MAX_LISTED)
    if state not in ("", *STATES):
        raise ValueError(f"state is one of {', '.join(STATES)}.")
    if limit is None:
        raise ValueError(f"limit is a number from 1 to {MAX_LISTED}.")
    pattern, patterns = request.args.get("pattern", ""), registry().patterns
    if pattern not in ("", *patterns):
        raise ValueError(f"pattern is one of {', '.join(patterns)}.")
    return RunQuery(_before(), state, request.args.get("name", ""), limit, pattern=pattern)


def _before() -> datetime.datetime | None:
    text = request.args.get("before", "")
    if not text:
        return None
    try:
        start = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("before is a time, as next_before of a list.") from None
    if start.tzinfo is None:
        raise ValueError("before is a time with its zone, as next_before of a list.")
    try:
        return start.astimezone(datetime.UTC)
    except OverflowError:
        raise ValueError("before is a time from year 1 to 9999 in UTC.") from None


def _json(value: dict[str, Any]) -> Response:
    """Return JSON with times as ISO 8601; Flask would write them as in HTTP headers."""
    text = json.dumps(value, default=datetime.datetime.isoformat)
    return Response(text, content_type="application/json")
