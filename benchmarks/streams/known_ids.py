"""Reads for deduplication: ids in a worker's memory, and a Bloom filter in front of them.

A worker in this process has accepted many pushed records. Then it accepts more, with the ids in its
memory or right after a takeover, which rereads the rows of ids. The Bloom filter follows the paper,
where it precedes ids that each have a row of their own. One read loads the filter, and each false
positive reads one row. Only its false positives are measured, on the same ids; the filter is not
stored.

Source: T. Akidau and others, "MillWheel", 2013, 6.1.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from benchmarks.harness.results import Result
from benchmarks.streams.load import WrongError
from benchmarks.streams.lone_clients import lone_clients
from benchmarks.streams.workload import FIRST_MS
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, Record
from rollforward.streams.driver import Engine
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.storage.remote_calls import Read, StoredRow
from rollforward.streams.storage.schema import IDS
from rollforward.streams.workers.worker import Worker

# A worker at 500 records a second yields its interval after 20 s.
KNOWN, TAKEN, BATCH = 50_000, 10_000, 500
KEYS = 100
# 10 bits an id and 7 hashes: 0.8 % of false positives.
BITS_AN_ID, HASHES = 10, 7


class Count(Computation):
    """Counts the records of a key."""

    inputs = {"in": lambda value: str(value["key"])}  # noqa: RUF012 - As its users write it.

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


class CountedEngine(Engine):
    """An engine that counts its reads of rows of ids."""

    ids_read = 0

    def _read(self, call: Read) -> list[StoredRow | None]:
        self.ids_read += sum(key.kind == IDS for key in call.keys)
        return super()._read(call)


class BloomFilter:
    """A filter of a fixed number of ids."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._size = BITS_AN_ID * len(ids)
        self._bits = bytearray(self._size // 8 + 1)
        for id_ in ids:
            for bit in self._bits_of(id_):
                self._bits[bit // 8] |= 1 << bit % 8

    def may_have(self, id_: str) -> bool:
        return all(self._bits[bit // 8] >> bit % 8 & 1 for bit in self._bits_of(id_))

    def _bits_of(self, id_: str) -> Iterator[int]:
        digest = hashlib.blake2b(id_.encode(), digest_size=16).digest()
        start, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        return ((start + n * step) % self._size for n in range(HASHES))


def measure() -> Iterator[Result]:
    """Measure both and yield the reads per record."""
    with lone_clients() as clients:
        pipeline = Pipeline("known-ids", Count, intervals=1)
        _take(clients, pipeline, range(KNOWN))
        in_memory = _take(clients, pipeline, range(KNOWN, KNOWN + TAKEN))
        clients.process_state.clear()
        taken_over = _take(clients, pipeline, range(KNOWN + TAKEN, KNOWN + 2 * TAKEN))
        counted = pipeline.status(clients).computations["count"].records
        if counted != KNOWN + 2 * TAKEN:
            raise WrongError(f"{counted} of {KNOWN + 2 * TAKEN} records were counted")
    bloom = BloomFilter([_id(n) for n in range(KNOWN + TAKEN)])
    positives = sum(bloom.may_have(_id(KNOWN + TAKEN + n)) for n in range(TAKEN))
    for name, reads, versus in (
        ("in_memory", in_memory, f"{TAKEN} records after {KNOWN}, by the same worker"),
        ("after_takeover", taken_over, f"{TAKEN} records after {KNOWN + TAKEN}, by another worker"),
        ("bloom_filter", 1 + positives, f"the same, {BITS_AN_ID} bits an id; a row for each id"),
    ):
        yield Result(f"streams_growth.ids_reads_{name}", reads / TAKEN, "rows a record", versus)


def _take(clients: Clients, pipeline: Pipeline, numbers: range) -> int:
    """Push records and run a worker on them; return the number of rows of ids that it read."""
    config = StreamConfig(max_records=BATCH, linger=(), gather_s=0)
    engine = CountedEngine(clients, pipeline, config)
    for start in range(numbers.start, numbers.stop, BATCH):
        records = [
            PushedRecord(_id(n), {"key": f"k{n % KEYS}"}, FIRST_MS + n)
            for n in range(start, start + BATCH)
        ]
        pipeline.push(clients, "in", records)
        engine.run(Worker(engine.environment, "count", 0).run())
    return engine.ids_read


def _id(number: int) -> str:
    return f"record-{number}"
