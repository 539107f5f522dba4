"""What checks values of a type, and writes them as JSON: made when it is first needed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pydantic


@lru_cache(maxsize=256)
def adapter_of(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of a type. To make one takes as long as to load ten modules."""
    return pydantic.TypeAdapter(kind)
