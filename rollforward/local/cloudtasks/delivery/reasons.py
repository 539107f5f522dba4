"""The reason and the log lines that an app adds to the response of a failed attempt.

Any app may: a JSON object with `detail` (a sentence), `traceback` and `log` (lines), all optional.
The service ignores a response's body; the console shows it.
"""

import json
from dataclasses import dataclass
from typing import Any

MAX_LOG_LINES = 200


@dataclass(frozen=True)
class Reason:
    """The cause of a failed attempt in a sentence, with its stack and its log lines."""

    detail: str = ""
    traceback: str = ""
    log: tuple[str, ...] = ()


def reason_of(body: bytes | None) -> Reason | None:
    """Return the reason in a response's body, None if it has none of that kind.

    >>> reason_of(b'{"detail": "KeyError: 7", "log": ["INFO x: y"]}')
    Reason(detail='KeyError: 7', traceback='', log=('INFO x: y',))
    >>> reason_of(b"[]"), reason_of(b""), reason_of(b'{"detail": 7, "log": "no"}')
    (None, None, None)
    """
    if not body or body[:1] != b"{":
        return None
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    log = fields.get("log")
    lines = log[:MAX_LOG_LINES] if isinstance(log, list) else []
    reason = Reason(
        _text(fields.get("detail")),
        _text(fields.get("traceback")),
        tuple(line for line in lines if isinstance(line, str)),
    )
    return reason if reason != Reason() else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
