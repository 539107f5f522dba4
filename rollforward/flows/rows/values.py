"""Values of steps and events: JSON in the flow's row, or in rows of their own when they are large.

A value has the type that the step's function declares to return, and is read back as this type. A
function without one returns plain JSON. So the code gets the same value from the first run of a
step and from each later one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from rollforward.datastore.batched import MAX_COMMIT_BYTES
from rollforward.flows.errors import BadStepError
from rollforward.flows.rows.entities import FlowRun, FlowValue, value_key
from rollforward.runtime.type_adapters import adapter_of, json_of
from rollforward.tasks.errors import OtherVersionError

# Always in the flow's row, which has room for 1,000 steps.
MAX_INLINE_BYTES = 300
CHUNK_BYTES = 900_000
MAX_VALUE_BYTES = MAX_COMMIT_BYTES  # With all else that its step commits.

_PLAIN: Any = object()


class BadValueError(ValueError):
    """A value cannot be stored; the text says why."""


def dump(function: Callable[..., Any], value: Any) -> str:
    """Return the result of a function as JSON.

    Raises:
        BadValueError: it is no JSON, has another type than declared, or is too large.
    """
    kind = _kind_of(function)
    if kind is _PLAIN:
        return dump_plain(value)
    try:
        text = json_of(adapter_of(kind), value).decode()
        adapter_of(kind).validate_json(text)
    except Exception as error:  # Such as a type that pydantic does not know.
        raise BadValueError(f"{_text_of(value)} does not go by its type: {error}") from None
    return _checked(text)


def check(function: Callable[..., Any]) -> None:
    """Check before a call that its result can have the type that the function declares.

    Raises:
        BadStepError: no value of this type can be stored.
    """
    kind = _kind_of(function)
    if kind is _PLAIN:
        return
    try:
        adapter_of(kind)
    except Exception as error:
        raise BadStepError(
            f"{_name(function)} returns {kind!r:.100}, which cannot be stored as JSON. {error}"
        ) from None


def load(function: Callable[..., Any], text: str) -> Any:
    """Return the value in some JSON, of the type that a function returns now.

    Raises:
        OtherVersionError: this version of the code has another type, and does not read that.
    """
    kind = _kind_of(function)
    if kind is _PLAIN:
        return json.loads(text)
    try:
        return adapter_of(kind).validate_json(text)
    except Exception as error:
        raise OtherVersionError(
            f"the stored result of {_name(function)} has another type than it returns now: "
            f"give the step another name, or let the type read both. {error}"
        ) from None


def dump_plain(value: Any) -> str:
    """Return a value of lists, dicts with text keys, texts, numbers, booleans and None, as JSON.

    Raises:
        BadValueError: it is something else, or too large.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValueError(f"{_text_of(value)} is no JSON: {error}") from None
    return _checked(text)


def stored(
    run_id: str, owner: str, text: str, *, beside: FlowRun | None = None
) -> tuple[Mapping[str, Any], list[FlowValue]]:
    """Return the fields of a record that hold a value, and the rows that it needs.

    Args:
        owner: An id of this write, so that two writes never share a row.
        beside: The flow's row, if a large value may be there as long as it has room.
    """
    data = text.encode()
    if len(data) <= MAX_INLINE_BYTES or (beside is not None and beside.has_capacity_for(text)):
        return {"value": text}, []
    parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    rows = [
        FlowValue(key=value_key(run_id, owner, number), data=part)
        for number, part in enumerate(parts)
    ]
    return {"value": "", "rows": owner, "chunks": len(rows)}, rows


def chunk_keys(run_id: str, owner: str, chunks: int) -> list[Any]:
    """Return the keys of the rows that hold a value."""
    return [value_key(run_id, owner, number) for number in range(chunks)]


def joined(rows: list[FlowValue | None]) -> str:
    """Return the value in its rows, in order.

    Raises:
        BadStepError: some were deleted.
    """
    if None in rows:
        raise BadStepError("the rows of a result were deleted")
    return b"".join(row.data for row in rows if row is not None).decode()


def _checked(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadValueError(f"a text holds half a character: {error}") from None
    if size > MAX_VALUE_BYTES:
        raise BadValueError(f"a value must have at most {MAX_VALUE_BYTES:,} bytes, got {size:,}")
    return text


def _text_of(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except Exception:  # Code of the app writes it: `__repr__`. Or it is a number too long for one.
        return f"a value of {type(value).__name__}"


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', function)!s:.100}"


def _kind_of(function: Callable[..., Any]) -> Any:
    """Return the type that a function declares to return; _PLAIN: none."""
    try:
        return _known_kind_of(function)
    except TypeError:  # A method of an object that has no hash.
        return _known_kind_of.__wrapped__(function)


@lru_cache(maxsize=1_024)
def _known_kind_of(function: Callable[..., Any]) -> Any:
    try:
        hints = get_type_hints(function)
    except Exception:
        return _PLAIN  # A type that only type checkers know, or an object without annotations.
    kind = hints.get("return", _PLAIN)
    return _PLAIN if kind in (Any, object) else kind
