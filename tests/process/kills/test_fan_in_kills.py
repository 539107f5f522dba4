"""What the in-memory fan-in loses when its process is killed, and when it is told to end."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.fork_join.app import BenchSum
from benchmarks.harness.testbed import Bench, open_testbed
from rollforward.fork_join.accumulator import FLUSH_INTERVAL_S
from tests.infra.runs.sampling import kills
from tests.infra.stack import until

CLIENTS = 4
SEND_S = 3.0
LEAST_TAKEN = 100
PACE_S = 0.01
# A flush under way is lost with its window; on a busy machine it may take this long.
MAX_FLUSH_S = 2.0


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with open_testbed("benchmarks.fork_join.app:serve()", is_cached=True) as running:
        yield running


@kills
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_process_that_is_told_to_end_loses_nothing(bench: Bench) -> None:
    """SIGTERM, as a deployment sends it: everything taken is stored first."""
    before = folded(bench)
    taken = send_and(bench, signal.SIGTERM)

    until(lambda: folded(bench) - before == len(taken), 120)


@kills
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_process_that_is_killed_loses_its_last_window(
    bench: Bench, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL: no more than what came in the window and the flush before it, and it is counted."""
    before = folded(bench)
    taken = send_and(bench, signal.SIGKILL)
    killed_at = max(taken)
    time.sleep(2 * FLUSH_INTERVAL_S)
    bench.queue.wait_idle(60)

    lost = len(taken) - (folded(bench) - before)
    at_stake = [at for at in taken if at > killed_at - FLUSH_INTERVAL_S - MAX_FLUSH_S]
    record_property("taken", len(taken))
    record_property("lost", lost)
    assert 0 <= lost <= len(at_stake) < len(taken)


def send_and(bench: Bench, ending: signal.Signals) -> list[float]:
    """Add by four clients, end both workers at once; return when each addition was taken."""
    until(lambda: answers(bench), 120)
    workers = bench.workers()
    taken: list[float] = []
    has_ended = threading.Event()

    def client() -> None:
        line = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=30)
        try:
            while not has_ended.is_set():
                line.request("GET", "/bench/in-memory")
                answer = line.getresponse()
                answer.read()
                assert answer.status == 204
                taken.append(time.monotonic())
                time.sleep(PACE_S)
        except (OSError, http.client.HTTPException):
            pass  # Its worker is gone: this one was not acknowledged.
        finally:
            line.close()

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(SEND_S)
    until(lambda: len(taken) > LEAST_TAKEN, 120)
    if ending == signal.SIGTERM:
        # A worker on its way out may take a request and close before it answers: stop first.
        has_ended.set()
        for thread in threads:
            thread.join()
    for pid in workers:
        os.kill(pid, ending)
    has_ended.set()
    for thread in threads:
        thread.join()
    until(lambda: not set(workers) & set(bench.workers()), 120)
    return taken


def answers(bench: Bench) -> bool:
    """Return whether a worker serves: they start anew after each test."""
    line = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=30)
    try:
        line.request("GET", "/health/live")
        return line.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        line.close()


def folded(bench: Bench) -> int:
    with bench.clients.context():
        row = BenchSum.get_by_id("in-memory")
    return row.items if row else 0
