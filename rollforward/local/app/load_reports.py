"""The reports of workers that cannot load the app: each shown once, not once per worker."""

from rollforward.local.app.wsgi import FIRST_LINE, LAST_LINE, LOADED
from rollforward.local.system.processes import LineSink


class LoadReports:
    """Reads what the app prints, line by line, and passes it on.

    Args:
        on_line: Called with each line, without those of a report that was shown since the last
            reload.

    Attributes:
        latest: The error of the app's present code, "" if it is not known to fail.
    """

    def __init__(self, on_line: LineSink | None) -> None:
        self._on_line = on_line
        self._report: list[str] | None = None
        self._shown: list[str] = []
        self.latest = ""

    def reloading(self) -> None:
        """Show the next report whatever it says: the workers load the saved code."""
        self._shown = []

    def take(self, line: str) -> None:
        """Take the next line."""
        if line == LOADED:
            self.latest = ""
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
