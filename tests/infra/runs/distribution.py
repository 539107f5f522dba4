"""The distribution of files to the workers of `make test`, and their order.

A file is run by one worker, which so starts what the file shares once; all tests in a browser are
run by one, since they share a stack, and all on the emulator that locks, which is started once.
What starts processes and waits for them comes first, in turn with what keeps a processor busy: a
stack that starts late is waited for in the end.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from xdist.scheduler import LoadScopeScheduling

BROWSER = "tests/browser/"
LOCKING = "firestore"
# What mostly waits: for processes, pages, locks, and clocks of other programs.
WAITING = (BROWSER, "tests/process/", LOCKING, "tests/rollforward/local/")


class Distribution(LoadScopeScheduling):
    """Give out units as they stand in the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def arrange(items: list[pytest.Item]) -> None:
    """Put a collection in the order in which its units are given out."""
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        units[unit_of(item.nodeid)].append(item)
    sizes = {unit: len(some) for unit, some in units.items()}
    items[:] = [item for unit in ordered(sizes) for item in units[unit]]


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


def ordered(sizes: dict[str, int]) -> list[str]:
    """Return units in turn: the next of those that wait, and the largest of the others.

    >>> ordered({"tests/a.py": 1, "tests/b.py": 2, "tests/process/c.py": 1, "tests/browser/": 9})
    ['tests/browser/', 'tests/b.py', 'tests/process/c.py', 'tests/a.py']
    """
    waiting = [unit for place in WAITING for unit in sizes if unit.startswith(place)]
    others = sorted(sizes.keys() - {*waiting}, key=lambda unit: (-sizes[unit], unit))
    pairs = itertools.zip_longest(waiting, others)
    return [unit for pair in pairs for unit in pair if unit is not None]
