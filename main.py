"""The top of the house: settings from the environment, clients, the app.

gunicorn calls `main:serve()` in each worker, after the fork. Nothing is opened, read or
configured at import.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flask import Flask, render_template
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError, CSRFProtect
from google.api_core import exceptions as rpc_errors
from gunicorn.http.errors import NoMoreData, ParseException
from werkzeug.exceptions import HTTPException, TooManyRequests

import handlers
from demos.invitations.mail import Mailer, SmtpMailer
from demos.registry import APP
from handlers import limits, security
from handlers.endpoints import recovery
from handlers.endpoints.context import Wiring, is_api_path, is_machine_path
from handlers.problems import problem
from handlers.settings import Settings
from models.transactions import TRANSIENT
from pipelines.fork_join.queue import OutcomeUnknownError
from pipelines.outbox import BackgroundRelay
from pipelines.registry import Registry
from pipelines.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from pipelines.tasks.cloud_tasks import CloudTaskQueue

log = logging.getLogger(__name__)

# An upload of 10 MiB in a form, and a little.
MAX_REQUEST_BYTES = 11 * 1024 * 1024
MAX_FORM_BYTES = 512 * 1024
MAX_FORM_PARTS = 50


def serve() -> Flask:
    """Return the app as the environment describes it; what gunicorn calls."""
    settings = Settings.from_environment(os.environ)
    logging.basicConfig(level=settings.log_level, format="%(levelname)s %(name)s: %(message)s")
    app = create_app(settings, clients := open_clients(settings))
    recovery.start(clients, APP)
    return app


def open_clients(settings: Settings) -> Clients:
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
        services={
            Mailer: SmtpMailer(
                settings.smtp_host,
                settings.smtp_port,
                settings.mail_from,
                settings.smtp_user,
                settings.smtp_password,
                settings.smtp_starttls,
            ),
        },
    )
    atexit.register(
        clients.process_state.shutdown
    )  # gunicorn ends a worker by SIGTERM, and Python by this.
    return clients


def create_app(settings: Settings, clients: Clients, registry: Registry = APP) -> Flask:
    """Return the app, on clients that are open, for the jobs of a registry."""
    app = Flask(__name__)
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
    app.extensions["wiring"] = Wiring(settings, clients, registry)
    csrf = CSRFProtect(app)
    limits.register(app, settings)
    security.register(app, csrf, settings)
    handlers.register(app)
    _map_errors(app)
    app.wsgi_app = _in_context(clients, app.wsgi_app)  # type: ignore[method-assign]
    return app


def _in_context(clients: Clients, wsgi_app: Any) -> Callable[..., Iterable[bytes]]:
    """Run each request in an ndb context of its own."""

    def with_context(environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        with clients.context():
            answer: Iterable[bytes] = wsgi_app(environ, start_response)
            return answer

    return with_context


def _map_errors(app: Flask) -> None:
    """Turn errors into answers: what went wrong and what to do, never a stack."""

    def plain(status: int, words: str) -> ResponseReturnValue:
        if is_machine_path():
            return "", status
        if is_api_path():
            return problem(status, words)
        return render_template("error.html", status=status, words=words), status

    def http_error(error: HTTPException) -> ResponseReturnValue:
        answer = app.make_response(plain(error.code or 500, error.description or ""))
        if isinstance(error, TooManyRequests) and error.retry_after is not None:
            answer.headers["Retry-After"] = str(error.retry_after)
        return answer

    def garbled(error: Exception) -> ResponseReturnValue:
        log.info("a body that is no HTTP: %.200r", str(error))
        return plain(400, "The body of this request is not as HTTP wants it.")

    def forged(error: CSRFError) -> ResponseReturnValue:
        return plain(403, f"{error.description} Go back, reload the page and try again.")

    def lost_race(error: Exception) -> ResponseReturnValue:
        return plain(409, "Somebody else changed this just now. Nothing was lost; try again.")

    def unwell(error: Exception) -> ResponseReturnValue:
        log.warning("a service is out of order: %s", error)
        return plain(503, "A service behind this page does not answer. Try again in a moment.")

    def unknown(error: Exception) -> ResponseReturnValue:
        log.error("a request failed", exc_info=error)
        return plain(500, "Something went wrong on our side. It was written to the log.")

    app.register_error_handler(HTTPException, http_error)
    app.register_error_handler(CSRFError, forged)
    for kind in (ParseException, NoMoreData):  # Chunks are taken apart when the body is read.
        app.register_error_handler(kind, garbled)
    for kind in (OutcomeUnknownError, *TRANSIENT):
        app.register_error_handler(kind, lost_race if kind is rpc_errors.Aborted else unwell)
    app.register_error_handler(Exception, unknown)
