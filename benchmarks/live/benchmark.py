"""Live updates: how long ordinary requests take while 200 pages are open, beside the same without.

Two gunicorn workers as the dev server runs them. The pages (benchmarks/live/pages.py) are in a
process of their own, which shares the machine; each ordinary request changes what they all show.
The p99 is that of all rounds' requests together: a round has too few for one.
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
    beside: list[Load] = []
    told: list[dict[str, int]] = []
    with open_testbed("benchmarks.live.app:serve()", is_cached=True) as bench:
        address = _address(bench)
        closed(bench.port, "/bench/ordinary/0", CLIENTS, 1.0)
        for _ in range(ROUNDS):
            alone.append(_ordinary(bench))
            pages = _open_pages(bench, address)
            time.sleep(WARM_UP_S)  # Until they have found their pace.
            beside.append(_ordinary(bench))
            told.append(json.loads(pages.communicate(timeout=60)[0]))
    yield Result(
        f"live.p99_with_{PAGES}_pages",
        _ms(beside, 0.99) / _ms(alone, 0.99),
        "ratio",
        "the same without open pages",
        2.0,
        at_least=False,
        raw={
            "with_ms": [_ms(beside, share) for share in (0.5, 0.9, 0.99)],
            "without_ms": [_ms(alone, share) for share in (0.5, 0.9, 0.99)],
            "p99_of_rounds_with_ms": quartiles([load.ms(0.99) for load in beside]),
            "p99_of_rounds_without_ms": quartiles([load.ms(0.99) for load in alone]),
            "requests": sum(len(load.latencies_s) for load in beside),
            "pages": told,
        },
    )


def _ms(loads: Sequence[Load], share: float) -> float:
    """Return a percentile of the requests of some loads together, in milliseconds."""
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
    found = re.search(r'data-updates="([^"]+)"', connection.getresponse().read().decode())
    connection.close()
    if found is None:
        raise RuntimeError("the app tells nobody anything")
    return found[1]
