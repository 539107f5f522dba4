"""Opening of an app: its clients are opened when a worker starts, and not when it is imported.

`serve` declares; `open_app` opens. gunicorn's configuration (rollforward/gunicorn) and the local
platform call it in each worker, after the fork, since gRPC does not survive one. Under another
server the first request opens the app.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakSet

from flask import Flask

from rollforward import telemetry
from rollforward.flask import spans
from rollforward.flask.context import Wiring
from rollforward.flask.settings import Settings
from rollforward.registry import Registry
from rollforward.runtime import Clients

KEY = "rollforward"
# The apps of this process: the hooks of a server find there one that WSGI middleware hides.
DECLARED: WeakSet[Flask] = WeakSet()
# What ndb says, and what an app does that has opened its own contexts before.
TWO_CONTEXTS = "Context is already created for this thread."
ONE_CONTEXT = (
    "rf.serve opens an ndb context around each request: remove the app's own, such as a WSGI "
    "middleware with `client.context()`."
)


class Opening:
    """A Flask app that is declared, and opened once in each process."""

    def __init__(
        self,
        app: Flask,
        registry: Registry,
        services: Mapping[type, object],
        mount_on: Callable[[Settings, Clients], Wiring],
        open_wiring: Callable[[], Wiring],
    ) -> None:
        """Declare an app.

        Args:
            services: The app's own, by type.
            mount_on: Mounts the endpoints on open clients.
            open_wiring: Opens the clients, mounts the endpoints on them, and starts a worker.
        """
        self.registry = registry
        self.services = services
        self._app = app
        self._mount_on = mount_on
        self._open_wiring = open_wiring
        self._lock = threading.Lock()
        self._wiring: Wiring | None = None
        self._wsgi_app = app.wsgi_app
        app.wsgi_app = self._open_and_respond  # type: ignore[method-assign]
        app.extensions[KEY] = self
        DECLARED.add(app)

    def open(self) -> Wiring:
        """Open the app, unless that has happened, and return its wiring.

        Raises:
            BadSettingsError: the environment does not describe a whole configuration.
            UnknownQueueError: on a laptop, a task goes to a queue that does not exist.
            TypeError: a route of the app takes the deliveries of a task, or routes need hosts.
        """
        if self._wiring is None:
            with self._lock:
                if self._wiring is None:
                    self._wiring = self._open_wiring()
        return self._wiring

    def open_with(self, settings: Settings, clients: Clients) -> None:
        """Open the app with the clients of a test; one that is open continues with them."""
        with self._lock:
            if self._wiring is None:
                self._wiring = self._mount_on(settings, clients)
            else:
                self._wiring = Wiring(settings, clients, self.registry, self._wiring.api_prefix)
                self._app.extensions["wiring"] = self._wiring

    def _open_and_respond(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        wiring = self.open()
        return in_context(wiring, self._wsgi_app)(environ, start_response)


def open_app(app: Flask) -> Wiring:
    """Open what `serve` declared: clients, endpoints, recovery; once in each process.

    Raises:
        BadSettingsError, UnknownQueueError, TypeError: as of `Opening.open`.
    """
    opening: Opening = app.extensions[KEY]
    return opening.open()


def in_context(wiring: Wiring, wsgi_app: Any) -> Callable[..., Iterable[bytes]]:
    """Run each request in an ndb context and a span of its own, in the trace of its headers.

    Where the processor may go with the last request in progress, it waits for background work.
    """
    clients = wiring.clients

    def with_context(environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            with telemetry.in_trace(telemetry.trace_of(environ)), clients.context():
                response: Iterable[bytes] = wsgi_app(environ, start_response)
                return response
        except RuntimeError as error:
            if str(error) == TWO_CONTEXTS:
                error.add_note(ONE_CONTEXT)
            raise

    respond = spans.in_span(with_context)
    if wiring.settings.cpu_always_allocated:
        return respond

    def with_background_work(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with wiring.requests_in_progress.one():
            return respond(environ, start_response)

    return with_background_work
