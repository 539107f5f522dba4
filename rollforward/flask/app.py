"""Setup of an app: declare it, open the clients, mount the endpoints, recover abandoned work.

    serve = rf.serve(app, ship, RAISE_PRICES)

Nothing is opened at import: each worker opens the app when it starts (opening.py).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from flask import Flask
from google.api_core import exceptions as rpc_errors

from rollforward.flask import costs, errors, live, recovery, spans
from rollforward.flask.api import pull_queues, streams
from rollforward.flask.context import Wiring
from rollforward.flask.endpoints import cron, delivery_log, health, metrics, runs, tasks
from rollforward.flask.guards import csrf, fields, own_hooks, security
from rollforward.flask.opening import KEY, Opening, in_context
from rollforward.flask.own_routes import check_routes
from rollforward.flask.settings import Settings
from rollforward.outbox import BackgroundRelay
from rollforward.registry import Registry
from rollforward.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from rollforward.runtime.channel.hot_rows import HotRows
from rollforward.runtime.channel.limits import DatastoreLimits
from rollforward.runtime.process.open_transactions import OpenTransactions
from rollforward.runtime.process.processes import NoProcesses, open_processes
from rollforward.tasks import CloudTaskQueue
from rollforward.tasks.cloud_tasks import UrlTarget
from rollforward.tasks.errors import UnknownQueueError
from rollforward.telemetry import CloudLogFormatter, logs
from rollforward.tracing import CallSpans

log = logging.getLogger(__name__)

# How long a deployed app waits before it asks Cloud Tasks for its queues. The library takes a
# while to load, and the first visitors' requests come first.
QUEUES_CHECKED_AFTER_S = 5.0


class Mounted(Protocol):
    """A part that mounts itself, like `rollforward.console.Console`."""

    def register(self, app: Flask) -> None:
        """Mount its routes."""
        ...


def serve(
    app: Flask,
    *parts: object,
    services: Mapping[type, object] | None = None,
    console: Mounted | None = None,
    guards_pages: bool = True,
) -> Flask:
    """Make a Flask app work as the environment describes it, and return it.

    It opens nothing yet, so a module may call this when it is imported. The clients are opened, and
    the endpoints are mounted, when a worker starts (`open_app`), or by the first request.

    Args:
        parts: All tasks, jobs, views and queues of the app, or one Registry of them.
        services: The app's own, by type: `clients.service(Mailer)` returns them in a task.
        console: `rf.Console(access=...)` for the app's operators; None: one on the local platform,
            and none where the app is deployed.
        guards_pages: Also the app's own pages get our CSRF check, limits of fields, headers, error
            pages and cookies. False, for an app that has its own: only the library's endpoints.

    Raises:
        TypeError: there is no Flask app, or it is served already; no pattern takes a part, or two
            parts exclude each other.
    """
    if not isinstance(app, Flask):
        raise TypeError(
            f"rf.serve takes the Flask app first, and then its tasks, got {app!r:.100}: write "
            "serve = rf.serve(app, greet)"
        )
    if KEY in app.extensions:
        raise TypeError(
            f"rf.serve was called for {app.name!r:.50} before: list all its parts in one call"
        )
    registry = parts[0] if len(parts) == 1 and isinstance(parts[0], Registry) else Registry(*parts)

    def mount_on(settings: Settings, clients: Clients) -> Wiring:
        mount(app, settings, clients, registry, console=console, guards_pages=guards_pages)
        return app.extensions["wiring"]  # type: ignore[no-any-return]

    mounted: list[Wiring] = []

    def open_wiring() -> Wiring:
        if not mounted:  # Otherwise a worker could not start on it, and is to try again.
            settings = Settings.from_environment(os.environ)
            mounted.append(mount_on(settings, open_clients(settings, services or {}, registry)))
        wiring = mounted[0]
        start(wiring.settings, wiring.clients, registry)
        return wiring

    Opening(app, registry, services or {}, mount_on, open_wiring)
    return app


def open_clients(
    settings: Settings,
    services: Mapping[type, object],
    registry: Registry | None = None,
    *,
    interceptors: Sequence[Any] = (),
) -> Clients:
    """Open everything remote that the settings name.

    Args:
        registry: All tasks that are delivered; enqueueing any other task is refused. None: any
            task is accepted.
        interceptors: Interceptors of calls of Datastore, behind our own.
    """
    meter = Meter()
    processes = open_processes(settings.processes_folder)
    limits: list[Any] = []
    if settings.is_local:
        limits = [DatastoreLimits(folder=settings.reports_folder)]
    cache = open_cache(settings.memcached, scope=settings.cache_scope)
    call_spans = CallSpans()
    task_interceptors: list[Any] = [call_spans, meter]
    if settings.cloud_profile:  # Never in a deployed app, which does not have the package.
        from rollforward.cloud_profile.slowdown import slowed

        slow = slowed(settings.cloud_profile, cache)
        cache, limits, task_interceptors = (
            slow.cache,
            [*limits, *slow.datastore],
            [call_spans, meter, *slow.tasks],
        )
    cloud_tasks = open_cloud_tasks(
        emulator=settings.cloud_tasks_emulator, interceptors=task_interceptors
    )
    relay, is_local = BackgroundRelay(), settings.datastore_emulator is not None
    hot_rows = HotRows(by_kind=is_local)
    clients = Clients(
        datastore=open_datastore(
            settings.project,
            emulator=settings.datastore_emulator,
            database=settings.database,
            interceptors=[hot_rows, call_spans, meter, *interceptors, *limits],
            transactions=OpenTransactions(processes),
        ),
        tasks=CloudTaskQueue(cloud_tasks, settings.project, settings.location, settings.target),
        cache=cache,
        meter=meter,
        relay=relay,
        processes=processes or NoProcesses(),
        services=services,
        task_paths=registry.tasks if registry is not None else None,
    )
    hot_rows.start(clients)
    clients.process_state.on_last_request("outbox", relay.finish)
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
    console: Mounted | None = None,
    guards_pages: bool = True,
) -> None:
    """Configure an app, and mount tasks, cron, health, metrics, runs, live updates and APIs.

    Args:
        error_page, api_prefix: As of `configure`.
        console, guards_pages: As of `serve`.

    Raises:
        TypeError: a route of the app takes the deliveries of a task, or routes need hosts.
    """
    check_routes(app, registry.tasks, settings.target)
    configure(
        *(app, settings, clients, registry),
        error_page=error_page,
        api_prefix=api_prefix,
        guards_pages=guards_pages,
    )
    for endpoints in (tasks, cron, metrics, runs):
        app.register_blueprint(endpoints.bp)
    for services in (health, live, pull_queues, streams):
        services.register(app)
    if console is None and settings.is_local:
        console = _local_console()
    if console is not None:
        console.register(app)
    csrf.exempt_machines(app)
    errors.register_on_library_endpoints(app, error_page)


def _local_console() -> Mounted:
    from rollforward.console import Console, local  # A deployed app need not load it.

    return Console(access=local)


def configure(
    app: Flask,
    settings: Settings,
    clients: Clients,
    registry: Registry,
    *,
    error_page: errors.ErrorPage = errors.plain_page,
    api_prefix: str | None = None,
    guards_pages: bool = True,
) -> None:
    """Wire an app to its clients and guard all its requests; its endpoints are mounted after it.

    Args:
        error_page: Shows a person a status and a sentence.
        api_prefix: Prefix of paths that take JSON from programs, without cookies. Requests below it
            need no CSRF token, and their errors are problem details.
        guards_pages: As of `serve`.
    """
    if guards_pages:
        _configure_pages(app, settings)
        errors.register(app, error_page)
    elif app.config["SECRET_KEY"] is None:
        _set_secret_keys(app, settings)
    wiring = app.extensions["wiring"] = Wiring(settings, clients, registry, api_prefix)
    own_hooks.register(app)
    if settings.reports_folder:
        costs.register(app, costs.open_report(settings.reports_folder, clients.meter))
    spans.register(app)
    security.register(app, settings, guards_pages=guards_pages)
    if KEY not in app.extensions:  # Otherwise its opening does this.
        app.wsgi_app = in_context(wiring, app.wsgi_app)  # type: ignore[method-assign]


def _configure_pages(app: Flask, settings: Settings) -> None:
    _set_secret_keys(app, settings)
    app.config.update(
        SESSION_COOKIE_NAME=_cookie_name(settings),
        SESSION_COOKIE_PATH="/",  # Browsers demand it of `__Host-` cookies.
        SESSION_COOKIE_DOMAIN=None,
        SESSION_COOKIE_SECURE=not settings.is_local,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        MAX_CONTENT_LENGTH=fields.MAX_REQUEST_BYTES,
        MAX_FORM_MEMORY_SIZE=fields.MAX_FORM_BYTES,
        MAX_FORM_PARTS=fields.MAX_FIELDS,
    )


def _set_secret_keys(app: Flask, settings: Settings) -> None:
    key, *older_keys = settings.secret_keys
    app.config.update(SECRET_KEY=key, SECRET_KEY_FALLBACKS=older_keys)


def _cookie_name(settings: Settings) -> str:
    """Return the name of the session's cookie: a browser sends it to all ports of a laptop."""
    if not settings.is_local:
        return "__Host-session"
    target = settings.target
    port = urlsplit(target.base_url).port if isinstance(target, UrlTarget) else None
    return f"session-{port}" if port else "session"


def start(settings: Settings, clients: Clients, registry: Registry) -> None:
    """Start a worker: set up logging, check its queues, begin to recover abandoned work.

    Raises:
        UnknownQueueError: on a laptop. A deployed app logs it, and serves the other queues.
    """
    logs.install(settings.log_format, settings.log_level, _log_formatter(settings))
    if settings.is_local:
        delivery_log.install()
        _check_queues(clients, registry)
    else:  # Visitors do not wait for it.
        threading.Thread(target=_log_unknown_queues, args=(clients, registry), daemon=True).start()
    if settings.cpu_always_allocated:  # Otherwise it may stop amid a transaction, with its locks.
        recovery.start(clients, registry)


def _log_formatter(settings: Settings) -> CloudLogFormatter:
    return CloudLogFormatter(
        settings.project, settings.service, settings.version, settings.secret_keys
    )


def _log_unknown_queues(clients: Clients, registry: Registry) -> None:
    clients.clock.sleep(QUEUES_CHECKED_AFTER_S)
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
