"""Totals of windows: each window's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rollforward.streams import Computation, Pipeline, Record, StreamTest
from rollforward.streams.operators.aggregates import Combine
from rollforward.streams.operators.hot_keys import fan_out
from rollforward.streams.operators.windows import CountWindows, Tumbling, Windowed

ZERO = {"orders": 0, "yen": 0}
BY_SHOP = {"orders": lambda order: order["shop"]}
DAY = Tumbling(timedelta(days=1))


def add(total: dict[str, int], record: Record) -> dict[str, int]:
    total["orders"] += 1
    total["yen"] += record.value["yen"]
    return total


def merge(total: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    for name in total:
        total[name] += other[name]
    return total


SALES: Any = {
    "inputs": BY_SHOP, "output": "sales", "combine": Combine(lambda: ZERO, add, merge),
}  # fmt: skip


@pytest.mark.parametrize(
    "computations",
    [
        [Windowed("w", DAY, **SALES)],
        [CountWindows("w", 2, **SALES)],
        fan_out("w", DAY, **SALES, parts=2),
    ],
    ids=["windows", "counts", "parts"],
)
def test_a_total_that_begins_with_a_constant_is_that_of_its_window_alone(
    computations: list[Computation],
) -> None:
    """G1: `add` may modify a total, so orders of one shop counted for all, and in later windows."""
    test = StreamTest(Pipeline("p", *computations))
    orders = [({"shop": shop, "yen": yen}, 1_000) for shop in "ab" for yen in (100, 200)]
    test.push_all("orders", orders)
    test.close()
    sales = {output.value["key"]: output.value["value"] for output in test.read("sales")}
    assert sales == {shop: {"orders": 2, "yen": 300} for shop in "ab"}
    assert ZERO == {"orders": 0, "yen": 0}
