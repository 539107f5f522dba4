"""Paging: the first page and the 500th, by place, by offset, and merged of four ranges.

In one thread against the Datastore emulator, without HTTP. What matters is the ratio of the two
pages, which are read in turn, and the reads, which no noise can move.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.cloud import ndb

from benchmarks.harness.results import Result
from benchmarks.harness.testbed import PROJECT
from rollforward.local.services.standalone import datastore_emulator
from rollforward.paging import Edge, Listing, Merged, PageTokens, QueryRange, Range, order_key
from rollforward.runtime import Meter, open_datastore

ROWS, PAGE_SIZE, BUCKETS = 10_000, 20, 4
LAST = ROWS // PAGE_SIZE
ROUNDS = 8
A_PUT = 500
TOKENS = PageTokens(["a-key-for-benchmarks-0123456789-abcdef"])
LISTING = Listing("benchmark", page_size=PAGE_SIZE)


class PagedEntry(ndb.Model):
    """A row of one list, and of one of the four ranges of another."""

    place = ndb.StringProperty()
    spread = ndb.StringProperty()
    text = ndb.TextProperty()


@dataclass(frozen=True)
class Pages:
    """The cost of reading a page a number of times."""

    reads: int
    round_trips: int
    median_s: float


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    meter = Meter()
    with datastore_emulator() as address:
        client = open_datastore(PROJECT, emulator=address, interceptors=[meter])
        with client.context(cache_policy=False, global_cache=None, legacy_data=False):
            _fill()
            one = QueryRange(PagedEntry.query(), PagedEntry.place, prefix="a|")
            four = Merged(
                *(
                    QueryRange(PagedEntry.query(), PagedEntry.spread, prefix=f"{number}|")
                    for number in range(BUCKETS)
                )
            )
            last = order_key(ROWS - PAGE_SIZE)
            ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
                "by_place": (partial(_page, one, None), partial(_page, one, Edge(last, True))),
                "merged_of_4": (partial(_page, four, None), partial(_page, four, _merged(last))),
                "by_offset": (partial(_offset, 1), partial(_offset, LAST)),
            }
            for name, (first, end) in ways.items():
                yield from _compared(meter, name, first, end)


def _compared(
    meter: Meter, name: str, first: Callable[[], object], last: Callable[[], object]
) -> Iterator[Result]:
    """Read both pages in turn; yield the ratios of what they cost."""
    begin, end = _in_turn(meter, first, last)
    is_ours = name != "by_offset"
    raw = {
        "first": {"reads": begin.reads, "round_trips": begin.round_trips},
        "last": {"reads": end.reads, "round_trips": end.round_trips},
        "first_ms": round(begin.median_s * 1e3, 3),
        "last_ms": round(end.median_s * 1e3, 3),
    }
    for what, value, most in (
        ("reads", end.reads / begin.reads, 1.25),
        ("time", end.median_s / begin.median_s, 1.5),
    ):
        yield Result(
            f"paging.{what}_of_page_{LAST}_{name}",
            value,
            "times",
            "page 1",
            most if is_ours else None,
            at_least=False,
            raw=raw,
        )


def _in_turn(
    meter: Meter, first: Callable[[], object], last: Callable[[], object]
) -> tuple[Pages, Pages]:
    times: tuple[list[float], list[float]] = ([], [])
    costs = []
    for work in (first, last):
        before = meter.cost()
        work()
        costs.append(meter.cost() - before)
    for _ in range(ROUNDS):
        for taken, work in zip(times, (first, last), strict=True):
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
    found = [
        Pages(cost.reads, cost.round_trips, statistics.median(taken))
        for cost, taken in zip(costs, times, strict=True)
    ]
    return found[0], found[1]


def _page(rows: Range[Any], edge: Edge | None) -> object:
    token = LISTING.token_at(TOKENS, rows, edge.position) if edge else None
    page = LISTING.page(TOKENS, rows, page_token=token)
    assert len(page.items) == PAGE_SIZE
    return page


def _offset(number: int) -> object:
    query = PagedEntry.query(PagedEntry.place >= "a|", PagedEntry.place < "a|\U0010ffff")
    rows = query.order(PagedEntry.place).fetch(PAGE_SIZE + 1, offset=(number - 1) * PAGE_SIZE)
    assert len(rows) >= PAGE_SIZE
    return rows


def _merged(position: str) -> Edge:
    return Edge(Merged.position(_bucket(ROWS - PAGE_SIZE), position), True)


def _fill() -> None:
    for start in range(0, ROWS, A_PUT):
        ndb.put_multi(
            PagedEntry(
                id=order_key(number),
                place=f"a|{order_key(number)}",
                spread=f"{_bucket(number)}|{order_key(number)}",
                text="x" * 200,
            )
            for number in range(start, start + A_PUT)
        )


def _bucket(number: int) -> int:
    return number * 7 % BUCKETS
