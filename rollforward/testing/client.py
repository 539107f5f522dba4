"""Client of an app in a test: Flask's, with CSRF tokens, and with workers that may die."""

from __future__ import annotations

import contextvars
import io
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flask
from flask import Flask
from flask.testing import EnvironBuilder, FlaskClient
from werkzeug.datastructures import Headers
from werkzeug.test import EnvironBuilder as AnyEnvironBuilder
from werkzeug.test import TestResponse
from werkzeug.wrappers import Request

from rollforward.testing.injection import Crash
from rollforward.testing.world import World

_TOKEN_HEADER = "HTTP_X_CSRFTOKEN"
# Statuses of a race, a limit and a cancelled call, if the app passes them on.
_REPEATED = (409, 429, 499)


class WorkerDiedError(ConnectionError):
    """The worker died over a request, as `fail` asked for; the visitor saw the connection close."""


class VisitorGaveUpError(AssertionError):
    """A request failed again when it was repeated."""


class _Parts:
    """The parts of a response, each made in the context of its request."""

    def __init__(self, context: contextvars.Context, parts: Iterable[Any]) -> None:
        self._context = context
        self._parts = parts
        self._iterator = iter(parts)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._context.run(next, self._iterator)

    def close(self) -> None:
        if close := getattr(self._parts, "close", None):
            self._context.run(close)


class AppClient(FlaskClient):
    """Flask's test client; a form that brings no CSRF token gets the visitor's.

    Attributes:
        world: The app's world, which notes each request.
        is_patient: Whether a request that fails by a fault is sent once more, as a visitor does.
        csrf: Whether requests get a token; False tests the refusal.
    """

    world: World
    is_patient = False
    csrf = True

    def forget(self) -> None:
        """Be a new visitor."""
        if self._cookies is not None:
            self._cookies.clear()
        self.is_patient = False
        self.csrf = True

    def open(
        self, *args: Any, buffered: bool = False, follow_redirects: bool = False, **options: Any
    ) -> TestResponse:
        environ = self._environ(args, options)
        body = environ["wsgi.input"].read()
        if self.csrf and self._has_no_token(environ, body):
            environ[_TOKEN_HEADER] = self._token()

        def send() -> TestResponse:
            copy = {**environ, "wsgi.input": io.BytesIO(body)}
            return FlaskClient.open(
                self, copy, buffered=buffered, follow_redirects=follow_redirects
            )

        return self._retry(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", send)

    def _retry(self, name: str, send: Callable[[], TestResponse]) -> TestResponse:
        """Send a request, and once more if a fault has broken it and the visitor is patient."""
        fired = self.world.plan.fired
        response = self._send(name, send)
        is_broken = response is None or response.status_code >= 500
        is_broken = is_broken or (response is not None and response.status_code in _REPEATED)
        if not is_broken or (response is not None and self.world.plan.fired == fired):
            assert response is not None
            return response
        if not self.is_patient:
            if response is None:
                raise WorkerDiedError(f"the worker died over {name}: send it again, or settle()")
            return response
        self.world.note(f"the visitor sends {name} again")
        response = self._send(name, send)
        if response is None or response.status_code >= 500:
            status = "nothing" if response is None else response.status_code
            raise VisitorGaveUpError(f"{name} was sent again and answered {status}")
        return response

    def _send(self, name: str, send: Callable[[], TestResponse]) -> TestResponse | None:
        """Return the response; None: the worker died over the request."""
        try:
            response = send()
        except Crash:
            self.world.bury()
            self.world.note(f"the worker that handled {name} died")
            return None
        self.world.note(f"{name} answered {response.status_code}")
        return response

    def run_wsgi_app(
        self, environ: dict[str, Any], buffered: bool = False
    ) -> tuple[Iterable[bytes], str, Headers]:
        """Make a response in no context of the test, as a server does."""
        context = contextvars.Context()
        parts, status, headers = context.run(super().run_wsgi_app, environ, buffered)
        return _Parts(context, parts), status, headers

    def _environ(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        if args and isinstance(args[0], dict):
            return dict(args[0])
        if args and isinstance(args[0], Request):
            return dict(args[0].environ)
        if args and isinstance(args[0], AnyEnvironBuilder):
            return dict(args[0].get_environ())
        builder = EnvironBuilder(self.application, *args, **options)
        try:
            return dict(builder.get_environ())
        finally:
            builder.close()

    def _has_no_token(self, environ: dict[str, Any], body: bytes) -> bool:
        config = self.application.config
        field = str(config.get("WTF_CSRF_FIELD_NAME", "csrf_token")).encode()
        return (
            environ["REQUEST_METHOD"] in config.get("WTF_CSRF_METHODS", ())
            and bool(config.get("WTF_CSRF_ENABLED", True))
            and field not in body
            and _TOKEN_HEADER not in environ
        )

    def _token(self) -> str:
        """Return a token of this visitor's session."""
        from flask_wtf.csrf import generate_csrf

        with self.session_transaction() as session:
            secret = session.setdefault("csrf_token", os.urandom(20).hex())
        with self.application.test_request_context():
            flask.session["csrf_token"] = secret
            return str(generate_csrf())


def client_of(app: Flask, world: World) -> AppClient:
    """Return a client that has the app's own methods, too, if it has a class for its clients."""
    base = app.test_client_class or FlaskClient
    kind = AppClient if base is FlaskClient else type("Client", (AppClient, base), {})
    client: AppClient = kind(app, app.response_class, use_cookies=True)
    client.world = world
    return client
