"""Limits on the texts of a request, each measured before any code reads it.

    @bp.post("/posts")
    @limits(title=1_000, body=100_000)
    def create() -> ResponseReturnValue: ...

A field that its route does not mention has MAX_CHARS, in a form as in a query string. So parsing,
matching and normalizing stay cheap, even where the work grows faster than the text. In bytes a text
is at most four times as long.

Types limit JSON (json_requests.py), and the reader of a file limits the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from flask import abort, current_app, request

V = TypeVar("V", bound=Callable[..., Any])

# An upload of 10 MiB in a form, and a little.
MAX_REQUEST_BYTES = 11 * 1024 * 1024
MAX_FORM_BYTES = 512 * 1024
MAX_CHARS = 200
MAX_FIELDS = 50
MAX_FILE_NAME_CHARS = 255
# As gunicorn has them, for servers that have none.
MAX_ADDRESS_CHARS = 4_094
MAX_HEADER_CHARS = 8_190


def limits(**max_chars: int) -> Callable[[V], V]:
    """Declare how many characters fields of a route may have, where MAX_CHARS is not right."""

    def declare(view: V) -> V:
        view.limits = max_chars  # type: ignore[attr-defined]
        return view

    return declare


def limits_of(view: Callable[..., Any] | None) -> Mapping[str, int]:
    """Return the limits that a route declares."""
    declared: Mapping[str, int] = getattr(view, "limits", {})
    return declared


def bound_body() -> None:
    """Bound this request's body where the app bounds none, or others."""
    request.max_content_length = MAX_REQUEST_BYTES
    request.max_form_memory_size = MAX_FORM_BYTES
    request.max_form_parts = MAX_FIELDS


def check_head() -> None:
    """End a request with 414, 431 or 413 whose address, headers or query are too long."""
    if len(request.path) + len(request.query_string) > MAX_ADDRESS_CHARS:
        abort(414, f"an address must have at most {MAX_ADDRESS_CHARS:,} characters")
    for name, value in request.headers.items():
        if len(value) > MAX_HEADER_CHARS:
            abort(431, f"{name:.40} must have at most {MAX_HEADER_CHARS:,} characters")
    _check_count(request.query_string.count(b"&"))
    _check(request.args.items(multi=True))


def check_form() -> None:
    """End a request with 413 whose form has too many fields, or one that is too long.

    And with 400 if one has no name, which no browser sends: whoever looks for a name fails at it.
    """
    if request.mimetype == "application/x-www-form-urlencoded":
        _check_count(request.get_data().count(b"&"))  # Flask counts the parts of other forms.
    if None in request.form or None in request.files:
        abort(400, "each field of a form must have a name; nothing was changed")
    _check(request.form.items(multi=True))
    names = ((name, file.filename or "") for name, file in request.files.items(multi=True))
    for field, name in names:
        if len(name) > MAX_FILE_NAME_CHARS:
            _reject(f"the file name of {field:.40}", MAX_FILE_NAME_CHARS, len(name))


def _check(fields: Iterable[tuple[str, str]]) -> None:
    declared = limits_of(current_app.view_functions.get(request.endpoint or ""))
    for name, value in fields:
        limit = declared.get(name, MAX_CHARS)
        if len(value) > limit:
            _reject(f"{name:.40}", limit, len(value))


def _check_count(separators: int) -> None:
    if separators >= MAX_FIELDS:
        abort(413, f"a request must have at most {MAX_FIELDS} fields, got {separators + 1:,}")


def _reject(name: str, limit: int, chars: int) -> None:
    abort(413, f"{name} must have at most {limit:,} characters, got {chars:,}; nothing was changed")
