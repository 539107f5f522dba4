"""JSON requests of programs: UTF-8, of a bounded size, without ambiguous objects or numbers."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar

import pydantic
from flask import abort, request
from werkzeug.exceptions import RequestEntityTooLarge

from rollforward.flask.api.problems import problem
from rollforward.runtime.type_adapters import adapter_of

B = TypeVar("B")

IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,200}")


def reject(status: int, detail: str) -> NoReturn:
    """End the request with a problem."""
    abort(problem(status, detail))


def json_body(max_bytes: int) -> Any:
    """Return the request's body; end the request with 400, 413 or 415 if it is no JSON."""
    if request.mimetype != "application/json":
        reject(415, "Send the body as Content-Type: application/json.")
    content = body_bytes(max_bytes)
    try:
        return json_value(content)
    except (ValueError, RecursionError):
        reject(400, "The body is not JSON in UTF-8.")


def json_value(content: bytes) -> Any:
    """Return what JSON says, if it says one thing only.

    Raises:
        ValueError: it is not JSON in UTF-8, or a name stands twice in an object.
    """
    return json.loads(
        content.decode(), object_pairs_hook=_without_doubles, parse_constant=_no_number
    )


def typed_body(kind: type[B], max_bytes: int) -> B:
    """Return the request's body as a type, strictly; end the request with 400 if it is none."""
    json_body(max_bytes)
    try:
        adapter = adapter_of(kind)  # type: ignore[arg-type]  # Types are hashable.
        body: B = adapter.validate_json(request.get_data(), strict=True)
    except pydantic.ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in mistake["loc"]) or "the body"
        reject(400, f"{where[:100]}: {mistake['msg']}.")
    return body


def idempotency_key() -> str | None:
    """Return the Idempotency-Key; end the request with 400 if it is not one."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and (not IDEMPOTENCY_KEY.fullmatch(key) or not key.strip()):
        reject(400, "An Idempotency-Key must have 1 to 200 printable ASCII characters.")
    return key


def body_bytes(max_bytes: int) -> bytes:
    """Return the request's body; end the request with 413 or 415 if it is too large or encoded."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        reject(415, "Send the body without a Content-Encoding.")
    # One more than allowed: a body that does not say its length is cut off at the limit.
    request.max_content_length = max_bytes + 1
    try:
        content = request.get_data()
    except RequestEntityTooLarge:
        content = None
    if content is None or len(content) > max_bytes:
        reject(413, f"The body must have at most {max_bytes} bytes.")
    return content


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return dict(pairs)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
