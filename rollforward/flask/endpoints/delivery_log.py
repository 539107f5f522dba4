"""Log and output of a task during its delivery, for the console of the local platform.

The queue gets the lines with the response, and the console shows them with the attempt. A
deployed app keeps none: its platform collects the log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

# Limit of one delivery: the emulator keeps 64 KiB of a response, error and traceback included.
MAX_CHARS = 24_000
MAX_LINE_CHARS = 2_000


class DeliveryLines:
    """The lines of one delivery, up to a limit; an unfinished line waits for its end.

    Attributes:
        task: Queue and name of the task, as queue/name; "" if the queue did not say.
    """

    def __init__(self, task: str = "") -> None:
        self.task = task
        self.captured: list[str] = []
        self._left = MAX_CHARS
        self._open = ""

    @property
    def tag(self) -> str:
        """The suffix of its lines in the app's output, by which the local platform finds them."""
        return f" [task {self.task}]" if self.task else ""

    def add(self, line: str) -> None:
        """Keep a whole line."""
        line = line[:MAX_LINE_CHARS]
        if line.strip() and len(line) <= self._left:
            self.captured.append(line)
            self._left -= len(line)

    def write(self, text: str) -> list[str]:
        """Keep printed text line by line, as one print may write many times; return whole lines."""
        *complete, self._open = (self._open + text).split("\n")
        self._open = self._open[:MAX_LINE_CHARS]
        for line in complete:
            self.add(line)
        return complete

    def end(self) -> str:
        """Keep the last printed text, without an end of line; return it."""
        unfinished, self._open = self._open, ""
        self.add(unfinished)
        return unfinished


_lines: ContextVar[DeliveryLines | None] = ContextVar("delivery_log", default=None)
# Its records repeat the response.
_IGNORED = "rollforward.flask.endpoints.tasks"


def install() -> None:
    """Keep log and output of this process from now on, each line with its task."""
    root = logging.getLogger()
    if not any(isinstance(handler, _DeliveryHandler) for handler in root.handlers):
        for handler in root.handlers:
            handler.setFormatter(_TaskFormatter(handler.formatter or logging.Formatter()))
        root.addHandler(_DeliveryHandler())
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)


@contextmanager
def capture(task: str = "") -> Iterator[DeliveryLines]:
    """Keep the lines of this block, if `install` was called.

    Args:
        task: Their task, as queue/name.
    """
    lines = DeliveryLines(task)
    token = _lines.set(lines)
    try:
        yield lines
    finally:
        end(lines)
        _lines.reset(token)


def end(lines: DeliveryLines) -> None:
    """Keep and print the last text without an end of line."""
    if (unfinished := lines.end()) and isinstance(sys.stdout, _Stdout):
        sys.stdout.print_last(unfinished, lines.tag)


class _DeliveryHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is None or record.name == _IGNORED:
            return
        try:
            lines.add(f"{record.levelname} {record.name}: {record.getMessage()}")
        except Exception:
            self.handleError(record)


class _TaskFormatter(logging.Formatter):
    """Formatter that ends a record's first line with its task."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        text, lines = self._formatter.format(record), _lines.get()
        if lines is None:
            return text
        head, newline, tail = text.partition("\n")
        return f"{head}{lines.tag}{newline}{tail}"


class _Stdout:
    """Standard output, whose lines are kept as well.

    A delivery's lines are written whole, each with its task, so lines of other threads come between
    them and not into them.
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
        """Write a delivery's last text, which has no end of line."""
        self._stream.write(f"{line}{tag}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
