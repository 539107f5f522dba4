"""The sample of `make test`: it leaves out most tests that differ only in their parameters.

A test that calls services runs with one in CALLING_OF of its parameters, on the emulator that lets
the first commit win. On the emulator that locks it is one in LOCKING_OF of the tests of each
folder that run on the other one, too. A test that calls none runs with up to FEW parameters, or
half. A page is driven in one of two windows. What is marked `one_of` is tried by one in so many.
Of the others, what takes seconds (slow.py) runs on one day of SLOW_OF. `make test ALL=1`,
`make soak` and pytest by itself leave out none.

SEED says which: `make test` takes the number of the day, and prints it; `make test SEED=7` draws as
on another day. Of n tests of which one is drawn, n days in a row draw each; of slow
ones, SLOW_OF times as many. With SHUFFLED=1 tests run in an order that SEED says, too.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.infra.runs import slow

T = TypeVar("T")

# For a claim about hours that pass or about limits, which no lock changes.
one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)
# Of what kills processes beside real work for many seconds, `make test` plays one in five.
kills = pytest.mark.one_of("kills", 5)
# Of what keeps a processor busy for seconds, and is no promise of a pattern in small, one in five.
long = pytest.mark.one_of("long", 5)
# Of what takes most of a minute, in a draw of its own, one in five.
minute = pytest.mark.one_of("minute", 5)

IS_SAMPLED = os.environ.get("SAMPLED") == "1"
IS_SHUFFLED = os.environ.get("SHUFFLED") == "1"
SEED = int(os.environ.get("SAMPLE_SEED") or 0)
SHARING = "tests/browser/"
FEW = 2
CALLING_OF = 5
LOCKING_OF = 20
SLOW_OF = 5
SLOW = slow.known()


class Group(NamedTuple):
    """Tests of which one in so many is drawn, or all if they are few."""

    name: str
    one_in: int
    few: int = 0
    is_slow: bool = False


def shuffle(items: list[pytest.Item]) -> None:
    """Put a collection in the order of SEED: its files, and the tests of each.

    So a test that depends on an earlier one fails with most seeds. Tests in a browser share a
    running stack: their order stays, as a page that is to be idle would wait for others' runs.
    """
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        is_shared = item.nodeid.startswith(SHARING)
        files[SHARING if is_shared else item.nodeid.partition("::")[0]].append(item)
    order, names = random.Random(SEED), list(files)
    order.shuffle(names)
    for name in names:
        if name != SHARING:
            order.shuffle(files[name])
    items[:] = itertools.chain.from_iterable(files[name] for name in names)


def draw(items: list[pytest.Item]) -> None:
    """Take out of a collection what is not drawn."""
    elsewhere = {_function(item) for item in items if not _locks(item)}
    groups: dict[Group, list[str]] = defaultdict(list)
    for item in items:
        groups[_group(item, elsewhere)].append(item.nodeid)
    today = _slow_ones_of_today(groups)
    drawn = {
        id_
        for group, ids in groups.items()
        if not group.is_slow or group.name in today
        for id_ in _drawn(group, ids)
    }
    if left := [item for item in items if item.nodeid not in drawn]:
        left[0].config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid in drawn]


def _slow_ones_of_today(groups: Collection[Group]) -> set[str]:
    """Return the slow groups of this day: each is drawn on one day of a round of SLOW_OF."""
    slow_ones = sorted(group.name for group in groups if group.is_slow)
    return {*sample(f"slow {SEED // SLOW_OF}", slow_ones, SLOW_OF)} if slow_ones else set()


def _drawn(group: Group, ids: Sequence[str]) -> list[str]:
    """Return the tests of a group; a slow one draws others in each round, not on each day."""
    ids, one_in = sorted(ids), group.one_in if len(ids) > group.few else 1
    return sample(group.name, ids, one_in, SEED // SLOW_OF if group.is_slow else SEED)


def sample(group: str, ids: Sequence[T], one_in: int, seed: int | None = None) -> list[T]:
    """Return one in so many, and at least one; as many seeds in a row return each.

    >>> len(sample("a", "x", 4)), len(sample("a", "wxyz", 4)), len(sample("a", "vwxyz", 4))
    (1, 1, 2)
    >>> sorted(x for seed in (7, 8, 9) for x in sample("a", "uvwxyz", 3, seed))
    ['u', 'v', 'w', 'x', 'y', 'z']
    """
    shuffled = random.Random(group).sample(list(ids), len(ids))
    count = math.ceil(len(ids) / one_in)
    first = (SEED if seed is None else seed) * count % len(ids)
    return (shuffled + shuffled)[first : first + count]


def _group(item: pytest.Item, elsewhere: Collection[str]) -> Group:
    """Return what a test is drawn from.

    Args:
        elsewhere: The functions that run on the emulator without locks, or on none.
    """
    function, parameters = _function(item), _parameters(item)
    if _locks(item) and function in elsewhere:
        return Group(f"{_folder(item)} locks", LOCKING_OF)
    if (one_of := item.get_closest_marker("one_of")) is not None:
        return Group(*one_of.args)
    is_slow = function in SLOW
    if {"page", "window"} & parameters.keys():
        return Group(f"{function} windows", 2, is_slow=is_slow)
    one_in, few = (CALLING_OF, 0) if "services" in parameters else (2, FEW)
    return Group(function, one_in, few, is_slow)


def _locks(item: pytest.Item) -> bool:
    """Return whether a test runs on the emulator that locks."""
    parameters = _parameters(item)
    return "firestore" in (parameters.get("services"), parameters.get("kind"))


def _folder(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].rpartition("/")[0]


def _function(item: pytest.Item) -> str:
    return slow.function_of(item.nodeid)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None else {}
