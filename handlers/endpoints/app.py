"""An app on the patterns: clients are opened, endpoints mounted, and what was left is looked for.

    def serve() -> Flask:
        app = Flask(__name__)
        app.register_blueprint(pages)
        return endpoints.serve(app, Registry(ship, RAISE_PRICES))

Nothing is opened at import: gunicorn calls `serve` in each worker, after the fork.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flask import Flask
from flask_wtf.csrf import CSRFProtect
from google.api_core import exceptions as rpc_errors

from handlers.endpoints import (
    cron,
    delivery_log,
    errors,
    health,
    metrics,
    recovery,
    runs,
    security,
    tasks,
)
from handlers.endpoints.context import Wiring
from handlers.endpoints.settings import Settings
from pipelines.outbox import BackgroundRelay
from pipelines.registry import Registry, UnknownQueueError
from pipelines.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from pipelines.tasks import CloudTaskQueue

log = logging.getLogger(__name__)

# An upload of 10 MiB in a form, and a little.
MAX_REQUEST_BYTES = 11 * 1024 * 1024
MAX_FORM_BYTES = 512 * 1024
MAX_FORM_PARTS = 50


def serve(
    app: Flask, registry: Registry, *, services: Mapping[type, object] | None = None
) -> Flask:
    """Make a Flask app work as the environment describes it, and return it.

    Args:
        registry: All that the app's tasks, jobs, views and queues are.
        services: The app's own, by type: what `clients.service(Mailer)` returns in a task.

    Raises:
        BadSettingsError: the environment does not describe a whole configuration.
        UnknownQueueError: on a laptop, a task goes to a queue that queue.yaml does not have.
    """
    settings = Settings.from_environment(os.environ)
    logging.basicConfig(level=settings.log_level, format="%(levelname)s %(name)s: %(message)s")
    clients = open_clients(settings, services or {})
    mount(app, settings, clients, registry)
    start(settings, clients, registry)
    return app


def open_clients(settings: Settings, services: Mapping[type, object]) -> Clients:
    """Open everything remote that the settings name."""
    meter = Meter()
    cloud_tasks = open_cloud_tasks(emulator=settings.cloud_tasks_emulator, interceptors=[meter])
    clients = Clients(
        datastore=open_datastore(
            settings.project,
            emulator=settings.datastore_emulator,
            database=settings.database,
            interceptors=[meter],
        ),
        tasks=CloudTaskQueue(cloud_tasks, settings.project, settings.location, settings.target),
        cache=open_cache(settings.memcached),
        meter=meter,
        relay=BackgroundRelay(),
        services=services,
    )
    # gunicorn ends a worker by SIGTERM, and Python by this.
    atexit.register(clients.process_state.shutdown)
    return clients


def mount(
    app: Flask,
    settings: Settings,
    clients: Clients,
    registry: Registry,
    *,
    error_page: errors.ErrorPage = errors.plain_page,
    api_prefix: str | None = None,
) -> None:
    """Mount tasks, cron, health, metrics and runs, and guard every request of the app.

    Args:
        api_prefix: Where the app takes JSON from programs, without cookies: such requests need no
            CSRF token, and their errors are problem details.
    """
    app.config.update(
        SECRET_KEY=settings.secret_keys[0],
        SECRET_KEY_FALLBACKS=list(settings.secret_keys[1:]),
        SESSION_COOKIE_NAME="session" if settings.is_local else "__Host-session",
        SESSION_COOKIE_SECURE=not settings.is_local,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        MAX_CONTENT_LENGTH=MAX_REQUEST_BYTES,
        MAX_FORM_MEMORY_SIZE=MAX_FORM_BYTES,
        MAX_FORM_PARTS=MAX_FORM_PARTS,
        WTF_CSRF_TIME_LIMIT=24 * 3600,
        WTF_CSRF_CHECK_DEFAULT=False,  # Pages check; tasks prove their caller instead.
    )
    app.extensions["wiring"] = Wiring(settings, clients, registry, api_prefix)
    security.register(app, CSRFProtect(app), settings)
    for endpoints in (tasks, cron, health, metrics, runs):
        app.register_blueprint(endpoints.bp)
    errors.register(app, error_page)
    app.wsgi_app = _in_context(clients, app.wsgi_app)  # type: ignore[method-assign]


def start(settings: Settings, clients: Clients, registry: Registry) -> None:
    """Do what a worker does when it starts: check its queues, and look for what was left.

    Raises:
        UnknownQueueError: on a laptop. A deployed app logs it, and serves what has its queue.
    """
    if settings.is_local:
        delivery_log.install()
        _check_queues(clients, registry)
    else:  # Visitors do not wait for it.
        threading.Thread(target=_log_unknown_queues, args=(clients, registry), daemon=True).start()
    recovery.start(clients, registry)


def _log_unknown_queues(clients: Clients, registry: Registry) -> None:
    try:
        _check_queues(clients, registry)
    except UnknownQueueError as error:
        log.error("%s", error)  # noqa: TRY400  The sentence is all there is.


def _check_queues(clients: Clients, registry: Registry) -> None:
    try:
        existing = clients.tasks.queues()
    except rpc_errors.GoogleAPICallError as error:
        log.warning("the queues could not be listed, and are not checked: %s", error)
        return
    registry.check_queues(existing)


def _in_context(clients: Clients, wsgi_app: Any) -> Callable[..., Iterable[bytes]]:
    """Run each request in an ndb context of its own."""

    def with_context(environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        with clients.context():
            response: Iterable[bytes] = wsgi_app(environ, start_response)
            return response

    return with_context
