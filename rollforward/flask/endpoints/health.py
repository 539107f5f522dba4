"""Liveness and readiness. Not /healthz, since Cloud Run keeps paths that end in z.

The endpoints are public, so the services are pinged at most once a second for all callers.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Flask, current_app, jsonify
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.flask.context import clients, settings
from rollforward.runtime.process.recent_answer import RecentAnswer

bp = Blueprint("rollforward_health", __name__)

PING_TIMEOUT_S = 2.0
KEPT_S = 1.0
# Without memcached everything works, in smaller batches.
NEEDED = {"datastore": "Datastore", "tasks": "Cloud Tasks"}


def register(app: Flask) -> None:
    """Mount the endpoints."""
    app.register_blueprint(bp)
    app.extensions["health"] = RecentAnswer()


@bp.get("/health/live")
@bp.get("/_ah/warmup")
def live() -> ResponseReturnValue:
    """Tell that the process answers."""
    return jsonify(live=True)


@bp.get("/health/ready")
def ready() -> ResponseReturnValue:
    """Return whether the needed services answer; without memcached the app is only slower."""
    states = service_states()
    if advice := outage_advice(states):
        return jsonify(ready=False, **states, advice=advice), 503
    return jsonify(ready=True, **states)


def outage_advice(states: Mapping[str, bool]) -> str:
    """Return which needed services do not answer, with the remedy; "": all of them do."""
    away = services_away(states)
    if not away:
        return ""
    problem = f"{' and '.join(away)} {'does' if len(away) == 1 else 'do'} not answer."
    if not settings().is_local:
        return f"{problem} Accepted work is kept and continues when the service is back."
    return (
        f"{problem} If that lasts longer than ten seconds, stop `make run` with Ctrl-C and start "
        "it again: it continues from its last save."
    )


def services_away(states: Mapping[str, bool]) -> list[str]:
    """Return the names of the needed services that do not answer."""
    return [name for key, name in NEEDED.items() if not states[key]]


def service_states() -> dict[str, bool]:
    """Return which services answer, or did within a second."""
    health: RecentAnswer[dict[str, bool]] = current_app.extensions["health"]
    return dict(health.get(_check, KEPT_S))


def _check() -> dict[str, bool]:
    return {
        "datastore": _is_datastore_ready(),
        "tasks": clients().tasks.ping(),
        "memcached": clients().cache.ping(),
    }


def _is_datastore_ready() -> bool:
    try:
        ndb.Key("Ping", "ping").get(retries=0, timeout=PING_TIMEOUT_S)
    except (rpc_errors.GoogleAPICallError, ndb.exceptions.Error):
        return False
    return True
