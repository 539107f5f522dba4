"""Fairness: the delay of a tenant's task behind the flood of another tenant.

Tasks of one tenant wait, of ten milliseconds each. A second after the first of them have begun,
another tenant adds one, and in a lane four further tenants do the same in turn. The figure is the
time from the call that adds a task to its start, with five tenants the median. It is measured in
one queue, in a lane, and in a lane without a flood.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from google.cloud import ndb

from benchmarks.harness.http import ask
from benchmarks.harness.results import Result
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.lanes.app import LaneBegin
from rollforward.lanes.rows.entities import LaneTask
from rollforward.local.app.server import THREADS, WORKERS

FLOOD = 10_000
# With the latencies of the cloud a plain task takes longer.
CLOUD_FLOOD = 2_000
GOAL_S = 1.0
TENANTS = 5
TIMEOUT_S = 240


def measure(bench: Bench, prefix: str = "lanes", flood: int = FLOOD) -> Iterator[Result]:
    """Measure the delay of another tenant's task during a flood."""
    engine = bench.queue.engine
    queue = engine.place.queue_name("bench")
    yield _result(f"{prefix}.shared_tenant_alone", _seconds(bench, "shared", TENANTS), "no flood")
    for design, tenants in (("plain", 1), ("shared", TENANTS)):
        engine.pause_queue(queue)  # Otherwise the app would run many while it adds others.
        name = f"a-{design}-{time.monotonic_ns()}"
        ask(bench.port, f"/bench/add/{design}/slow/{name}?count={flood}", TIMEOUT_S)
        engine.resume_queue(queue)
        time.sleep(1.0)  # The flood is running.
        yield _result(
            f"{prefix}.{design}_other_tenant",
            _seconds(bench, design, tenants),
            f"behind {flood:,} tasks of another tenant",
            None if design == "plain" else GOAL_S,
        )
        engine.reset()
        _forget(bench)


def _result(name: str, seconds: list[float], versus: str, goal: float | None = None) -> Result:
    return Result(
        f"{name}_begins_after_s",
        statistics.median(seconds),
        *("seconds", versus, goal),
        at_least=False,
        raw={"seconds": [round(figure, 2) for figure in seconds]},
    )


def _seconds(bench: Bench, design: str, tenants: int) -> list[float]:
    """Return the delays of a task of each of some tenants, one tenant after the other."""
    seconds = []
    for number in range(tenants):
        name = f"b{number}-{design}-{time.monotonic_ns()}"
        added_at = time.time()
        ask(bench.port, f"/bench/begin/{design}/{name}", TIMEOUT_S)
        seconds.append(_begun_at(bench, name) - added_at)
    return seconds


def measure_like(profile: Path) -> Iterator[Result]:
    """Measure the delay with the latencies of a profile."""
    testbed = open_testbed(
        "benchmarks.lanes.app:serve()",
        emulator="firestore",
        is_cached=True,
        at_once=WORKERS * THREADS,
        profile=profile,
    )
    with testbed as bench:
        yield from measure(bench, "cloud.lanes", CLOUD_FLOOD)


def _begun_at(bench: Bench, name: str) -> float:
    ends_at = time.monotonic() + TIMEOUT_S
    with bench.clients.context():
        while (row := LaneBegin.get_by_id(name)) is None:
            if time.monotonic() > ends_at:
                raise RuntimeError("the other tenant's task did not begin")
            time.sleep(0.02)
    return float(row.at)


def _forget(bench: Bench) -> None:
    """Delete the remaining tasks of a flood."""
    time.sleep(2.0)  # Lets running deliveries end.
    with bench.clients.context():
        while keys := LaneTask.query().fetch(500, keys_only=True):
            ndb.delete_multi(keys)
