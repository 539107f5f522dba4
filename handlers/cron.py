"""What the scheduler calls; cron.yaml says when."""

from __future__ import annotations

import logging

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue

from handlers.access import cron_only
from handlers.deliveries import ANY_METHOD
from handlers.wiring import clients, registry
from pipelines import continuations, outbox

log = logging.getLogger(__name__)

bp = Blueprint("cron", __name__, url_prefix="/cron")


@bp.get("/continuations/sweep", provide_automatic_options=False)
@cron_only
def sweep_continuations() -> ResponseReturnValue:
    """Wake the pages that have waited too long."""
    woken = continuations.sweep(clients(), registry().jobs)
    if woken:
        log.warning("woke %d pages", woken)
    return jsonify(woken=woken)


@bp.get("/outbox/sweep", provide_automatic_options=False)
@cron_only
def sweep_outbox() -> ResponseReturnValue:
    """Create the tasks that were committed and never created."""
    swept = outbox.sweep(clients())
    if swept.created or swept.partitions:
        log.warning("relayed %d rows, %d partitions to walk", swept.created, swept.partitions)
    return jsonify(created=swept.created, partitions=swept.partitions)


@bp.get("/materialized-views/sweep", provide_automatic_options=False)
@cron_only
def sweep_views() -> ResponseReturnValue:
    """Go on with the tables that are being built or dropped."""
    busy = sum(builds.sweep(clients()) for builds in registry().builds)
    return jsonify(busy=busy)


@bp.route("/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@cron_only
def unknown(rest: str) -> ResponseReturnValue:
    """Say that there is no such sweep, to the scheduler alone: a stranger learns no route."""
    return "", 404
