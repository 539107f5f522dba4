"""Hooks of an app that answer the queue or the scheduler in place of the library's endpoint.

A login in `before_request` sends each delivery to its page, so no task runs. The queue takes an
answer of 200 for the end of a task, and its work would be lost.
"""

from __future__ import annotations

import logging

from flask import Flask, Response, request

from rollforward.flask.context import BLUEPRINT_PREFIX, MACHINE_BLUEPRINTS, request_notes
from rollforward.tasks.attempts import FAILED

log = logging.getLogger(__name__)


def register(app: Flask) -> None:
    """Log each such answer, and let none of them end a task; before the library's own hooks."""

    @app.before_request
    def note_turn() -> None:
        request_notes()["has_passed_own_hooks"] = True

    @app.after_request
    def refuse(response: Response) -> Response:
        if request.blueprint not in MACHINE_BLUEPRINTS:
            return response
        if "has_passed_own_hooks" not in request_notes():
            _log("was answered by a hook of the app, as a login in before_request", response)
            if response.status_code < 400:
                response.status_code = FAILED
        request_notes()["status"] = response.status_code
        return response

    def keep_failure(response: Response) -> Response:
        status = request_notes().get("status", 0)
        if status >= 400 > response.status_code:
            _log("failed, and an after_request hook of the app hides that", response)
            response.status_code = status
        return response

    # These run backwards: it is the last.
    app.after_request_funcs.setdefault(None, []).insert(0, keep_failure)


def _log(problem: str, response: Response) -> None:
    log.log(
        logging.WARNING if response.status_code >= 400 else logging.ERROR,
        "%s %r %s, with status %d: let it pass where request.blueprint begins with %r",
        *(request.method, request.path[:100], problem, response.status_code, BLUEPRINT_PREFIX),
    )
