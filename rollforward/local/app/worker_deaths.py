"""Workers that end while they load the app, in a line and not in hundreds.

Errors that cannot be caught end a worker without a report: `os._exit`, a crash in C, the kernel's
hand when memory is short. gunicorn starts the next one at once, which ends as well. It writes a
line each time, or a traceback of its own when it gives up.
"""

import re

from rollforward.local.app.wsgi import LOADED
from rollforward.local.system.processes import LineSink

_DEATH = re.compile(r"Worker \(pid:\d+\) ((?:exited with code \d+|was sent SIG[A-Z]+)\S*.*)$")
_FILE = re.compile(r'^  File "([^"]+)"')
_FIRST = "Traceback (most recent call last):"
_BETWEEN = ("", "During handling of the above exception, another exception occurred:")
# More than a switch on a page kills at a time.
_SHOWN = 2


class WorkerDeaths:
    """Reads what gunicorn prints, line by line, and passes on its new lines.

    Args:
        on_line: Called with each line, except repetitions.

    Attributes:
        since_load: How many workers have ended since one last loaded the app.
        first: How the first of them ended. gunicorn may have ended the others because of it.
    """

    def __init__(self, on_line: LineSink) -> None:
        self._on_line = on_line
        self._traceback: list[str] = []
        self._is_between = False  # Of two tracebacks of gunicorn's own.
        self.since_load = 0
        self.first = ""

    def reloading(self) -> None:
        """Count from zero: the workers load the saved code."""
        self.since_load = 0

    def take(self, line: str) -> None:
        """Take the next line."""
        if line == _FIRST or (self._traceback and line.startswith("  ")):
            self._traceback.append(line)
        elif self._traceback:
            lines, self._traceback = [*self._traceback, line], []
            self._is_between = _is_of_gunicorn(lines)
            if not self._is_between:
                self._forward(lines)
        elif not (self._is_between and line in _BETWEEN):
            self._is_between = False
            self._take_line(line)

    def _take_line(self, line: str) -> None:
        if line == LOADED:
            self.since_load = 0
        if death := _DEATH.search(line):
            self.since_load += 1
            if self.since_load == 1:
                self.first = death.group(1).rstrip(".")
            if self.since_load == _SHOWN + 1:
                line = f"ERROR each worker ends while it loads the app: {self.first}"
            elif self.since_load > _SHOWN:
                return
        self._forward([line])

    def _forward(self, lines: list[str]) -> None:
        for line in lines:
            self._on_line(line)


def _is_of_gunicorn(lines: list[str]) -> bool:
    """Return whether a traceback shows nothing but gunicorn's own end."""
    files = [match.group(1) for line in lines if (match := _FILE.match(line))]
    return any("/gunicorn/" in name for name in files) and all(
        "/gunicorn/" in name or name.startswith("<frozen ") for name in files
    )
