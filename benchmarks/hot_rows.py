"""The write rates of the rows of fork-join queues, counters and batches, which limit them.

`python -m benchmarks.hot_rows` runs the patterns with the latencies of the cloud's profile, which
also limits a row to about one write a second. The app has 1 to 16 worker processes of 8 threads
each, with eight clients per worker. A proxy in front of the emulator counts the writes by row.
Calls wait in real time, and all processes share this machine's processors. So the output has the
load of the processors, too: near 100 percent, the machine limits the rate.
"""

from __future__ import annotations

import argparse
import http.client
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.growth.spent import TIMEOUT_S, until_idle
from benchmarks.harness.load import new_numbers, paced
from benchmarks.harness.testbed import Bench, open_testbed
from rollforward.cloud_profile import BUNDLED

WORKERS = (1, 2, 4, 8, 16)
THREADS = CLIENTS_EACH = 8
SECONDS, MEMBERS = 10.0, 500
KINDS_SHOWN = 3
MOST_ASKED, MOST_PER_S = 100_000, 10_000.0


@dataclass(frozen=True)
class StoredRow:
    """The writes of a number of items."""

    items: int
    seconds: float
    rows: Counter[tuple[str, ...]]
    busy: float  # The share of all processors.

    def kinds(self) -> Iterator[str]:
        """Yield the kinds with the hottest rows: writes per item, and the hottest row's rate."""
        kinds = defaultdict[str, list[int]](list)
        for (kind, *_), count in self.rows.items():
            kinds[kind].append(count)
        for kind, counts in sorted(kinds.items(), key=lambda item: -max(item[1]))[:KINDS_SHOWN]:
            yield (
                f"{kind}: {sum(counts) / self.items:.3f} of {len(counts)}, "
                f"one of them {max(counts) / self.seconds:.2f} a second"
            )

    def row(self, name: str, workers: int) -> str:
        return (
            f"| {name} | {workers} | {self.items / self.seconds:,.0f} | {self.busy:.0%} "
            f"| {'; '.join(self.kinds())} |"
        )


COLUMNS = "pattern", "workers", "items a second", "processors", "writes an item, of so many rows"
HEADER = f"| {' | '.join(COLUMNS)} |\n|---|---:|---:|---:|---|"


def _found(bench: Bench, act: Callable[[], int]) -> StoredRow:
    assert bench.wire is not None
    start_rows = bench.wire.rows()
    psutil.cpu_percent()
    began = time.perf_counter()
    items = act()
    ended = until_idle(bench)
    busy = psutil.cpu_percent() / 100
    return StoredRow(items, ended - began, bench.wire.rows() - start_rows, busy)


def _sums(bench: Bench, workers: int) -> int:
    return _asked(bench, "/bench/fork-join", workers)


def _counts(bench: Bench, workers: int) -> int:
    return _asked(bench, "/bench/adaptive", workers)


def _asked(bench: Bench, path: str, workers: int) -> int:
    """Send requests as fast as they are answered, with retries; return the number of answers."""
    clients, numbers = CLIENTS_EACH * workers, new_numbers(MOST_ASKED)
    load = paced(bench.port, path, clients, MOST_PER_S, numbers, give_up_s=SECONDS)
    return len(load.latencies_s)


def _batch(bench: Bench, workers: int) -> int:
    count = MEMBERS * workers
    connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=TIMEOUT_S)
    connection.request("GET", f"/bench/ours/{time.monotonic_ns()}?count={count}")
    if connection.getresponse().status != 204:
        raise RuntimeError("the batch was not accepted")
    connection.close()
    return count


PATTERNS: dict[str, tuple[str, Callable[[Bench, int], int]]] = {
    "fork-join, one key": ("fork_join", _sums),
    "counters, one count": ("counters", _counts),
    "batches, one batch": ("batches", _batch),
}


def measure(workers: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """Yield a row of the table for each pattern and number of workers."""
    for name, (subject, act) in PATTERNS.items():
        if names and not name.startswith(tuple(names)):
            continue
        for count in workers:
            with open_testbed(
                f"benchmarks.{subject}.app:serve()",
                is_cached=True,
                emulator="firestore",
                workers=count,
                threads=THREADS,
                at_once=THREADS * count,
                profile=BUNDLED,
                is_counted=True,
            ) as bench:
                act(bench, 1)
                until_idle(bench)
                yield _found(bench, lambda: act(bench, count)).row(name, count)  # noqa: B023


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot_rows")
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("names", nargs="*", help="prefixes of patterns' names")
    arguments = parser.parse_args()
    print(HEADER, flush=True)
    for row in measure(arguments.workers, arguments.names):
        print(row, flush=True)


if __name__ == "__main__":
    main()
