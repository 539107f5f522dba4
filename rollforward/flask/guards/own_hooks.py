"""Hooks of an app that answer the queue or the scheduler before the library's endpoint can.

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
        if request.blueprint not in MACHINE_BLUEPRINTS or "has_passed_own_hooks" in request_notes():
            return response
        is_refused = response.status_code >= 400
        log.log(
            logging.WARNING if is_refused else logging.ERROR,
            "%s %r was answered %d by a hook of the app, as a login in before_request: let it pass "
            "where request.blueprint begins with %r",
            *(request.method, request.path[:100], response.status_code, BLUEPRINT_PREFIX),
        )
        if not is_refused:
            response.status_code = FAILED
        return response
