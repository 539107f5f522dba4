"""Is it there, and can it work. Not /healthz: Cloud Run keeps paths that end in z.

Anybody may ask, so the services are asked once a second at most, for all who ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flask import Blueprint, Flask, current_app, jsonify
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.flask.context import clients, settings

bp = Blueprint("rollforward_health", __name__)

PING_TIMEOUT_S = 2.0
KEPT_S = 1.0
# Without memcached everything works, in smaller batches.
NEEDED = {"datastore": "Datastore", "tasks": "Cloud Tasks"}


@dataclass
class Health:
    """Which services answered when they were asked last."""

    elapsed_s: Callable[[], float] = time.monotonic
    _states: dict[str, bool] | None = None
    _asked_at_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def states(self) -> dict[str, bool]:
        """Return what they answered within a second, or ask them.

        While somebody else asks them, the answer is what they said before: nobody waits in line.
        """
        if not self._lock.acquire(blocking=self._states is None):
            return dict(self._states or {})
        try:
            if self._states is None or self.elapsed_s() - self._asked_at_s >= KEPT_S:
                self._states, self._asked_at_s = _ask(), self.elapsed_s()
            return dict(self._states)
        finally:
            self._lock.release()


def register(app: Flask) -> None:
    """Mount the endpoints."""
    app.register_blueprint(bp)
    app.extensions["health"] = Health()


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
    """Return which services answer, or did within a second."""
    health: Health = current_app.extensions["health"]
    return health.states()


def _ask() -> dict[str, bool]:
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
