"""Is it there, and can it work. Not /healthz: Cloud Run keeps paths that end in z."""

from __future__ import annotations

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from handlers.endpoints.context import clients, settings

bp = Blueprint("rollforward_health", __name__)

PING_TIMEOUT_S = 2.0
# Without memcached everything works, in smaller batches.
NEEDED = {"datastore": "Datastore", "tasks": "Cloud Tasks"}


@bp.get("/health/live")
@bp.get("/_ah/warmup")
def live() -> ResponseReturnValue:
    """Tell that the process answers."""
    return jsonify(live=True)


@bp.get("/health/ready")
def ready() -> ResponseReturnValue:
    """Return whether what the app needs answers; it works without memcached, and slower."""
    states = service_states()
    away = [name for key, name in NEEDED.items() if not states[key]]
    if not away:
        return jsonify(ready=True, **states)
    return jsonify(ready=False, **states, advice=_advice(away)), 503


def _advice(away: list[str]) -> str:
    """Return what a person does about services that do not answer."""
    who = f"{' and '.join(away)} {'does' if len(away) == 1 else 'do'} not answer."
    if not settings().is_local:
        return f"{who} What was accepted is kept; work goes on when the service is back."
    return (
        f"{who} If that lasts longer than ten seconds, stop `make run` with Ctrl-C and start it "
        "again: it goes on from its last save."
    )


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
