"""The top of the house: settings from the environment, clients, the app.

gunicorn calls `main:serve()` in each worker, after the fork. Nothing is opened, read or
configured at import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from flask import Flask

import handlers
from handlers.settings import DemoSettings
from pipelines.counters.counters import WAYS, is_row_of
from pipelines.invitations.mail import Mailer, SmtpMailer
from pipelines.registry import APP
from rollforward import flask as endpoints
from rollforward.registry import Registry
from rollforward.runtime import Clients, open_cache
from rollforward.runtime.channel.write_limit import EntityWriteLimit, Tickets


def serve() -> Flask:
    """Return the app as the environment describes it; what gunicorn calls."""
    settings = DemoSettings.from_environment(os.environ)
    app = create_app(settings, clients := open_clients(settings))
    endpoints.start(settings, clients, APP)
    return app


def open_clients(
    settings: DemoSettings, registry: Registry = APP, *, interceptors: Sequence[Any] = ()
) -> Clients:
    """Open everything remote that the settings name, to enqueue the tasks of a registry.

    Args:
        interceptors: Interceptors of a local app's calls of Datastore.
    """
    mailer = SmtpMailer(
        settings.smtp_host,
        settings.smtp_port,
        settings.mail_from,
        settings.smtp_user,
        settings.smtp_password,
        settings.smtp_starttls,
    )
    if not settings.is_local or settings.cloud_profile:  # The limit is there.
        return endpoints.open_clients(
            settings, {Mailer: mailer}, registry, interceptors=interceptors
        )
    # An emulator writes one entity as often as it is asked to; the page of counters says so.
    names = [counter.name for counter in WAYS.values()]
    tickets = Tickets(open_cache(settings.memcached, scope=settings.cache_scope))
    limit = EntityWriteLimit(tickets, lambda key: is_row_of(key, names))
    services: dict[type, object] = {Mailer: mailer, EntityWriteLimit: limit}
    return endpoints.open_clients(settings, services, registry, interceptors=[*interceptors, limit])


def create_app(settings: DemoSettings, clients: Clients, registry: Registry = APP) -> Flask:
    """Return the app, on clients that are open, for the parts of a registry."""
    app = Flask(__name__)
    handlers.mount(app, settings, clients, registry)
    return app
