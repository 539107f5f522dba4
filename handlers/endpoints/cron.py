"""What the scheduler calls; cron.yaml says when."""

from __future__ import annotations

import logging

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue

from handlers.endpoints.auth import cron_only
from handlers.endpoints.context import clients, registry
from handlers.endpoints.tasks import ANY_METHOD
from pipelines import outbox
from pipelines.continuations import sweep as continuations
from pipelines.fork_join.sweep import forget, sweep_all
from pipelines.materialized_views import rebuild
from pipelines.tasks import attempts

log = logging.getLogger(__name__)

bp = Blueprint("cron", __name__, url_prefix="/cron")


@bp.get("/continuations/sweep", provide_automatic_options=False)
@cron_only
def sweep_continuations() -> ResponseReturnValue:
    """Wake the pages that have waited too long; forget what has expired."""
    woken = continuations.sweep(clients(), registry().jobs)
    if woken:
        log.warning("woke %d pages", woken)
    return jsonify(woken=woken, forgotten=continuations.forget(clients()))


@bp.get("/outbox/sweep", provide_automatic_options=False)
@cron_only
def sweep_outbox() -> ResponseReturnValue:
    """Create the tasks that were committed and never created; forget the attempts of old tasks."""
    swept = outbox.sweep(clients())
    if swept.created or swept.partitions:
        log.warning("relayed %d rows, %d partitions to walk", swept.created, swept.partitions)
    forgotten = attempts.delete_expired(clients())
    return jsonify(created=swept.created, partitions=swept.partitions, forgotten=forgotten)


@bp.get("/materialized-views/sweep", provide_automatic_options=False)
@cron_only
def sweep_views() -> ResponseReturnValue:
    """Go on with the tables that are being built or dropped."""
    return jsonify(busy=rebuild.sweep_all(clients(), registry().builds))


@bp.get("/fork-join/sweep", provide_automatic_options=False)
@cron_only
def sweep_fork_joins() -> ResponseReturnValue:
    """Wake the batches that nobody has folded; forget what has expired."""
    try:
        swept = sweep_all(clients(), registry().fork_joins)
    finally:
        forgotten = forget(clients())
    if swept.woken or swept.partitions:
        log.warning("woke %d batches, %d partitions to walk", swept.woken, swept.partitions)
    return jsonify(woken=swept.woken, partitions=swept.partitions, forgotten=forgotten)


@bp.route("/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@cron_only
def unknown(rest: str) -> ResponseReturnValue:
    """Say that there is no such sweep, to the scheduler alone: a stranger learns no route."""
    return "", 404
