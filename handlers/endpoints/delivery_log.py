"""What a task logs and prints while it is delivered, for the console of the local platform.

The queue gets the lines with the response, and the console shows them beside the attempt. A
deployed app keeps none: its platform collects the log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

MAX_LINES = 200
MAX_LINE_CHARS = 2_000

_kept: ContextVar[list[str] | None] = ContextVar("delivery_log", default=None)
# Says what the response says anyway.
_IGNORED = "handlers.endpoints.tasks"


def install() -> None:
    """Keep what is logged and printed from now on, in this process."""
    root = logging.getLogger()
    if not any(isinstance(handler, _Handler) for handler in root.handlers):
        root.addHandler(_Handler())
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)


@contextmanager
def kept() -> Iterator[list[str]]:
    """Keep the lines of this block, if `install` was called."""
    lines: list[str] = []
    token = _kept.set(lines)
    try:
        yield lines
    finally:
        _kept.reset(token)


def _keep(text: str) -> None:
    lines = _kept.get()
    if lines is not None and len(lines) < MAX_LINES:
        lines.append(text[:MAX_LINE_CHARS])


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name != _IGNORED:
            _keep(f"{record.levelname} {record.name}: {record.getMessage()}")


class _Stdout:
    """Standard output, whose lines are kept as well."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                _keep(line)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
