"""Lists of items in a request's body: a JSON object with `items`, or a line of JSON for each.

All items are read before any is used. An error names the lines of the bad ones, so nothing of a
list is taken that has one. NDJSON is as of https://github.com/ndjson/ndjson-spec: UTF-8, lines end
with a line feed, and empty lines at the end are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic
from flask import abort, request

from rollforward.flask.api.json_requests import body_bytes, json_body, json_value, reject
from rollforward.flask.api.problems import problem
from rollforward.runtime.type_adapters import adapter_of

B = TypeVar("B")

NDJSON = "application/x-ndjson"
# So many bad items are named.
MAX_NAMED = 20


def item_list(kind: type[B], *, max_items: int, max_bytes: int) -> list[B]:
    """Return the items of the request's body, strictly; end the request if one of them is none.

    It ends with 400, 413 or 415, and with the lines of bad items, from 1.
    """
    values = _lines(max_bytes) if request.mimetype == NDJSON else _objects(max_bytes)
    if not values:
        reject(400, "The body has no items.")
    if len(values) > max_items:
        reject(413, f"A request must have at most {max_items:,} items, got {len(values):,}.")
    adapter = adapter_of(kind)  # type: ignore[arg-type]  # Types are hashable.
    items: list[B] = []
    mistakes: list[dict[str, Any]] = []
    for line, value in enumerate(values, 1):
        try:
            items.append(_item(adapter, value))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the item"
            mistakes.append({"line": line, "detail": f"{where[:100]}: {first['msg']}."})
        except (ValueError, RecursionError):
            mistakes.append({"line": line, "detail": "It is not JSON in UTF-8."})
    if mistakes:
        reject_items(mistakes)
    return items


def reject_items(mistakes: Sequence[dict[str, Any]], status: int = 400) -> None:
    """End the request with a problem that names bad items by their lines."""
    lines = ", ".join(str(mistake["line"]) for mistake in mistakes[:MAX_NAMED])
    more = ", and more" if len(mistakes) > MAX_NAMED else ""
    noun = "item" if len(mistakes) == 1 else "items"
    detail = f"Nothing was accepted: mend the {noun} of line {lines}{more}."
    abort(problem(status, detail, errors=list(mistakes[:MAX_NAMED])))


def _lines(max_bytes: int) -> Sequence[Any]:
    body = body_bytes(max_bytes).rstrip()
    return body.split(b"\n") if body else []


def _objects(max_bytes: int) -> Sequence[Any]:
    body = json_body(max_bytes)
    items = body.get("items") if isinstance(body, dict) and set(body) == {"items"} else None
    if not isinstance(items, list):
        reject(400, 'The body is an object like {"items": [...]}, or NDJSON.')
    return items


def _item(adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
    """Return an item of a line, or of a list that is parsed already.

    Raises:
        ValueError: it is no JSON, or none of the type.
    """
    if isinstance(value, bytes):
        json_value(value)
        return adapter.validate_json(value, strict=True)
    return adapter.validate_json(json.dumps(value), strict=True)
