"""Is it there, and can it work. Not /healthz: Cloud Run keeps paths that end in z."""

from __future__ import annotations

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from handlers.wiring import clients

bp = Blueprint("health", __name__)

PING_TIMEOUT_S = 2.0


@bp.get("/health/live")
@bp.get("/_ah/warmup")
def live() -> ResponseReturnValue:
    """Tell that the process answers."""
    return jsonify(live=True)


@bp.get("/health/ready")
def ready() -> ResponseReturnValue:
    """Tell whether what the app needs answers; it works without memcached, and slower."""
    states = service_states()
    is_ready = states["datastore"] and states["tasks"]
    return jsonify(ready=is_ready, **states), 200 if is_ready else 503


def service_states() -> dict[str, bool]:
    """Return which services answer."""
    return {
        "datastore": _datastore_answers(),
        "tasks": clients().tasks.ping(),
        "memcached": clients().cache.ping(),
    }


def _datastore_answers() -> bool:
    try:
        ndb.Key("Ping", "ping").get(retries=0, timeout=PING_TIMEOUT_S)
    except (rpc_errors.GoogleAPICallError, ndb.exceptions.Error):
        return False
    return True
