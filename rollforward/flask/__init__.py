"""Endpoints that an app mounts: tasks, cron, health, metrics, runs; and their callers' proofs.

    serve = rf.serve(app, ship, RAISE_PRICES)

    rollforward run shop:serve                                            # on a laptop
    gunicorn --config python:rollforward.gunicorn.config shop:serve       # deployed

Routes: POST /tasks/<path>; GET /cron/sweep, /cron/<pattern>/sweep, /metrics, /health/live and
/health/ready; /control/runs. Forms of the app's own pages need a CSRF token (`csrf_token()` in a
template).
"""

from rollforward.flask.app import configure, mount, open_clients, serve, start
from rollforward.flask.context import clients, registry, settings
from rollforward.flask.opening import open_app
from rollforward.flask.settings import BadSettingsError, Settings

__all__ = [
    "BadSettingsError",
    "Settings",
    "clients",
    "configure",
    "mount",
    "open_app",
    "open_clients",
    "registry",
    "serve",
    "settings",
    "start",
]
