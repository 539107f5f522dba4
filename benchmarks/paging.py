"""Paging: the first page and the 500th, by place, by offset, and merged from four ranges.

One thread reads pages from the Datastore emulator, without HTTP. The results are the ratio of the
two pages, which are read in turn, and the reads, which noise cannot affect.
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
            last_key = order_key(ROWS - PAGE_SIZE)
            ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
                "by_place": (partial(_page, one, None), partial(_page, one, Edge(last_key, True))),
                "merged_of_4": (
                    partial(_page, four, None),
                    partial(_page, four, _merged(last_key)),
                ),
                "by_offset": (partial(_offset, 1), partial(_offset, LAST)),
            }
            for name, (begin, end) in ways.items():
                yield from _compared(meter, name, begin, end)


def _compared(
    meter: Meter, name: str, read_first: Callable[[], object], read_last: Callable[[], object]
) -> Iterator[Result]:
    """Read both pages in turn; yield the ratios of their costs."""
    first_cost, last_cost = _in_turn(meter, read_first, read_last)
    is_ours = name != "by_offset"
    raw = {
        "first": {"reads": first_cost.reads, "round_trips": first_cost.round_trips},
        "last": {"reads": last_cost.reads, "round_trips": last_cost.round_trips},
        "first_ms": round(first_cost.median_s * 1e3, 3),
        "last_ms": round(last_cost.median_s * 1e3, 3),
    }
    for measure, value, target in (
        ("reads", last_cost.reads / first_cost.reads, 1.25),
        ("time", last_cost.median_s / first_cost.median_s, 1.5),
    ):
        yield Result(
            f"paging.{measure}_of_page_{LAST}_{name}",
            value,
            "times",
            "page 1",
            target if is_ours else None,
            at_least=False,
            raw=raw,
        )


def _in_turn(
    meter: Meter, read_first: Callable[[], object], read_last: Callable[[], object]
) -> tuple[Pages, Pages]:
    times: tuple[list[float], list[float]] = ([], [])
    costs = []
    for work in (read_first, read_last):
        start_cost = meter.cost()
        work()
        costs.append(meter.cost() - start_cost)
    for _ in range(ROUNDS):
        for seconds, work in zip(times, (read_first, read_last), strict=True):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    pages = [
        Pages(cost.reads, cost.round_trips, statistics.median(seconds))
        for cost, seconds in zip(costs, times, strict=True)
    ]
    return pages[0], pages[1]


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
