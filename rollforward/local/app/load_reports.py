"""The reports of workers that cannot load the app: each shown once, not once per worker."""

import time

from rollforward.local.app.wsgi import FIRST_LINE, LAST_LINE, LOADED
from rollforward.local.system.processes import LineSink

# A load that takes longer holds up no other one.
_LOAD_S = 15.0


class LoadReports:
    """Reads the app's output line by line, and passes it on.

    Args:
        on_line: Called with each line, without a report's that was shown since the last reload.

    Attributes:
        latest: The error of the app's present code, "" if it is not known to fail.
    """

    def __init__(self, on_line: LineSink | None) -> None:
        self._on_line = on_line
        self._report: list[str] | None = None
        self._shown: list[str] = []
        self.latest = ""
        self._loading_since: float | None = None

    @property
    def is_loading(self) -> bool:
        """Whether no worker has loaded the code since the last reload, nor failed to."""
        since = self._loading_since
        return since is not None and time.monotonic() < since + _LOAD_S

    def reloading(self) -> None:
        """Show the next report in any case: the workers load the saved code."""
        self._shown = []
        self._loading_since = time.monotonic()

    def take(self, line: str) -> None:
        """Take the next line."""
        if line == LOADED:
            self.latest = ""
        if line in (LOADED, LAST_LINE):
            self._loading_since = None
        if line.startswith(FIRST_LINE):
            self._report = []
        if self._report is None:
            self._show([line])
            return
        self._report.append(line)
        if line == LAST_LINE:
            report, self._report = self._report, None
            if report != self._shown:
                self._shown = report
                self.latest = report[0].removeprefix(FIRST_LINE)
                self._show(report)

    def _show(self, lines: list[str]) -> None:
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)
