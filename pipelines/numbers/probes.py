"""Probes: samples of the latency of one operation.

Each probe prepares its data, runs its operation once to warm up, and then times it repeatedly, one
run at a time, on a monotonic clock. Other load on the machine is part of the sample. Operations of
less than some microseconds are not measured: the interpreter's own steps take as long.

Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Numbers you should
know": a disk seek takes about 10 ms, so that at most 100 writes a second go through it; reading
1 MB from memory takes about 250 microseconds. B. Slatkin, "Building high-throughput data pipelines
on Google App Engine", 2010: about one write a second to an entity group, in the long run.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.cloud import ndb

from models.numbers import NumberScratch, scratch_key, scratch_of
from pipelines.numbers import contention
from rollforward.datastore import transact
from rollforward.runtime import Clients

MEGABYTE = 1_000_000  # An entity of 1 MiB is too large by its overhead.
KILOBYTE = b"A row of some length. " * 46
BATCH = 500
QUERIED = 10
CACHE_KEY, CACHE_TTL_S = "numbers:1kb", 60


class NotMeasurableError(Exception):
    """This stack cannot run the probe; the text has the reason."""


Take = Callable[[Clients], list[float]]


@dataclass(frozen=True)
class Probe:
    """An operation that is timed.

    Attributes:
        name: Its id in addresses, rows and files.
        title: The operation of one sample.
        short: A short title, for a chart.
        method: The way to take a sample, in a sentence.
        take: Returns the samples, in seconds. None: a task takes them, see
            pipelines/numbers/echo.py.
        then_ms: The number of the talk, in milliseconds; None: it has none.
        then: The talk's own words, and its year.
    """

    name: str
    title: str
    short: str
    method: str
    take: Take | None
    then_ms: float | None = None
    then: str = ""


def _timed(operation: Callable[[int], object], times: int) -> list[float]:
    """Return the durations of an operation's runs, after one run to warm up."""
    operation(0)
    samples = []
    for number in range(1, times + 1):
        started = time.perf_counter()
        operation(number)
        samples.append(time.perf_counter() - started)
    return samples


def _memory(clients: Clients) -> list[float]:
    source = bytearray(MEGABYTE)
    return _timed(lambda number: bytes(source), 40)


def _compress(clients: Clients) -> list[float]:
    return _timed(lambda number: zlib.compress(KILOBYTE[:1000]), 40)


def _memcached(clients: Clients) -> list[float]:
    if not clients.cache.set(CACHE_KEY, KILOBYTE[:1000], CACHE_TTL_S):
        raise NotMeasurableError("memcached is away")
    return _timed(lambda number: clients.cache.get(CACHE_KEY), 40)


def _get(clients: Clients) -> list[float]:
    key = scratch_key("get", 0)
    NumberScratch(key=key, content=KILOBYTE[:1000]).put()
    return _timed(lambda number: key.get(), 40)


def _get_large(clients: Clients) -> list[float]:
    key = scratch_key("get-large", 0)
    NumberScratch(key=key, content=bytes(MEGABYTE)).put()
    return _timed(lambda number: key.get(), 10)


def _query(clients: Clients) -> list[float]:
    rows = [
        NumberScratch(key=scratch_key("query", i), tens=1 + i // QUERIED, content=KILOBYTE[:1000])
        for i in range(2 * QUERIED)
    ]
    ndb.put_multi(rows)
    return _timed(lambda number: scratch_of(2).fetch(QUERIED), 20)


def _put(clients: Clients) -> list[float]:
    return _timed(
        lambda number: NumberScratch(key=scratch_key("put", number), content=KILOBYTE[:1000]).put(),
        40,
    )


def _put_batch(clients: Clients) -> list[float]:
    rows = [NumberScratch(key=scratch_key("batch", i)) for i in range(BATCH)]
    return _timed(lambda number: ndb.put_multi(rows), 5)


def _transaction(clients: Clients) -> list[float]:
    return _timed(lambda number: transact(lambda: contention.increment("own", number)), 20)


def _contended(clients: Clients) -> list[float]:
    return contention.increments(clients, "contended", 1)


def _sharded(clients: Clients) -> list[float]:
    return contention.increments(clients, "sharded", contention.SHARDS)


PROBES: Sequence[Probe] = (
    Probe(
        "compress",
        "Compress 1 kB with zlib",
        "zlib 1 kB",
        "zlib.compress of 1 kB of English",
        _compress,
    ),
    Probe(
        "memory",
        "Read 1 MB from memory",
        "1 MB of memory",
        "a copy of 1 MB, as reading alone is not seen from Python",
        _memory,
        0.25,
        "250 µs (2008)",
    ),
    Probe(
        "memcached",
        "memcached: get",
        "memcached get",
        "1 kB under a key, over one connection",
        _memcached,
    ),
    Probe(
        "get",
        "Datastore: read by key",
        "read by key",
        "an entity of 1 kB, by ndb, its caches off",
        _get,
    ),
    Probe(
        "get-large",
        "Datastore: read 1 MB by key",
        "read 1 MB",
        "an entity of 1 MB",
        _get_large,
        0.25,
        "4\u202f000 a second, once they are in memory (2008)",
    ),
    Probe(
        "query",
        "Datastore: query",
        f"query of {QUERIED}",
        f"{QUERIED} entities of 1 kB, by one indexed property",
        _query,
    ),
    Probe(
        "put",
        "Datastore: write an entity",
        "write",
        "1 kB, another row each time",
        _put,
        10.0,
        "10 ms, a disk seek: at most 100 a second (2008)",
    ),
    Probe(
        "put-batch",
        f"Datastore: write {BATCH} entities at once",
        f"write {BATCH}",
        "small ones, in one commit; divide by 500 for one of them",
        _put_batch,
    ),
    Probe(
        "transaction",
        "Datastore: transaction",
        "transaction",
        "reads an entity and writes it, another row each time: begin, read, commit",
        _transaction,
    ),
    Probe(
        "contended",
        f"One entity, {contention.WRITERS} writers",
        f"one row, {contention.WRITERS} writers",
        "a transaction each, again until it commits; a sample is one increment",
        _contended,
        1000.0,
        "1 a second for an entity group (2010)",
    ),
    Probe(
        "sharded",
        f"{contention.SHARDS} shards, {contention.WRITERS} writers",
        f"{contention.SHARDS} rows, {contention.WRITERS} writers",
        "the same, each increment on a shard by chance",
        _sharded,
    ),
    Probe(
        "enqueue-to-run",
        "Task: from enqueued to running",
        "task latency",
        "one task at a time, each enqueued by the one before; by the clocks of both processes",
        None,
    ),
)
BY_NAME = {probe.name: probe for probe in PROBES}
# Numbers of the talk, and of similar lists, that cannot be measured here.
NOT_MEASURED = (
    ("A disk seek", "10 ms (2008)", "the system has what a program reads in memory already"),
    ("A reference to a cache of the processor", "", "a step of the interpreter takes longer"),
    ("A mispredicted branch", "", "a step of the interpreter takes longer"),
    ("A packet to another continent", "", "nothing of this stack is there"),
)
