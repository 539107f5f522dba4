"""Errors of the API, as problem details (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus

from flask import Response

RETRY_AFTER_S = 1


def problem(status: int, detail: str, **members: object) -> Response:
    """Return an error: what is wrong, and what to do; `members` are further ones of the object."""
    details = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **members,
    }
    answer = Response(json.dumps(details), status, content_type="application/problem+json")
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer
