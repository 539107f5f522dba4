"""Aggregates of windows, computed incrementally.

    count()                                     # The number of records.
    total(lambda order: order["yen"])           # A sum.
    top(3, of=lambda hit: hit["path"])          # The three most frequent names.

A window stores an accumulator (its total), not the records. If two sessions are merged, so are
their totals.

Source: CombineFn of Apache Beam.
"""

from __future__ import annotations

import copy
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


def _identity(total: Any) -> Any:
    return total


def _one(value: Any) -> float:
    return 1


@dataclass(frozen=True)
class Combine:
    """An aggregate function: accumulator, merge and result.

    Attributes:
        empty: Returns the total of no records: any JSON value.
        add: Returns a total with one more record; it may modify its argument.
        merge: Returns the total of two merged windows; the first argument is the earlier one.
        result: Returns the result for a total, as JSON, without modifying the total.
    """

    empty: Callable[[], Any]
    add: Callable[[Any, Record], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = _identity


def aggregate_of(name: str, combine: Combine | None) -> Combine:
    """Return the aggregate of a computation by its argument `combine`; default: `count()`.

    Each window gets a total of its own to modify, even if `empty` returns a constant of the app.

    Raises:
        TypeError: it is no aggregate, and each record would be a dead letter.
    """
    if combine is not None and not hasattr(combine, "merge"):
        raise TypeError(f"{name}: `combine` must be a Combine, as total(of), got {combine!r:.100}")
    aggregate = combine or count()
    return Combine(
        lambda: copy.deepcopy(aggregate.empty()),
        aggregate.add,
        aggregate.merge,
        aggregate.result,
    )


def count() -> Combine:
    """Count records."""
    return Combine(int, lambda total, record: total + 1, operator.add)


def total(of: Callable[[Any], float]) -> Combine:
    """Add up a number of each record's value."""
    return Combine(
        empty=lambda: 0,
        add=lambda total, record: total + of(record.value),
        merge=operator.add,
    )


def collect(limit: int = MAX_COLLECTED) -> Combine:
    """List the values of records, in order of arrival; records above `limit` are refused."""

    def add(values: list[Any], record: Record) -> list[Any]:
        return merge(values, [record.value])

    def merge(values: list[Any], others: list[Any]) -> list[Any]:
        if len(values) + len(others) > limit:
            raise BadRecordError(f"a window must collect at most {limit} values")
        values.extend(others)
        return values

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
        of: Returns the name for a value: a text.
        amount: Returns the amount for a value; default: 1.
        names: The maximum number of names of a window; records with further names are refused.
    """

    def add_to(sums: dict[str, float], name: str, increment: float) -> None:
        if not isinstance(name, str):  # JSON would make a text of it, and a second sum.
            raise BadRecordError(f"a name must be a text, got {name!r:.100}")
        if name not in sums and len(sums) >= names:
            raise BadRecordError(f"a window must have at most {names} names")
        sums[name] = sums.get(name, 0) + increment

    def add(sums: dict[str, float], record: Record) -> dict[str, float]:
        add_to(sums, of(record.value), amount(record.value))
        return sums

    def merge(sums: dict[str, float], others: dict[str, float]) -> dict[str, float]:
        for name, increment in others.items():
            add_to(sums, name, increment)
        return sums

    def largest(sums: dict[str, float]) -> list[list[Any]]:
        items = heapq.nsmallest(k, sums.items(), key=lambda item: (-item[1], item[0]))
        return [list(item) for item in items]

    return Combine(dict, add, merge, largest)
