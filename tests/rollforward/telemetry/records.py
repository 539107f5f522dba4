"""Records of logging and the entries that are made of them, for tests."""

from __future__ import annotations

import json
import logging
from typing import Any

from rollforward.telemetry import CloudLogFormatter

SECRET = "s3cr3t-0123456789-abcdefghijkl-XYZ"
FORMATTER = CloudLogFormatter("my-project", "shop", "v7", [SECRET])


def line_of(
    message: Any = "hello",
    *args: Any,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **extra: Any,
) -> str:
    """Return the line that a log call writes."""
    log = logging.getLogger("shop.orders")
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = log.makeRecord(
        log.name, level, "/srv/shop/orders.py", 12, message, args, exc_info, "ship", extra
    )
    return FORMATTER.format(record)


def entry_of(*args: Any, **options: Any) -> Any:
    """Return the entry that a log call writes, as a strict reader of JSON sees it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = line_of(*args, **options)
    assert "\n" not in line
    assert line.isascii()
    return json.loads(line, parse_constant=refuse)


def raised(error: BaseException) -> BaseException:
    """Return an error with a traceback."""

    def fail() -> None:
        raise error

    try:
        fail()
    except BaseException as caught:
        return caught
    raise AssertionError("it was not raised")
