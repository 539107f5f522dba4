"""What the scheduler calls; cron.yaml says when."""

from __future__ import annotations

import logging

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue

from handlers.access import cron_only
from handlers.wiring import clients, registry
from pipelines import continuations

log = logging.getLogger(__name__)

bp = Blueprint("cron", __name__, url_prefix="/cron")


@bp.get("/continuations/sweep")
@cron_only
def sweep_continuations() -> ResponseReturnValue:
    """Wake the pages that have waited too long."""
    woken = continuations.sweep(clients(), registry().jobs)
    if woken:
        log.warning("woke %d pages", woken)
    return jsonify(woken=woken)
