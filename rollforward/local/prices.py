"""Dollars for operations, by the dated price list in `prices.toml`, which has rules and sources."""

import datetime
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "prices.toml"
ENTITY_OPERATIONS = ("reads", "writes", "deletes")
MILLION = 1_000_000


@dataclass(frozen=True)
class Price:
    """A price as a page states it.

    Attributes:
        checked: A copy of the page said so in words; else it is second-hand.
    """

    dollars: float
    per: int
    source: str
    note: str
    checked: bool


@dataclass(frozen=True)
class PriceList:
    """The prices of one region, by the kind of operation."""

    as_of: datetime.date
    region: str
    prices: Mapping[str, Price]

    def dollars(self, cost: Mapping[str, float]) -> float:
        """Return what operations cost.

        Args:
            cost: As `rollforward.runtime.Cost` counts them, whose `writes` include `deletes`.
        """
        billed = {
            "reads": cost["reads"] + cost["query_reads"],
            "writes": cost["writes"] - cost["deletes"],
            "deletes": cost["deletes"],
            "task_operations": cost["task_operations"],
        }
        return sum(billed[name] * price.dollars / price.per for name, price in self.prices.items())

    def dollars_per_million(self, cost: Mapping[str, float], items: int) -> float:
        """Return the dollars of a million items from the dollars of some; 0 for no items."""
        return MILLION * self.dollars(cost) / items if items else 0.0


@functools.cache
def price_list(region: str = "") -> PriceList:
    """Return the prices of a region; "" is the one that the file names."""
    content = tomllib.loads(FILE.read_text())
    region = region or content["region"]
    prices = {name: Price(**content["regions"][region][name]) for name in ENTITY_OPERATIONS}
    prices["task_operations"] = Price(**content["task_operations"])
    return PriceList(content["as_of"], region, prices)
