"""The terminal's one stream: lines of all services, prefixed, the quiet ones left out.

A line is shown if it is a warning or worse; lines that follow without a level of their
own (a traceback) go with it. Everything is in .dev/logs/ anyway.
"""

import contextlib
import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_QUIET = {"DEBUG", "INFO", "NOTICE", "DEFAULT", "CONFIG", "FINE", "FINER", "FINEST"}
_LOUD = {"WARNING", "WARN", "ERROR", "CRITICAL", "ALERT", "EMERGENCY", "SEVERE", "FATAL"}
_LEVEL = re.compile(rf"(?:^|[\s\[])({'|'.join(_QUIET | _LOUD)})(?=[\]:\s])")
_COLOURS = {"app": 36, "datastore": 35, "memcached": 33, "tasks": 32, "mail": 34, "cron": 33}
_WIDTH = 10


class LevelFilter:
    """Decides line by line what of one service is worth showing."""

    def __init__(self) -> None:
        self._loud = False

    def shows(self, line: str) -> bool:
        """Return whether this line is a warning or belongs to one."""
        level = _level_of(line)
        if level is not None:
            self._loud = level in _LOUD
        elif line.startswith("Traceback (most recent call last)"):
            self._loud = True
        return self._loud


class Terminal:
    """Writes whole lines from any thread."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        """Write to the stream, standard error if none is given."""
        self.stream = stream or sys.stderr
        self.verbose = verbose
        self.colour = self.stream.isatty()
        self._lock = threading.Lock()

    def say(self, service: str, text: str) -> None:
        """Show a line of ours about a service."""
        prefix = f"{service:<{_WIDTH}}"
        if self.colour:
            prefix = f"\x1b[{_COLOURS.get(service, 37)}m{prefix}\x1b[0m"
        self.write(f"{prefix} {text}\n")

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
        levels = LevelFilter()

        def on_line(line: str) -> None:
            if self.verbose or levels.shows(line):
                self.say(service, line)

        return on_line


class TerminalHandler(logging.Handler):
    """Shows our own log records, by the service that they are about."""

    def __init__(self, terminal: Terminal) -> None:
        """Show warnings and worse; everything if the terminal is verbose."""
        super().__init__(logging.INFO if terminal.verbose else logging.WARNING)
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record, with its traceback if it has one."""
        service = "tasks" if ".cloudtasks" in record.name else "devserver"
        for line in self.format(record).splitlines():
            self.terminal.say(service, line)


def _level_of(line: str) -> str | None:
    if line.startswith("{"):
        try:
            severity = json.loads(line).get("severity")
        except (ValueError, AttributeError):
            return None
        return str(severity).upper() if severity else None
    match = _LEVEL.search(line[:120])
    return match.group(1) if match else None
