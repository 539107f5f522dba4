"""The summary of a test run: the files that took long, and the plays with faults.

A file that takes long holds up everybody who waits for `make test`. What it plays again and again
belongs behind `make soak` (tests/infra/runs/soak.py).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from tests.infra.runs import distribution, sampling, slow, soak

# What a file may take on a machine with two cores that does nothing else: its tests in a row.
MAX_FILE_S = 30.0
SHOWN = 15


def tell(terminalreporter: Any) -> None:
    """Write all of it to the terminal."""
    reports = [each for some in terminalreporter.stats.values() for each in some]
    timed = [report for report in reports if hasattr(report, "duration")]
    if timed:
        terminalreporter.section(f"longest files; on a quiet machine at most {MAX_FILE_S:g} s")
        for line in durations(timed):
            terminalreporter.line(line)
    if os.environ.get("KEEP_TIMES"):
        distribution.keep(timed)
        slow.keep(timed)
    if sampling.IS_SAMPLED:
        again = f"make test SEED={sampling.SEED}"
        terminalreporter.line(f"drawn by the seed {sampling.SEED}: `{again}` draws the same")
    for line in faults([report for report in timed if report.when == "call"]):
        terminalreporter.line(line)


def durations(reports: Iterable[Any]) -> list[str]:
    """Return the files that took longest, one a line: seconds, tests, name.

    >>> from types import SimpleNamespace as Report
    >>> durations([Report(nodeid="a.py::t[1]", when="call", duration=2.25)])
    ['   2.2 s    1 tests  a.py']
    """
    seconds: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for report in reports:
        file = report.nodeid.partition("::")[0]
        seconds[file] += report.duration
        tests[file] += report.when == "call"
    longest = sorted(seconds, key=lambda file: -seconds[file])[:SHOWN]
    return [f"{seconds[file]:6.1f} s {tests[file]:4} tests  {file}" for file in longest]


def faults(reports: Iterable[Any]) -> list[str]:
    """Return how much was played with faults, and which calls were broken by no fault of a kind.

    >>> from types import SimpleNamespace as Report
    >>> both = [["Commit", "error"], ["Commit", "flush"]]
    >>> how = [("plays played", 1), ("plays of", 4), ("breakable", both), ("broken", both[:1])]
    >>> faults([Report(user_properties=how)])[1:]
    ['1 of 2 pairs of a remote call and a kind of fault were met', 'not met: Commit flush']
    """
    plays: Counter[str] = Counter()
    pairs: dict[str, set[tuple[str, ...]]] = {"breakable": set(), "broken": set()}
    for report in reports:
        for name, value in report.user_properties:
            if name.startswith(("plays ", "happened ")):
                plays[name] += value
            elif name in pairs:
                pairs[name] |= {tuple(pair) for pair in value}
    if not plays:
        return []
    of, left = pairs["breakable"], pairs["breakable"] - pairs["broken"]
    how = f"seed {soak.SEED}, {soak.MINUTES:g} minutes (0: no end): " if soak.IS_SOAK else ""
    return [
        f"{how}{plays['plays played']:,} of {plays['plays of']:,} drawn plays with faults",
        f"{len(of) - len(left)} of {len(of)} pairs of a remote call and a kind of fault were met",
        *([f"not met: {', '.join(map(' '.join, sorted(left)))}"] if left else []),
        *_happened(plays),
    ]


def _happened(plays: Counter[str]) -> list[str]:
    """Return what has happened in the schedules of simulators.

    >>> _happened(Counter({"happened schedules": 2000, "happened lost": 31, "plays of": 1}))
    ['2,000 schedules of the simulator, in which came: lost 31']
    """
    counts = {
        name.removeprefix("happened "): n for name, n in plays.items() if name.startswith("happ")
    }
    schedules = counts.pop("schedules", 0)
    came = ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()))
    return [f"{schedules:,} schedules of the simulator, in which came: {came}"] * (schedules > 0)
