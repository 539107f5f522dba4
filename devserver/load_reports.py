"""The reports of workers that cannot load the app: each shown once, not once per worker."""

from devserver.processes import LineSink
from devserver.wsgi import FIRST_LINE, LAST_LINE


class LoadReports:
    """Reads what the app prints, line by line, and hands it on.

    Args:
        on_line: Called with each line but those of a report that was shown before.

    Attributes:
        latest: What the app's code as it is now fails with, "" if it is not known to fail.
    """

    def __init__(self, on_line: LineSink | None) -> None:
        self._on_line = on_line
        self._report: list[str] | None = None
        self._shown: list[str] = []
        self.latest = ""

    def expect(self) -> None:
        """Forget the last report: the app is about to be loaded again."""
        self._shown, self.latest = [], ""

    def take(self, line: str) -> None:
        """Take the next line."""
        if line.startswith(FIRST_LINE):
            self._report = []
        if self._report is None:
            self._show([line])
            return
        self._report.append(line)
        if line == LAST_LINE:
            report, self._report = self._report, None
            if report != self._shown:
                self._shown, self.latest = report, report[0].removeprefix(FIRST_LINE)
                self._show(report)

    def _show(self, lines: list[str]) -> None:
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)
