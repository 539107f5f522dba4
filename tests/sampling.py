"""What `make test` leaves out on the emulator that locks.

Each test runs on both emulators. With parameters, all of them run on the one that lets the first
commit win, and one in SAMPLE_OF on the one that locks, the same ones each time. Where transactions
are those of a pattern, which has tests of its own, it is one test in SAMPLE_OF. `make test ALL=1`,
`make soak` and pytest by itself leave out none.
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
SAMPLE_OF = 4
# What apps make of the patterns, and what two versions of an app make of a view.
BY_FILE = (
    "tests/demos/",
    "tests/pipelines/materialized_views/test_changed_views",
    "tests/pipelines/materialized_views/test_retired_views",
    "tests/pipelines/materialized_views/test_verify",
    "tests/pipelines/materialized_views/test_views_beside_another_version",
)


def draw(items: list[pytest.Item]) -> None:
    """Take out of a collection what is not drawn."""
    if not IS_SAMPLED:
        return
    groups: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if _locks(item):
            is_by_file = item.nodeid.startswith(BY_FILE)
            group = item.nodeid.partition("::" if is_by_file else "[")[0]
            groups[group].append(item.nodeid)
    drawn = {id_ for group, ids in groups.items() for id_ in sample(group, ids)}
    left = [item for item in items if _locks(item) and item.nodeid not in drawn]
    if left:
        left[0].config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not _locks(item) or item.nodeid in drawn]


def sample(group: str, ids: Sequence[str]) -> list[str]:
    """Return one in SAMPLE_OF, and at least one.

    >>> len(sample("a", ["x"])), len(sample("a", list("wxyz"))), len(sample("a", list("vwxyz")))
    (1, 1, 2)
    """
    return random.Random(group).sample(ids, math.ceil(len(ids) / SAMPLE_OF))


def _locks(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is not None and parameters.params.get("services") == "firestore"
