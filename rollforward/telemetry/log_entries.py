"""Log entries of Cloud Logging: one line of JSON a record, bounded, without secrets.

The fields follow structured logging: `severity`, `message`, `time`, trace, span, labels and
source location. A record with a traceback is one entry with a `stack_trace`. From ERROR on an entry
is an event of Error Reporting, which groups them.

Source: docs.cloud.google.com/logging/docs/structured-logging and
docs.cloud.google.com/error-reporting/docs/formatting-error-messages.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import re
import traceback
from collections.abc import Iterable
from itertools import islice
from typing import Any

from rollforward.telemetry.context import current_task, current_trace

PREFIX = "logging.googleapis.com/"
ERROR_EVENT = "type.googleapis.com/google.devtools.clouderrorreporting.v1beta1.ReportedErrorEvent"

# Bytes of JSON. An entry may have 256 KB; a longer line would be cut in two, and be no JSON.
MAX_ENTRY_BYTES = 200_000
MAX_MESSAGE_BYTES = 40_000
MAX_STACK_BYTES = 80_000
MAX_FIELD_BYTES = 4_000
MAX_LABEL_BYTES = 1_000
MAX_FIELDS = 40
MAX_DEPTH = 4
LEFT_OUT = " … (left out) … "

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(
    r"passw(or)?d|secret|token|authorization|cookie|api_?key|credential", re.IGNORECASE
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)

_OF_EVERY_RECORD = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "error_class"}
)
_RESERVED = frozenset(
    {"severity", "message", "time", "timestamp", "stack_trace", "exception", "context", "@type"}
    | {"serviceContext", "httpRequest", "logger", "thread", "eventTime"}
)


class CloudLogFormatter(logging.Formatter):
    """Formatter of records as entries of Cloud Logging, with the task and trace of each."""

    def __init__(
        self, project: str, service: str = "", version: str = "", secrets: Iterable[str] = ()
    ) -> None:
        """Make a formatter.

        Args:
            project: The project that the traces belong to.
            service, version: As Error Reporting is to show them.
            secrets: Texts that no entry may hold.
        """
        super().__init__()
        self._project = project
        self._service = {
            "service": service or "default",
            **({"version": version} if version else {}),
        }
        self._secrets = tuple(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        entry = self._entry(record)
        extras = self._extras(record)
        line = _json({**extras, **entry})
        if len(line) > MAX_ENTRY_BYTES:
            names = ", ".join(extras)
            line = _json({"left_out": self._text(names, MAX_FIELD_BYTES), **entry})
        return line

    def _entry(self, record: logging.LogRecord) -> dict[str, Any]:
        stack = self._stack(record)
        entry: dict[str, Any] = {
            "severity": _severity(record.levelno),
            "message": self._text(_message(record), MAX_MESSAGE_BYTES),
            "time": _time(record.created),
            "logger": self._text(_str(record.name), MAX_LABEL_BYTES),
            "thread": self._text(_str(record.threadName), MAX_LABEL_BYTES),
            PREFIX + "sourceLocation": {
                "file": self._text(_str(record.pathname), MAX_LABEL_BYTES),
                "line": str(record.lineno),
                "function": self._text(_str(record.funcName), MAX_LABEL_BYTES),
            },
        }
        if labels := self._labels(record):
            entry[PREFIX + "labels"] = labels
        if trace := current_trace():
            entry[PREFIX + "trace"] = f"projects/{self._project}/traces/{trace.trace_id}"
            entry[PREFIX + "trace_sampled"] = trace.is_sampled
            if trace.span_id:
                entry[PREFIX + "spanId"] = trace.span_id
        if stack:
            entry["stack_trace"] = self._text(stack, MAX_STACK_BYTES)
        if record.levelno >= logging.ERROR:
            entry |= self._error_event(record)
        return entry

    def _error_event(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields of an event; its place groups an error without a traceback."""
        place = {
            "filePath": self._text(_str(record.pathname), MAX_LABEL_BYTES),
            "lineNumber": record.lineno,
            "functionName": self._text(_str(record.funcName), MAX_LABEL_BYTES),
        }
        return {
            "@type": ERROR_EVENT,
            "serviceContext": self._service,
            "context": {"reportLocation": place},
        }

    def _labels(self, record: logging.LogRecord) -> dict[str, str]:
        labels: dict[str, str] = {}
        if (task := current_task()) is not None:
            labels = {
                "task": task.name,
                "queue": task.queue,
                "path": task.path,
                "attempt": str(task.attempt),
                "run": task.run,
            }
        labels["error_class"] = _error_class(record)
        return {name: self._text(value, MAX_LABEL_BYTES) for name, value in labels.items() if value}

    def _stack(self, record: logging.LogRecord) -> str:
        parts = []
        if record.exc_info and record.exc_info[1] is not None:
            parts.append(_formatted(record.exc_info[1]))
        if record.stack_info:
            parts.append(str(record.stack_info))
        return "\n".join(parts)

    def _extras(self, record: logging.LogRecord) -> dict[str, Any]:
        own = [
            (_str(name), value)
            for name, value in list(vars(record).items())
            if name not in _OF_EVERY_RECORD and not _str(name).startswith("_")
        ]
        fields = {}
        for name, value in own[:MAX_FIELDS]:
            key = self._text(name, MAX_LABEL_BYTES)
            if key in _RESERVED or key.startswith(PREFIX):
                key += "_"
            fields[key] = self._field(name, value)
        return fields

    def _field(self, name: str, value: Any) -> Any:
        if _SECRET_KEY.search(name):
            return REDACTED
        plain = self._plain(value, MAX_DEPTH)
        if len(_json(plain)) > MAX_FIELD_BYTES:
            return self._text(_json(plain), MAX_FIELD_BYTES)
        return plain

    def _plain(self, value: Any, depth: int) -> Any:
        """Return a value as JSON, or its text if JSON has no form for it."""
        if value is None or isinstance(value, bool):
            return value
        if type(value) is int and abs(value) < 2**63:
            return value
        if type(value) is float and math.isfinite(value):
            return value
        if isinstance(value, str):
            return self._text(value, MAX_FIELD_BYTES)
        if depth > 0 and type(value) is dict:
            return {
                self._text(_repr(key) if type(key) is not str else key, MAX_LABEL_BYTES): (
                    REDACTED
                    if isinstance(key, str) and _SECRET_KEY.search(key)
                    else self._plain(part, depth - 1)
                )
                for key, part in islice(value.items(), MAX_FIELDS)
            }
        if depth > 0 and type(value) in (list, tuple, set, frozenset):
            return [self._plain(part, depth - 1) for part in islice(value, MAX_FIELDS)]
        return self._text(_repr(value), MAX_FIELD_BYTES)

    def _text(self, text: str, max_bytes: int) -> str:
        """Return a text that JSON can hold, without secrets, both of its ends if it is long."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        text = _BEARER.sub(rf"\1 {REDACTED}", text)
        return truncated(text.encode(errors="backslashreplace").decode(), max_bytes)


def truncated(text: str, max_bytes: int) -> str:
    """Return a text of at most max_bytes of JSON: its beginning and its end.

    >>> truncated("a" * 50 + "b" * 50, 40)
    'aaaaaaa … (left out) … bbbbbbb'
    """
    if len(text) * 12 <= max_bytes or _bytes(text) <= max_bytes:
        return text
    half = (max_bytes - _bytes(LEFT_OUT)) // 2
    return _head(text, half) + LEFT_OUT + _head(text[::-1], half)[::-1]


def _head(text: str, max_bytes: int) -> str:
    text = text[:max_bytes]  # No character takes less than a byte.
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _bytes(text[:middle]) <= max_bytes else (low, middle - 1)
    return text[:low]


def _bytes(text: str) -> int:
    return len(_json(text)) - 2


def _json(value: Any) -> str:
    """Return JSON in ASCII, which no stream's encoding can spoil."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def _severity(level: int) -> str:
    for name in ("CRITICAL", "ERROR", "WARNING", "INFO"):
        if level >= getattr(logging, name):
            return name
    return "DEBUG"


def _time(created_s: float) -> str:
    try:
        at = datetime.datetime.fromtimestamp(created_s, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        at = datetime.datetime.now(datetime.UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    """Return the text of a record, also of one whose arguments do not fit it."""
    try:
        return record.getMessage()
    except Exception:
        return f"{_repr(record.msg)} with {_repr(record.args)}"


def _error_class(record: logging.LogRecord) -> str:
    named = getattr(record, "error_class", None)
    if named is not None and (text := _str(named)):
        return text
    if record.exc_info and record.exc_info[0] is not None:
        return record.exc_info[0].__name__
    return ""


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # An error in somebody's __str__, __cause__ or source line.
        return f"{type(error).__name__}: its traceback cannot be formatted"


def _str(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)[: 4 * MAX_FIELD_BYTES]
    except Exception:
        return f"<{type(value).__name__}, whose repr fails>"
