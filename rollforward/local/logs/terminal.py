"""The terminal's one stream: lines of all services, prefixed, the quiet ones left out.

A line is shown if it is a warning or worse; lines that follow without a level of their
own (a traceback) go with an error, and a warning is one line. Repeated records are shown now and
then (repeats.py). Prints of the app have no level, and are shown. All lines are in .dev/logs/, and
the newest on the console's page Logs.
"""

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from rollforward.local.logs.repeats import NOTHING, Repeats
from rollforward.local.logs.tail import FURTHER, LogRecord, LogTail, level_of

_LOUD = ("WARNING", "ERROR")
# What the emulators say, with a stack of Java, of callers who have hung up, and of errors that the
# caller gets: that a transaction has waited too long for a lock, above all.
_TOLD_ELSEWHERE = (
    "WARNING: Failed to complete operation",
    "WARNING: An exceptionCaught() event was fired",
    "WARNING: Operation failed: ",
    "WARNING: Stream Error",
)
_TRACEBACK = "Traceback (most recent call last)"
# The further lines of an error of gRPC, whose first line has the message.
_GRPC_REST = re.compile(r"\t(status|details|debug_error_string) = |>$")
_SIGKILL = re.compile(r"Worker \(pid:(\d+)\) was sent SIGKILL")
_COLOURS = {"app": 36, "datastore": 35, "memcached": 33, "tasks": 32, "mail": 34, "cron": 33}
_WIDTH = 10
_OURS = "rollforward.local."
_SERVICES = {"cloudtasks": "tasks", "mail": "mail", "cron": "cron"}
_PLAIN = logging.Formatter("%(message)s")  # With its traceback; the level has a column.


class LevelFilter:
    """Decides line by line what of one service is worth showing."""

    def __init__(self, *, shows_prints: bool = False) -> None:
        """Filter the lines of one service.

        Args:
            shows_prints: Whether to show lines without a level that follow no warning.
        """
        self._loud = False
        self._quiet: LogRecord | None = None  # A record of the library that is not shown.
        self._is_chained = False  # It has a traceback, which that of its cause may precede.
        self._shows_prints = shows_prints

    def is_visible(self, line: str) -> bool:
        """Return whether to show this line: a warning, an error with all its lines, or a print."""
        level = level_of(line)
        if level is not None:
            is_loud = level in _LOUD and not line.startswith(_TOLD_ELSEWHERE)
            self._loud = is_loud and level != "WARNING"
            is_ours = not is_loud and " rollforward." in line
            self._quiet = LogRecord(0, 0.0, "", level, "", [line]) if is_ours else None
            self._is_chained = False
            return is_loud
        if _GRPC_REST.match(line) or self._is_of_quiet(line):
            return False
        if line.startswith(_TRACEBACK):
            self._loud = True
        elif self._shows_prints:
            return True
        return self._loud

    def _is_of_quiet(self, line: str) -> bool:
        """Return whether a line is of a traceback of a record that is not shown."""
        record = self._quiet
        if record is None:
            return False
        is_between = self._is_chained and (not line or line.startswith(FURTHER))
        if record.is_in_stack or line.startswith(_TRACEBACK) or is_between:
            self._is_chained = True
            return record.takes(line)
        self._quiet = None
        return False


class Terminal:
    """Writes whole lines from any thread."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        """Write to the stream, standard error if none is given."""
        self.stream = stream or sys.stderr
        self.verbose = verbose
        self.tail = LogTail()
        self.colour = self.stream.isatty()
        self._killed: set[str] = set()
        self._notes = Repeats()
        self._lock = threading.Lock()

    def say(self, service: str, text: str) -> None:
        """Show a line of ours about a service."""
        self.tail.note(service, "INFO", text)
        self.show(service, text)

    def say_rarely(self, service: str, text: str) -> None:
        """Say what may come hundreds of times; all are kept, and few are shown."""
        self.tail.note(service, "INFO", text)
        shown = text if self.verbose else self._notes.filter_note(text)
        if shown is not None:
            self.show(service, shown)

    def say_killed(self, pid: int) -> None:
        """Say that a worker was killed on request."""
        self._killed.add(str(pid))
        self.say_rarely("app", f"worker {pid} killed on request: another one starts → {NOTHING}")

    def show(self, service: str, text: str) -> None:
        """Show the lines of a text, and keep none."""
        for line in text.splitlines() or [""]:
            self._show_line(service, line)

    def _show_line(self, service: str, line: str) -> None:
        prefix = f"{service:<{_WIDTH}}"
        if self.colour:
            prefix = f"\x1b[{_COLOURS.get(service, 37)}m{prefix}\x1b[0m"
        self.write(f"{prefix} {line}\n")

    def write(self, text: str) -> None:
        """Show text as it is. A terminal that is gone must not keep us from saving."""
        with self._lock, contextlib.suppress(OSError):
            self.stream.write(text)
            self.stream.flush()

    def about(self, service: str) -> Callable[[str], None]:
        """Return what to call with each line of ours about a service."""
        return lambda text: self.say(service, text)

    def sink(self, service: str) -> Callable[[str], None]:
        """Return what to call with each line of a service."""
        levels = LevelFilter(shows_prints=service == "app")
        repeats = Repeats()

        def on_line(line: str) -> None:
            self.tail.add(service, line)
            if self.verbose:
                self.show(service, line)
            elif self._matches(line):
                return
            elif levels.is_visible(line) and (shown := repeats.filter_line(line)) is not None:
                self.show(service, shown)

        return on_line

    def _matches(self, line: str) -> bool:
        """Return whether a line reports the death of a worker that was killed on request."""
        match = _SIGKILL.search(line)
        return match is not None and match[1] in self._killed


class TerminalHandler(logging.Handler):
    """Keeps and shows our own log records, by the service that they are about.

    A record may carry `task`, as queue/name, and `is_quiet`: it is for the page Logs alone.
    """

    def __init__(self, terminal: Terminal) -> None:
        """Show warnings and worse; everything if the terminal is verbose."""
        super().__init__(logging.INFO)
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record, and show it, with its traceback if it has one."""
        is_loud = record.levelno >= logging.WARNING
        if not (is_loud or self.terminal.verbose or record.name.startswith(_OURS)):
            return  # Libraries tell of every connection.
        service = _service_of(record.name)
        level = level_of(f"{record.levelname}:") or "INFO"
        text = _PLAIN.format(record)
        self.terminal.tail.note(service, level, text, task=getattr(record, "task", ""))
        if self.terminal.verbose or (is_loud and not getattr(record, "is_quiet", False)):
            self.terminal.show(service, self.format(record))


def _service_of(logger: str) -> str:
    """Return which service a logger of ours is about.

    >>> [_service_of(_OURS + name) for name in ("cloudtasks.emulator", "services.mail", "watch")]
    ['tasks', 'mail', 'devserver']
    """
    parts = logger.removeprefix(_OURS).split(".")
    return next((_SERVICES[part] for part in parts if part in _SERVICES), "devserver")
