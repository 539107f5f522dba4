"""Growth: the cost of an item among a thousand items, compared with its cost among many more.

The app's meter counts operations and the bytes between app and Datastore; time is from the start
until no task is left. Processor time is split by role: the app's workers, the store, and this
process, which runs the queue and the mail server. The store keeps its rows in memory
(benchmarks/memory). An emulator reads all rows of a kind for each query, so its time would grow in
any case, as `python -m benchmarks.growth.emulators` shows.

A result is the largest growth of a figure from one size to a larger one: 1 is flat, and below 1 the
figure fell. The sizes of a load share a stack, in ascending order after an unmeasured warm-up.
"""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.cloud import ndb

from benchmarks.batches.app import BenchDone
from benchmarks.continuations.app import NOTHING, PAGES, Addressee, Walk
from benchmarks.growth import parties
from benchmarks.growth.app import (
    BUILDS,
    BY_INTERVALS,
    BY_KEYS,
    GROUP,
    INTERVALS,
    INTERVALS_KEYS,
    RECORDS_A_KEY,
    SIZES,
    VIEWS,
    WARM,
    WARM_KEYS,
    WARM_SOURCES,
    source,
)
from benchmarks.growth.spent import STORE, TIMEOUT_S, Spent, check, growth_of, spend
from benchmarks.harness.results import Result
from benchmarks.harness.testbed import Bench, open_testbed
from rollforward import continuations
from rollforward.continuations.progress import progress
from rollforward.streams import Pipeline

PUT_AT_ONCE = 100
WARM_ITEMS = 500
BYTES = {"BENCH_BYTES": "1"}


@dataclass(frozen=True)
class Load:
    """A measurement at some sizes.

    Attributes:
        results: The prefixes of its results' names.
        largest: The largest size by default.
    """

    results: Sequence[str]
    measure: Callable[[Sequence[int]], Iterator[Result]]
    largest: int
    sizes: Sequence[int] = SIZES

    def chosen(self, largest: int | None) -> Sequence[int]:
        return [size for size in self.sizes if size <= (largest or self.largest)]


def measure(largest: int | None = None, names: Sequence[str] = ()) -> Iterator[Result]:
    """Measure all loads, or only the loads of requested results.

    Args:
        largest: The largest number of items of each load; None: as many as take some minutes.
        names: Prefixes of results' names; none, or "growth" alone: all loads.
    """
    prefixes = [name.removeprefix("growth").removeprefix(".") for name in names]
    for load in LOADS:
        is_requested = any(result.startswith(name) for result in load.results for name in prefixes)
        if not prefixes or is_requested:
            yield from load.measure(load.chosen(largest))


# Continuations


def _continuations(sizes: Sequence[int]) -> Iterator[Result]:
    """Walk over items with an empty effect."""
    with open_testbed(
        "benchmarks.continuations.app:serve()", emulator=STORE, environment=BYTES
    ) as bench:
        _walk(bench, WARM_ITEMS)
        figures = {size: _walk(bench, size).an_item() for size in sizes}
    yield from growth_of("continuations", "an item", figures, "items")


def _walk(bench: Bench, size: int) -> Spent:
    walk = Walk(secrets.token_hex(8), f"{size}", NOTHING)
    _put(bench, size, partial(_addressee, size))

    def start() -> None:
        with bench.clients.context():
            continuations.start(bench.clients, PAGES, walk, run_id=walk.run_id, expected=size)

    spent = spend(bench, "items", size, start)
    with bench.clients.context():
        check("continuations", progress(walk.run_id, dots=False).totals.done, size)
    return spent


def _addressee(size: int, number: int) -> Addressee:
    spread = f"{(number * 2654435761) % 2**32:08x}"
    return Addressee(id=f"{size}:{spread}", address=f"guest{number}@example.com")


def _put(bench: Bench, count: int, entity: Callable[[int], Any]) -> None:
    with bench.clients.context():
        for start in range(0, count, PUT_AT_ONCE):
            ndb.put_multi([entity(n) for n in range(start, min(start + PUT_AT_ONCE, count))])


# Views


def _rebuilds(sizes: Sequence[int]) -> Iterator[Result]:
    """Build a view of sources that no view has seen yet."""
    with open_testbed(
        "benchmarks.growth.app:serve_views()",
        emulator=STORE,
        is_cached=True,
        environment=BYTES,
    ) as bench:
        _rebuild(bench, WARM_SOURCES)
        figures = {size: _rebuild(bench, size).an_item() for size in sizes}
    yield from growth_of("rebuilds", "a source", figures, "sources")


def _rebuild(bench: Bench, size: int) -> Spent:
    _, view = VIEWS[size]
    _put(bench, size, partial(source, size))

    def start() -> None:
        with bench.clients.context():
            BUILDS.rebuild(bench.clients, view)

    spent = spend(bench, "sources", size, start)
    with bench.clients.context():
        rows = GROUP.read(bench.clients, view, limit=size).rows
        check("rebuild", sum(row.count for row in rows), size)
    return spent


# Batches


def _batches(sizes: Sequence[int]) -> Iterator[Result]:
    """Run batches whose members do nothing."""
    with open_testbed(
        "benchmarks.batches.app:serve()",
        emulator=STORE,
        is_cached=True,
        at_once=64,
        environment=BYTES,
    ) as bench:
        _batch(bench, WARM_ITEMS)
        figures = {size: _batch(bench, size).an_item() for size in sizes}
    yield from growth_of("batches", "a member", figures, "members")


def _batch(bench: Bench, size: int) -> Spent:
    batch = secrets.token_hex(8)

    def start() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=TIMEOUT_S)
        connection.request("GET", f"/bench/ours/{batch}?count={size}")
        status = connection.getresponse().status
        connection.close()
        check("answers", status, 204)

    spent = spend(bench, "members", size, start)
    with bench.clients.context():
        check("completions", BenchDone.get_by_id(f"ours:{batch}").count, 1)
    return spent


# Streams


def _streams(sizes: Sequence[int]) -> Iterator[Result]:
    """Count records, for several numbers of keys and of intervals."""
    with open_testbed(
        "benchmarks.growth.app:serve_streams()", emulator=STORE, environment=BYTES
    ) as bench:
        for pipeline in WARM:
            _count(bench, pipeline, WARM_KEYS)
        by_keys = {size: _count(bench, BY_KEYS[size], size).an_item() for size in sizes}
        by_intervals = {
            count: _count(bench, BY_INTERVALS[count], INTERVALS_KEYS).an_item()
            for count in INTERVALS
        }
    yield from growth_of("streams_by_keys", "a record", by_keys, "keys")
    yield from growth_of("streams_by_intervals", "a record", by_intervals, "intervals")


def _count(bench: Bench, pipeline: Pipeline, keys: int) -> Spent:
    records = RECORDS_A_KEY * keys

    def start() -> None:
        with bench.clients.context():
            pipeline.pull(bench.clients, "in")

    spent = spend(bench, f"records of {pipeline.name}", records, start)
    with bench.clients.context():
        check(pipeline.name, pipeline.status(bench.clients).computations["seen"].records, records)
    return spent


LOADS = (
    Load(["continuations_"], _continuations, 100_000),
    Load(["rebuilds_"], _rebuilds, 10_000),
    Load(["batches_"], _batches, 10_000),
    Load(["invitations_", "mails_", "polls_"], parties.measure, 10_000, parties.SIZES),
    Load(["streams_by_keys_", "streams_by_intervals_"], _streams, 100_000),
)
