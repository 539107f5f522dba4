"""What checks values of a type, and writes them as JSON: made when it is first needed."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

import pydantic


@lru_cache(maxsize=256)
def adapter_of(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of a type. To make one takes as long as to load ten modules."""
    return pydantic.TypeAdapter(kind)


@lru_cache(maxsize=256)
def shape_of(kind: Any) -> str:
    """Return a digest of a type's fields and defaults; "" if no schema can say them."""
    try:
        schema = adapter_of(kind).json_schema()
    except pydantic.PydanticUserError:
        return ""
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]
