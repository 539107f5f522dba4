"""Requests to the servers of the local platform: their bodies, and callers that speak no HTTP."""

import json
import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_CALLERS_FAULTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The log of an aiohttp server, without what callers do wrong: an answer tells them.

    aiohttp logs the traceback of each request that is no HTTP, or that breaks off.
    """

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"), {})

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log an error of ours."""
        if not isinstance(exc_info, _CALLERS_FAULTS):
            super().exception(msg, *args, exc_info=exc_info, **more)


async def body_of(request: web.Request) -> bytes:
    """Return the body of a request, decompressed.

    Raises:
        ValueError: it broke off, or is not encoded as its headers say.
        web.HTTPRequestEntityTooLarge: it is longer than the application takes.
    """
    try:
        return await request.read()
    except _CALLERS_FAULTS:
        raise ValueError("the body broke off, or is not encoded as its headers say") from None


async def json_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object of a request, which may be empty.

    Raises:
        ValueError: it is no JSON, no object, or has half of a surrogate pair: pages that show it
            could not be written in UTF-8.
    """
    raw = await body_of(request)
    try:
        text = raw.decode(request.charset or "utf-8")
        fields = json.loads(text) if text.strip() else {}
        json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, LookupError, RecursionError):  # LookupError: of a charset.
        raise ValueError("the body is not JSON in valid Unicode") from None
    if not isinstance(fields, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - the caller's fault
    return fields
