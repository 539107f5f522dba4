"""What the scheduler calls; cron.yaml says when."""

from __future__ import annotations

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue

from rollforward.flask.auth import cron_only
from rollforward.flask.context import clients, registry
from rollforward.flask.tasks import ANY_METHOD

bp = Blueprint("rollforward_cron", __name__, url_prefix="/cron")


@bp.get("/sweep", provide_automatic_options=False)
@cron_only
def sweep_all() -> ResponseReturnValue:
    """Sweep every pattern; one that fails stops none, and is null in the response."""
    done = registry().sweep_all(clients(), deletes=True)
    return jsonify(done), 500 if None in done.values() else 200


@bp.get("/<pattern>/sweep", provide_automatic_options=False)
@cron_only
def sweep(pattern: str) -> ResponseReturnValue:
    """Wake what waits in one pattern longer than it should; delete what has expired."""
    known = registry().patterns.get(pattern)
    if known is None or not known.is_swept:
        return "", 404
    return jsonify(registry().sweep(clients(), pattern, deletes=True))


@bp.route("/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@cron_only
def unknown(rest: str) -> ResponseReturnValue:
    """Say that there is no such sweep, to the scheduler alone: a stranger learns no route."""
    return "", 404
