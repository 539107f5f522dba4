"""Dollars for operations, by the dated price list."""

import dataclasses
import datetime
import re

import pytest

from rollforward.local.prices import FILE, price_list
from rollforward.runtime import Cost

MILLION_OF = {
    "reads": {"reads": 10**6},
    "query_reads": {"query_reads": 10**6},
    "writes": {"writes": 10**6},
    "deletes": {"writes": 10**6, "deletes": 10**6},
    "task_operations": {"task_operations": 10**6},
    "free": {"tasks": 10**6, "round_trips": 10**6},
}
DOLLARS = {
    "us-central1": (0.30, 0.30, 0.90, 0.10, 0.40, 0.0),
    "nam5": (0.60, 0.60, 1.80, 0.20, 0.40, 0.0),
}


@pytest.mark.parametrize("region", DOLLARS)
def test_each_kind_of_operation_has_its_price(region):
    """A deleted entity is a write of the count, and costs a delete alone."""
    prices = price_list(region)

    found = [prices.dollars(Cost(**cost).as_dict()) for cost in MILLION_OF.values()]
    assert found == pytest.approx(DOLLARS[region])


def test_a_million_items_cost_what_some_did_in_proportion():
    """An item with two writes and two task operations is $2.60 a million."""
    cost = Cost(writes=200, task_operations=200).as_dict()

    assert price_list().dollars_per_million(cost, 100) == pytest.approx(2.60)
    assert price_list().dollars_per_million(cost, 0) == 0.0


def test_each_price_has_a_date_and_a_source():
    """A price without them could not be checked."""
    for region in DOLLARS:
        prices = price_list(region)
        assert prices.as_of >= datetime.date(2026, 11, 24)
        for price in prices.prices.values():
            assert re.fullmatch(r"https://(docs\.)?cloud\.google\.com/\S+", price.source)
            assert price.note


def test_the_price_list_names_each_charged_operation_of_the_count():
    """A field that is added to the count needs a price, or a line here that it has none."""
    charged = {"reads", "query_reads", "writes", "deletes", "task_operations"}

    assert {field.name for field in dataclasses.fields(Cost)} - charged == {"tasks", "round_trips"}
    assert FILE.exists()
