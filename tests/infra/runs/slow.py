"""The tests that take seconds each: `make test` draws one in so many of them (sampling.py).

`make test TIMES=1`, on a machine that does nothing else, keeps their names in slow.json.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# What a test takes on average over its parameters, with its share of what it starts.
SLOW_S = 2.0
FILE = Path(__file__).with_name("slow.json")


def known() -> frozenset[str]:
    """Return the functions that are slow."""
    return frozenset(json.loads(FILE.read_text()))


def keep(reports: Iterable[Any]) -> None:
    """Keep which functions were slow in a run; of those that it has left out, what is known."""
    slow = sorted(updated(known(), seconds_of(reports)))
    FILE.write_text(json.dumps(slow, indent=1) + "\n")


def seconds_of(reports: Iterable[Any]) -> dict[str, list[float]]:
    """Return how long the tests of each function took, in the order of their first report.

    >>> from types import SimpleNamespace as Report
    >>> of = {"setup": 0.5, "call": 2.0, "teardown": 0.25}
    >>> seconds_of(Report(nodeid="a.py::t[1]", when=w, duration=s) for w, s in of.items())
    {'a.py::t': [2.75]}
    """
    tests: dict[str, float] = defaultdict(float)
    for report in reports:
        tests[report.nodeid] += report.duration
    functions: dict[str, list[float]] = defaultdict(list)
    for nodeid, seconds in tests.items():
        functions[function_of(nodeid)].append(seconds)
    return dict(functions)


def updated(slow: frozenset[str], measured: Mapping[str, list[float]]) -> frozenset[str]:
    """Return the functions that are slow after a run.

    >>> sorted(updated(frozenset({"a", "b"}), {"b": [0.1], "c": [1.5, 3.0]}))
    ['a', 'c']
    """
    now = {name for name, times in measured.items() if sum(times) / len(times) >= SLOW_S}
    return (slow - measured.keys()) | now


def function_of(nodeid: str) -> str:
    """Return a test without its parameters.

    >>> function_of("tests/test_docs.py::test_it[a-b]")
    'tests/test_docs.py::test_it'
    """
    return nodeid.partition("[")[0]
