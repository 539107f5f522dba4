"""The page of limits shows what the dated prices and the measured operations give."""

from __future__ import annotations

import copy
import datetime
import tomllib

import pytest

from benchmarks.dollars import dataflow
from tests.infra.documents import text_of

pytestmark = pytest.mark.fast

PAGE = "docs/concepts/scale.md"
CONTENT = tomllib.loads(dataflow.FILE.read_text())


def test_the_page_has_the_computed_lines() -> None:
    """`python -m benchmarks.dollars.dataflow` prints them."""
    missing = [line for line in dataflow.page() if line not in text_of(PAGE).splitlines()]
    assert not missing


def test_the_prices_have_a_date_and_a_source_and_are_said_to_be_second_hand() -> None:
    assert CONTENT["as_of"] >= datetime.date(2026, 11, 27)
    assert CONTENT["source"] in text_of(PAGE)
    assert CONTENT["checked"] or "second-hand" in text_of(PAGE)


@pytest.mark.parametrize("price", CONTENT["prices"])
def test_each_price_moves_a_line_of_the_page(price: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, content = dataflow.page(), copy.deepcopy(CONTENT)
    content["prices"][price] *= 1_000
    changed = dataflow.dataflow(content)
    monkeypatch.setattr(dataflow, "dataflow", lambda: changed)
    assert dataflow.page() != before


def test_one_worker_costs_as_much_as_datastore_at_the_rate() -> None:
    """A worker of 3.6 dollars an hour, and 0.1 dollars a million records."""
    prices = dataflow.Dataflow(worker_hour=3.6, stage_million=0.1)
    # 2 dollars a million here, 0.2 there: 1,000 dollars of a million seconds are saved by 555.6.
    assert prices.cheaper_from(2.0, stages=2) == pytest.approx(1_000 / 1.8)
