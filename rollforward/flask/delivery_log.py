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
    """The lines of one delivery, as far as they go; an unfinished one waits for its end.

    Attributes:
        task: Queue and name of the task, as queue/name; "" if the queue did not say.
    """

    def __init__(self, task: str = "") -> None:
        self.task = task
        self.kept: list[str] = []
        self._left = MAX_CHARS
        self._open = ""

    @property
    def tag(self) -> str:
        """What its lines end with in the app's output: by that the local platform knows them."""
        return f" [task {self.task}]" if self.task else ""

    def add(self, line: str) -> None:
        """Keep a whole line."""
        line = line[:MAX_LINE_CHARS]
        if line.strip() and len(line) <= self._left:
            self.kept.append(line)
            self._left -= len(line)

    def write(self, text: str) -> list[str]:
        """Keep what is printed, line by line, as one print may write many times; return those."""
        *whole, self._open = (self._open + text).split("\n")
        self._open = self._open[:MAX_LINE_CHARS]
        for line in whole:
            self.add(line)
        return whole

    def end(self) -> str:
        """Keep what was printed last, without an end of line; return it."""
        last, self._open = self._open, ""
        self.add(last)
        return last


_lines: ContextVar[Lines | None] = ContextVar("delivery_log", default=None)
# Says what the response says anyway.
_IGNORED = "rollforward.flask.tasks"


def install() -> None:
    """Keep what is logged and printed from now on, in this process, and say of which task it is."""
    root = logging.getLogger()
    if not any(isinstance(handler, _Handler) for handler in root.handlers):
        for handler in root.handlers:
            handler.setFormatter(_Tagged(handler.formatter or logging.Formatter()))
        root.addHandler(_Handler())
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)


@contextmanager
def kept(task: str = "") -> Iterator[Lines]:
    """Keep the lines of this block, if `install` was called.

    Args:
        task: Of which task they are, as queue/name.
    """
    lines = Lines(task)
    token = _lines.set(lines)
    try:
        yield lines
    finally:
        end(lines)
        _lines.reset(token)


def end(lines: Lines) -> None:
    """Keep, and print, what was printed last without an end of line."""
    if (last := lines.end()) and isinstance(sys.stdout, _Stdout):
        sys.stdout.print_last(last, lines.tag)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is None or record.name == _IGNORED:
            return
        try:
            lines.add(f"{record.levelname} {record.name}: {record.getMessage()}")
        except Exception:
            self.handleError(record)


class _Tagged(logging.Formatter):
    """Says at the end of a record's first line of which task it is."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        text, lines = self._formatter.format(record), _lines.get()
        if lines is None:
            return text
        first, newline, rest = text.partition("\n")
        return f"{first}{lines.tag}{newline}{rest}"


class _Stdout:
    """Standard output, whose lines are kept as well.

    A delivery's go out whole, each with its task: lines of other threads come in between, not
    into them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        lines = _lines.get()
        if lines is None:
            return self._stream.write(text)
        for line in lines.write(text):
            self._stream.write(f"{line}{lines.tag if line.strip() else ''}\n")
        return len(text)

    def print_last(self, line: str, tag: str) -> None:
        """Write what a delivery printed last, without an end of line."""
        self._stream.write(f"{line}{tag}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
