"""Endpoints that an app mounts: tasks, cron, health, metrics, runs; and their callers' proofs.

    def serve() -> Flask:
        app = Flask(__name__)
        app.register_blueprint(pages)
        return rf.serve(app, rf.Registry(ship, RAISE_PRICES))

    python -m rollforward.local --target shop:serve

Routes: POST /tasks/<path>; GET /cron/sweep, /cron/<pattern>/sweep, /metrics, /health/live and
/health/ready; /control/runs. Forms of the app's own pages need a CSRF token (`csrf_token()` in a
template).
"""

from rollforward.flask.app import configure, mount, open_clients, serve, start
from rollforward.flask.context import clients, registry, settings
from rollforward.flask.settings import BadSettingsError, Settings

__all__ = [
    "BadSettingsError",
    "Settings",
    "clients",
    "configure",
    "mount",
    "open_clients",
    "registry",
    "serve",
    "settings",
    "start",
]
