"""JSON objects out of requests to the local platform."""

import json
from typing import Any

from aiohttp import web


async def json_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object of a request, which may be empty.

    Raises:
        ValueError: it is no JSON, no object, or has half of a surrogate pair: pages that show it
            could not be written in UTF-8.
    """
    try:
        raw = await request.text()
        fields = json.loads(raw) if raw.strip() else {}
        json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, LookupError, RecursionError):  # LookupError: of a charset.
        raise ValueError("the body is not JSON in valid Unicode") from None
    if not isinstance(fields, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - the caller's fault
    return fields
