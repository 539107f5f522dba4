"""The distribution of files to the workers of `make test`, and their order.

A file is run by one worker, which so starts what the file shares once; all tests in a browser are
run by one, since they share a stack, and all on the emulator that locks, which is started once.
What starts processes and waits for them comes in turn with what keeps a processor busy, and the
longest of both first: what begins last is waited for by all. `make test TIMES=1` keeps how long
each took, in seconds.json.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

BROWSER = "tests/browser/"
LOCKING = "firestore"
# What mostly waits: for processes, pages, locks, and clocks of other programs.
WAITING = (
    BROWSER,
    LOCKING,
    *("tests/process/", "tests/rollforward/cli/", "tests/rollforward/local/"),
    "tests/rollforward/testing/",
)
SECONDS = Path(__file__).with_name("seconds.json")
MIN_KEPT_S = 1.0
A_TEST_S = 0.1  # Of a unit that is not in the list: new ones are short, and many.


class Distribution(LoadScopeScheduling):
    """Give out units as they stand in the collection."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # By itself xdist orders by the number of tests: a file of one long test came last.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def arrange(items: list[pytest.Item]) -> None:
    """Put a collection in the order in which its units are given out."""
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        units[unit_of(item.nodeid)].append(item)
    times = json.loads(SECONDS.read_text())
    seconds = {unit: times.get(unit, A_TEST_S * len(some)) for unit, some in units.items()}
    items[:] = [item for unit in ordered(seconds) for item in units[unit]]


def keep(reports: Iterable[Any]) -> None:
    """Keep how long each unit took; of those that this run has left out, what is known."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[unit_of(report.nodeid)] += report.duration
    times = {**json.loads(SECONDS.read_text()), **seconds}
    kept = {unit: round(times[unit], 1) for unit in sorted(times) if times[unit] >= MIN_KEPT_S}
    SECONDS.write_text(json.dumps(kept, indent=1) + "\n")


def unit_of(nodeid: str) -> str:
    """Return what a test is given out with.

    >>> unit_of("tests/browser/demos/test_blog.py::test_it[1]")
    'tests/browser/'
    >>> unit_of("tests/test_docs.py::test_it")
    'tests/test_docs.py'
    >>> unit_of("tests/pipelines/sums/test_load.py::test_it[firestore-2]")
    'firestore'
    """
    file, _, test = nodeid.partition("::")
    if file.startswith(BROWSER):
        return BROWSER
    return LOCKING if LOCKING in test else file


def ordered(seconds: Mapping[str, float]) -> list[str]:
    """Return units in turn: the longest that waits, and the longest that computes.

    >>> ordered({"tests/a.py": 1, "tests/b.py": 2, "tests/process/c.py": 1, "tests/browser/": 9})
    ['tests/browser/', 'tests/b.py', 'tests/process/c.py', 'tests/a.py']
    """
    longest = sorted(seconds, key=lambda unit: (-seconds[unit], unit))
    waiting = [unit for unit in longest if unit.startswith(WAITING)]
    others = [unit for unit in longest if not unit.startswith(WAITING)]
    pairs = itertools.zip_longest(waiting, others)
    return [unit for pair in pairs for unit in pair if unit is not None]
