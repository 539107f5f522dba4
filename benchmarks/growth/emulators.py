"""The time of an emulator's query of 100 results, by the number of rows of its kind.

`python -m benchmarks.growth.emulators` queries the emulators, and the in-memory store of the
measurements of growth, for 100 of 1,000 rows of a key range while the kind grows around them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from statistics import median

from google.cloud import ndb

from benchmarks.harness.testbed import PROJECT, open_store
from rollforward.runtime import open_datastore

KINDS = ("memory", "datastore", "firestore")
ROWS = (1_000, 10_000, 50_000)
RANGE, RESULTS, ASKED, PUT_AT_ONCE = 1_000, 100, 5, 400


class ScannedRow(ndb.Model):
    """A row without properties."""


def measure(kind: str, sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield for each size the milliseconds of a query, as the median of five."""
    stored = 0
    with open_store(kind) as address:
        client = open_datastore(PROJECT, emulator=address)
        with client.context(cache_policy=False, global_cache=None, legacy_data=False):
            for size in sizes:
                _put(stored, size)
                stored = size
                yield size, 1000 * median(_query_s() for _ in range(ASKED))


def _put(begin: int, end: int) -> None:
    for start in range(begin, end, PUT_AT_ONCE):
        numbers = range(start, min(start + PUT_AT_ONCE, end))
        ndb.put_multi([ScannedRow(id=f"{number:08}") for number in numbers])


def _query_s() -> float:
    low, high = (ndb.Key(ScannedRow, f"{number:08}") for number in (0, RANGE))
    began = time.perf_counter()
    query = ScannedRow.query(ScannedRow._key >= low, ScannedRow._key < high)
    rows = query.order(ScannedRow._key).fetch(RESULTS)
    if len(rows) != RESULTS:
        raise RuntimeError(f"{len(rows)} of {RESULTS} rows were found")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth.emulators")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    sizes = parser.parse_args().rows
    print(f"| | {' | '.join(f'{size:,} rows' for size in sizes)} |")
    print(f"|---{'|---:' * len(sizes)}|")
    for kind in KINDS:
        times = [f"{ms:.1f}" for _, ms in measure(kind, sizes)]
        print(f"| {kind} | {' | '.join(times)} |", flush=True)


if __name__ == "__main__":
    main()
