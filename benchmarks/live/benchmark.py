"""Live updates: the latency of ordinary requests with 200 open pages, and without.

The app has two gunicorn workers, as the dev server runs them. The pages (benchmarks/live/pages.py)
run in a process of their own on the same machine, and each ordinary request changes the content of
all pages. The p99 is over the requests of all rounds together, as one round has too few.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.harness.load import Load, closed, new_numbers, paced
from benchmarks.harness.results import Result, percentile, quartiles
from benchmarks.harness.testbed import Bench, open_testbed

PAGES = 200
PER_S, CLIENTS = 20, 4
SECONDS, WARM_UP_S = 30.0, 15.0
ROUNDS = 2


def measure() -> Iterator[Result]:
    """Measure ordinary requests with and without open pages, round by round."""
    alone: list[Load] = []
    with_pages: list[Load] = []
    reports: list[dict[str, int]] = []
    with open_testbed("benchmarks.live.app:serve()", is_cached=True) as bench:
        address = _address(bench)
        closed(bench.port, "/bench/ordinary/0", CLIENTS, 1.0)
        for _ in range(ROUNDS):
            alone.append(_ordinary(bench))
            pages = _open_pages(bench, address)
            time.sleep(WARM_UP_S)  # Until their polling is steady.
            with_pages.append(_ordinary(bench))
            reports.append(json.loads(pages.communicate(timeout=60)[0]))
    yield Result(
        f"live.p99_with_{PAGES}_pages",
        _ms(with_pages, 0.99) / _ms(alone, 0.99),
        "ratio",
        "the same without open pages",
        2.0,
        at_least=False,
        raw={
            "with_ms": [_ms(with_pages, share) for share in (0.5, 0.9, 0.99)],
            "without_ms": [_ms(alone, share) for share in (0.5, 0.9, 0.99)],
            "p99_of_rounds_with_ms": quartiles([load.ms(0.99) for load in with_pages]),
            "p99_of_rounds_without_ms": quartiles([load.ms(0.99) for load in alone]),
            "requests": sum(len(load.latencies_s) for load in with_pages),
            "pages": reports,
        },
    )


def _ms(loads: Sequence[Load], share: float) -> float:
    """Return a percentile over the requests of several loads together, in milliseconds."""
    every = [latency_s for load in loads for latency_s in load.latencies_s]
    return round(percentile(every, share) * 1000, 2)


def _ordinary(bench: Bench) -> Load:
    numbers = new_numbers(round(PER_S * SECONDS))
    return paced(bench.port, "/bench/ordinary/{}", CLIENTS, PER_S, numbers)


def _open_pages(bench: Bench, address: str) -> subprocess.Popen[bytes]:
    seconds = WARM_UP_S + SECONDS + 2
    command = [sys.executable, "-m", "benchmarks.live.pages", str(bench.port), address]
    return subprocess.Popen([*command, str(PAGES), str(seconds)], stdout=subprocess.PIPE)


def _address(bench: Bench) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=30)
    connection.request("GET", "/bench/updates")
    match = re.search(r'data-updates="([^"]+)"', connection.getresponse().read().decode())
    connection.close()
    if match is None:
        raise RuntimeError("the page has no address for live updates")
    return match[1]
