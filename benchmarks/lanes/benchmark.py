"""Lanes: writes and tasks a second against tasks without lanes, and against rivals, in one run.

Our design runs on gunicorn with two workers, as the dev server runs it, with its Cloud Tasks and
the Datastore emulator that locks. A run adds a thousand empty tasks of ten keys, and waits until
all of them have run. Celery has a queue per key and a worker per queue, which is how its users keep
an order; or one queue and a Redis lock per key, for which a thread waits. Dramatiq has a limiter in
Redis, which runs one task of a key at a time, and retries the others. All rivals keep their tasks
in memory, where a crash loses them.

Fairness, also with the latencies of the cloud, is in `fairness.py`; a key with a long backlog, and
keys without tasks, are in `backlog.py`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.harness.http import ask
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.rivals import redis, rival
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.lanes import backlog, fairness
from rollforward.lanes.rows.entities import LaneTask
from rollforward.local.app.server import THREADS, WORKERS

KEYS, PER_KEY, WARM_UP = 10, 100, 20
COUNT = KEYS * PER_KEY
BACKLOG = 2_000
ROUNDS, SLOW_ROUNDS = 5, 2
TIMEOUT_S = 240
LOOK_EVERY_S = 0.005
DESIGNS = ("plain", "ordered", "shared", "four")
RIVALS = {
    "celery": "Celery, a queue and a worker a key",
    "locks": "Celery, a lock in Redis a key",
    "dramatiq": "Dramatiq, a limiter a key",
}
SLOW = ("locks", "dramatiq")
MAX_WRITES = 2.2


def measure(largest_backlog: int = backlog.LARGEST) -> Iterator[Result]:
    """Measure everything and yield the comparisons.

    Args:
        largest_backlog: The largest backlog of a key.

    Raises:
        MissingError: Redis or a rival is not installed.
    """
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(redis())
        arguments = [url, str(KEYS), str(PER_KEY)]
        rivals = {
            name: stack.enter_context(rival("benchmarks/lanes/rivals.py", name, *arguments))
            for name in RIVALS
        }
        testbed = open_testbed(
            "benchmarks.lanes.app:serve()",
            emulator="firestore",
            is_cached=True,
            at_once=WORKERS * THREADS,
        )
        bench = stack.enter_context(testbed)
        for design in DESIGNS:
            _run(bench, design, WARM_UP)
        seconds = defaultdict[str, list[float]](list)
        for number in range(ROUNDS):
            for design in DESIGNS:
                seconds[design].append(_run(bench, design, PER_KEY))
            for name, ask in rivals.items():
                if name not in SLOW or number < SLOW_ROUNDS:
                    seconds[name].append(ask())
        yield from _rates(seconds)
        yield from _costs(bench)
        yield from fairness.measure(bench)
    yield from backlog.measure(largest_backlog)


def _rates(seconds: dict[str, list[float]]) -> Iterator[Result]:
    for name, times in seconds.items():
        yield Result(
            f"lanes.{name}_tasks_per_s",
            COUNT / statistics.median(times),
            "tasks a second",
            f"{KEYS} keys, {PER_KEY} tasks each",
            raw={"seconds": quartiles(times)},
        )
    plain = statistics.median(seconds["plain"])
    for design in DESIGNS[1:]:
        yield Result(
            f"lanes.{design}_versus_plain",
            plain / statistics.median(seconds[design]),
            "ratio of rates",
            "tasks without lanes",
            0.7,
        )
    for name, words in RIVALS.items():
        yield Result(
            f"lanes.ordered_versus_{name}",
            statistics.median(seconds[name]) / statistics.median(seconds["ordered"]),
            "ratio of rates",
            words,
        )


def _costs(bench: Bench) -> Iterator[Result]:
    """Count the operations of a task of one key with a backlog, and of a lone task."""
    for name, count, goal in (("backlog", BACKLOG, MAX_WRITES), ("lone", 1, None)):
        start_cost = bench.cost()
        ask(bench.port, f"/bench/add/ordered/noop/{time.monotonic_ns()}?count={count}", TIMEOUT_S)
        _until_done(bench)
        cost = bench.cost() - start_cost
        for counted in ("writes", "reads", "query_reads", "tasks", "round_trips"):
            yield Result(
                f"lanes.{counted}_per_task_{name}",
                getattr(cost, counted) / count,
                "operations a task",
                f"{count:,} tasks of one key, with an order",
                goal if counted == "writes" else None,
                at_least=False,
            )


# One run


def _run(bench: Bench, design: str, per_key: int) -> float:
    """Run tasks of ten keys; return the seconds from the first call that adds some."""
    prefix = f"{time.monotonic_ns()}"
    began = time.perf_counter()
    for number in range(KEYS):
        ask(bench.port, f"/bench/add/{design}/noop/{prefix}-{number}?count={per_key}", TIMEOUT_S)
    _until_done(bench)
    return time.perf_counter() - began


def _until_done(bench: Bench) -> None:
    """Wait until no task is left, in the queue or in a lane.

    It polls the lanes only when the queue is idle, as a poll costs the emulator time.
    """
    ends_at = time.monotonic() + TIMEOUT_S
    with bench.clients.context():
        while True:
            while bench.queue.engine.wake_at() is not None or not bench.queue.engine.is_idle():
                if time.monotonic() > ends_at:
                    raise RuntimeError("the queue did not drain")
                time.sleep(LOOK_EVERY_S)
            if LaneTask.query().get(keys_only=True) is None:
                return
            if time.monotonic() > ends_at:
                raise RuntimeError("a lane did not drain")
            time.sleep(LOOK_EVERY_S)
