"""What `make test` leaves out: most of what differs only in its parameters.

A test with up to MANY parameters runs with all of them, on the emulator that lets the first commit
win; one with more runs with half. On the emulator that locks it is one test in SAMPLE_OF of each
file. A page is driven in one of two windows. What is drawn is the same each time.
`make test ALL=1`, `make soak` and pytest by itself leave out none.
"""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

# For a claim about hours that pass or about limits, which no lock changes.
one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)

IS_SAMPLED = os.environ.get("SAMPLED") == "1"
SAMPLE_OF = 8
MANY = 3


def draw(items: list[pytest.Item]) -> None:
    """Take out of a collection what is not drawn."""
    if not IS_SAMPLED:
        return
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item in items:
        groups[_group(item)].append(item.nodeid)
    drawn = {
        id_
        for (group, one_in), ids in groups.items()
        for id_ in sample(group, ids, one_in or (2 if len(ids) > MANY else 1))
    }
    if left := [item for item in items if item.nodeid not in drawn]:
        left[0].config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid in drawn]


def sample(group: str, ids: Sequence[str], one_in: int) -> list[str]:
    """Return one in so many, and at least one.

    >>> len(sample("a", ["x"], 4)), len(sample("a", list("wxyz"), 4)), len(sample("a", "vwxyz", 4))
    (1, 1, 2)
    """
    return random.Random(group).sample(list(ids), math.ceil(len(ids) / one_in))


def _group(item: pytest.Item) -> tuple[str, int]:
    """Return what a test is drawn from, and of how many it is one; 0: that depends on how many."""
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec is not None else {}
    if "firestore" in (parameters.get("services"), parameters.get("kind")):
        return item.nodeid.partition("::")[0] + " locks", SAMPLE_OF
    function = item.nodeid.partition("[")[0]
    is_in_windows = {"page", "window"} & parameters.keys()
    return (f"{function} windows", 2) if is_in_windows else (function, 0)
