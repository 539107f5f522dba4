"""Which files take how long: printed at the end of `make test`.

A file that takes long holds up everybody who waits for `make test`. What it plays again and again
belongs behind `make soak` (tests/soak.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

# What a file may take on a machine with two cores that does nothing else: its tests in a row.
MAX_FILE_S = 30.0
SHOWN = 15


def lines(reports: Iterable[Any]) -> list[str]:
    """Return the files that took longest, one a line: seconds, tests, name.

    >>> from types import SimpleNamespace as Report
    >>> lines([Report(nodeid="a.py::t[1]", when="call", duration=2.25)])
    ['   2.2 s    1 tests  a.py']
    """
    seconds: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for report in reports:
        file = report.nodeid.partition("::")[0]
        seconds[file] += report.duration
        tests[file] += report.when == "call"
    longest = sorted(seconds, key=lambda file: -seconds[file])[:SHOWN]
    return [
        f"{seconds[file]:6.1f} s {tests[file]:4} tests  {file}"
        f"{'  (long)' if seconds[file] > MAX_FILE_S else ''}"
        for file in longest
    ]
