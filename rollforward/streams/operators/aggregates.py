"""What windows make of their records, record by record.

    count()                                     # How many there are.
    total(lambda order: order["yen"])           # The sum of something.
    top(3, of=lambda hit: hit["path"])          # The three most frequent.

A window keeps a total of its records and not the records; two sessions that become one merge their
totals.

Source: CombineFn of Apache Beam.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import Record

# A state has at most 900 KB.
MAX_COLLECTED = 1_000
MAX_NAMES = 5_000


def _same(total: Any) -> Any:
    return total


def _one(value: Any) -> float:
    return 1


@dataclass(frozen=True)
class Combine:
    """How a window's records become its result.

    Attributes:
        empty: Makes the total of no records: anything that JSON knows.
        add: Returns a total with one more record; it may change the total it is given.
        merge: Returns the total of two windows that have become one, the earlier one first.
        result: Returns the result of a total, as JSON, and leaves the total as it is.
    """

    empty: Callable[[], Any]
    add: Callable[[Any, Record], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = _same


def count() -> Combine:
    """Count records."""
    return Combine(int, lambda total, record: total + 1, operator.add)


def total(of: Callable[[Any], float]) -> Combine:
    """Add up a number of each record's value."""
    return Combine(
        empty=lambda: 0,
        add=lambda total, record: total + of(record.value),
        merge=lambda first, second: first + second,
    )


def collect(limit: int = MAX_COLLECTED) -> Combine:
    """List the values of records, as they came; with more than `limit` a record is refused."""

    def add(values: list[Any], record: Record) -> list[Any]:
        return merge(values, [record.value])

    def merge(first: list[Any], second: list[Any]) -> list[Any]:
        if len(first) + len(second) > limit:
            raise BadRecordError(f"a window collects at most {limit} values")
        first.extend(second)
        return first

    return Combine(list, add, merge)


def top(
    k: int,
    of: Callable[[Any], str],
    amount: Callable[[Any], float] = _one,
    *,
    names: int = MAX_NAMES,
) -> Combine:
    """Add up amounts by name, and report the `k` largest sums as [[name, sum]], largest first.

    Equal sums are in order of their names.

    Args:
        of: Returns the name that a value counts for.
        amount: Returns how much it counts; by default 1.
        names: How many a window has at most; a record with a further one is refused.
    """

    def add_to(sums: dict[str, float], name: str, more: float) -> None:
        if name not in sums and len(sums) >= names:
            raise BadRecordError(f"a window has at most {names} names")
        sums[name] = sums.get(name, 0) + more

    def add(sums: dict[str, float], record: Record) -> dict[str, float]:
        add_to(sums, of(record.value), amount(record.value))
        return sums

    def merge(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
        for name, more in second.items():
            add_to(first, name, more)
        return first

    def largest(sums: dict[str, float]) -> list[list[Any]]:
        found = heapq.nsmallest(k, sums.items(), key=lambda item: (-item[1], item[0]))
        return [list(item) for item in found]

    return Combine(dict, add, merge, largest)
