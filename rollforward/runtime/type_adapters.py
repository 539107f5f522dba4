"""Adapters that check values of a type and write them as JSON, made on first use."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

import pydantic


@lru_cache(maxsize=256)
def adapter_of(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of a type. Making one takes as long as loading ten modules."""
    return pydantic.TypeAdapter(kind)


@lru_cache(maxsize=256)
def shape_of(kind: Any) -> str:
    """Return a digest of a type's fields and defaults; "" if they have no schema."""
    try:
        schema = adapter_of(kind).json_schema()
    except pydantic.PydanticUserError:
        return ""
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]
