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

# Of one delivery: the emulator keeps 64 KiB of a response, error and traceback included.
MAX_CHARS = 24_000
MAX_LINE_CHARS = 2_000


class Lines:
    """The lines of one delivery, as far as they go; an unfinished one waits for its end."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._left = MAX_CHARS
        self._open = ""

    def add(self, line: str) -> None:
        """Keep a whole line."""
        line = line[:MAX_LINE_CHARS]
        if line.strip() and len(line) <= self._left:
            self.kept.append(line)
            self._left -= len(line)

    def write(self, text: str) -> None:
        """Keep what is printed, line by line: one print may write many times."""
        *whole, self._open = (self._open + text).split("\n")
        self._open = self._open[:MAX_LINE_CHARS]
        for line in whole:
            self.add(line)

    def end(self) -> None:
        """Keep what was printed last, without an end of line."""
        self.add(self._open)
        self._open = ""


_lines: ContextVar[Lines | None] = ContextVar("delivery_log", default=None)
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
def kept() -> Iterator[Lines]:
    """Keep the lines of this block, if `install` was called."""
    lines = Lines()
    token = _lines.set(lines)
    try:
        yield lines
    finally:
        _lines.reset(token)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is None or record.name == _IGNORED:
            return
        try:
            lines.add(f"{record.levelname} {record.name}: {record.getMessage()}")
        except Exception:
            self.handleError(record)


class _Stdout:
    """Standard output, whose lines are kept as well."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        lines = _lines.get()
        if lines is not None:
            lines.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
