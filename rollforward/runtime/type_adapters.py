"""Adapters that check values of a type and write them as JSON, made on first use."""

from __future__ import annotations

import hashlib
import json
import math
from functools import lru_cache
from typing import Any

import pydantic
import pydantic_core


@lru_cache(maxsize=256)
def adapter_of(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of a type. Making one takes as long as loading ten modules."""
    return pydantic.TypeAdapter(kind)


def json_of(adapter: pydantic.TypeAdapter[Any], value: Any) -> bytes:
    """Return a value as JSON, by the adapter of its type.

    Raises:
        PydanticSerializationError: it has none, or one of its numbers is infinite or no number:
            pydantic writes null for it, which is read as None where the type takes that.
    """
    body = adapter.dump_json(value, warnings=False)
    if b"null" in body and not _is_finite(adapter.dump_python(value, warnings=False)):
        raise pydantic_core.PydanticSerializationError("NaN and infinite numbers are no JSON")
    return body


def _is_finite(value: Any) -> bool:
    """Return whether all numbers of a value are."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple | set | frozenset) or all(map(_is_finite, value))


@lru_cache(maxsize=256)
def shape_of(kind: Any) -> str:
    """Return a digest of a type's fields and defaults; "" if they have no schema."""
    try:
        schema = adapter_of(kind).json_schema()
    except pydantic.PydanticUserError:
        return ""
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]
