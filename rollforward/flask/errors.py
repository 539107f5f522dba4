"""Errors become responses: what went wrong and what to do, never a stack.

On a laptop, an app without an error page of its own names the exception and its line.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask, Response, current_app
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException, default_exceptions

from rollforward.datastore.transactions import TRANSIENT
from rollforward.flask.api.problems import problem
from rollforward.flask.context import (
    BLUEPRINT_PREFIX,
    is_api_path,
    is_machine_path,
    settings,
)
from rollforward.fork_join import OutcomeUnknownError
from rollforward.runtime.texts import describe_error
from rollforward.tasks import Retry, Unavailable

_LIBRARY = str(Path(__file__).resolve().parents[1])

log = logging.getLogger(__name__)

# Shows a person a status and a sentence.
ErrorPage = Callable[[int, str], ResponseReturnValue]


def plain_page(status: int, message: str) -> ResponseReturnValue:
    """Return an error as text, for an app without a page for it."""
    return Response(f"{message}\n", status, content_type="text/plain; charset=utf-8")


def register(app: Flask, page: ErrorPage = plain_page) -> None:
    """Map every error: a status for machines, a problem for programs, a page for people."""
    for kind, handler in _handlers(page).items():
        app.register_error_handler(kind, handler)


def register_on_library_endpoints(app: Flask, page: ErrorPage = plain_page) -> None:
    """Map the errors of the library's endpoints, also where the app has a page for their status."""
    handlers = _handlers(page)
    for name in app.blueprints:
        if name.startswith(BLUEPRINT_PREFIX):
            # A blueprint may be on many apps, and takes no handler after the first.
            by_status = app.error_handler_spec[name]
            by_status[None].update(handlers)
            for status, kind in default_exceptions.items():
                by_status[status][kind] = handlers[HTTPException]


def _handlers(page: ErrorPage) -> dict[type[Exception], Callable[[Any], ResponseReturnValue]]:
    # In a worker it is loaded already; who only imports this module need not wait for it.
    from gunicorn.http.errors import NoMoreData, ParseException

    def respond(status: int, message: str) -> ResponseReturnValue:
        if is_machine_path():
            return "", status
        if is_api_path():
            return problem(status, message)
        return page(status, message)

    def http_error(error: HTTPException) -> ResponseReturnValue:
        response = current_app.make_response(respond(error.code or 500, error.description or ""))
        # Such as WWW-Authenticate, Retry-After and Allow.
        headers = [pair for pair in error.get_headers() if pair[0] != "Content-Type"]
        response.headers.update(Headers(headers))
        return response

    def handle_bad_request(error: Exception) -> ResponseReturnValue:
        log.info("a body that is no HTTP: %.200r", str(error))
        return respond(400, "The body of this request is not as HTTP wants it.")

    def conflict(error: Exception) -> ResponseReturnValue:
        return respond(409, "Somebody else changed this just now. Nothing was lost; try again.")

    def unavailable(error: Exception) -> ResponseReturnValue:
        log.warning("a service is unavailable: %s", error)
        return respond(503, "A service behind this page does not answer. Try again in a moment.")

    def unknown(error: Exception) -> ResponseReturnValue:
        log.error("a request failed", exc_info=error)
        if page is plain_page and settings().is_local:  # It answers local names alone.
            return respond(500, _for_its_developer(error))
        return respond(500, "Something went wrong on our side. It was written to the log.")

    return {
        HTTPException: http_error,
        # Chunks are taken apart when the body is read.
        **dict.fromkeys((ParseException, NoMoreData), handle_bad_request),
        **dict.fromkeys((OutcomeUnknownError, Unavailable, *TRANSIENT), unavailable),
        **dict.fromkeys((rpc_errors.Aborted, Retry), conflict),
        Exception: unknown,
    }


def _for_its_developer(error: Exception) -> str:
    """Return the exception in a line, and where the app's own code raised it."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(_LIBRARY)
    ]
    place = f"\n{own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else ""
    return (
        f"{describe_error(error)}{place}\n"
        "The terminal has the traceback. A deployed app shows neither."
    )
