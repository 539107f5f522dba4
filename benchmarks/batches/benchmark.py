"""Batches of a thousand empty tasks and one more at the end, in our design and others, in one run.

Ours, the article's code and bare tasks run on one stack: gunicorn as the dev server runs it, its
Cloud Tasks, a Datastore emulator. The queue delivers as many tasks at a time as the app has
threads, and 500 a second, the limit of the service. Celery and Dramatiq run with a Redis on the
same machine, with two worker processes each. They keep members in memory, where a crash loses
them, and deliver a callback again if its worker dies. A round runs each design once, in turn; the
slow ones, which are far from any target, run in the first rounds only. The differences of the
designs are explained in benchmarks/batches/app.py and benchmarks/batches/rivals.py.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from unittest import mock

from benchmarks.batches import leasing
from benchmarks.batches.app import BenchDone
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.rivals import redis, rival
from benchmarks.harness.testbed import Bench, open_testbed
from rollforward.local.app.server import THREADS, WORKERS

COUNT, WARM_UP = 1_000, 200
LEAVES = 10_000
ROUNDS, SLOW_ROUNDS = 7, 2
SLOW = ("article", "dramatiq")
TIMEOUT_S = 240
DESIGNS = ("ours", "bare", "article")
RIVALS = {"celery": "Celery, a chord on Redis", "dramatiq": "Dramatiq, a group on Redis"}
MAX_WRITES = 2.2


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons.

    Raises:
        MissingError: Redis or a rival is not installed.
    """
    app = "benchmarks.batches.app:serve()"
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(redis())
        rivals = {
            name: stack.enter_context(rival("benchmarks/batches/rivals.py", name, url, str(COUNT)))
            for name in RIVALS
        }
        stack.enter_context(_java_without_second_compiler())
        testbed = open_testbed(app, is_cached=True, at_once=WORKERS * THREADS)
        bench = stack.enter_context(testbed)
        seconds, writes = _rounds(bench, rivals)
        yield from _costs(seconds, writes)
        yield from _compared(seconds)
        yield _twice(bench)
        yield _tree(bench)
        yield from leasing.measure(bench)


@contextlib.contextmanager
def _java_without_second_compiler() -> Iterator[None]:
    """Start emulators as the tests do, as a design with few calls would pay for their compiler.

    One of our batches makes a hundred calls. For each batch the Datastore emulator's second
    compiler took 0.45 s of processor time, three times as much as all the answers, and it did not
    stop during the measurement.
    """
    with mock.patch.dict(os.environ, JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1"):
        yield


Figures = Mapping[str, list[float]]


def _rounds(bench: Bench, rivals: Mapping[str, Callable[[], float]]) -> tuple[Figures, Figures]:
    """Run all designs in turn; return their seconds, and their writes per member."""
    seconds, writes = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    designs = {design: partial(_run, bench, design, COUNT) for design in DESIGNS}
    for design in designs:
        _run(bench, design, WARM_UP)
    for number in range(ROUNDS):
        for design, run in {**designs, **rivals}.items():
            if design in SLOW and number >= SLOW_ROUNDS:
                continue
            cost = bench.cost()
            seconds[design].append(run())
            if design in designs:
                writes[design].append((bench.cost() - cost).writes / COUNT)
    return seconds, writes


def _compared(seconds: Figures) -> Iterator[Result]:
    """Compare the duration of a batch between the designs."""
    yield _ratio("ours_versus_article", seconds["article"], seconds["ours"], "the article's", 10.0)
    yield _ratio(
        "ours_versus_bare", seconds["ours"], seconds["bare"], "bare tasks", 1.5, at_least=False
    )
    yield _ratio("celery_versus_ours", seconds["celery"], seconds["ours"], RIVALS["celery"], 1.0)
    yield _ratio("dramatiq_versus_ours", seconds["dramatiq"], seconds["ours"], RIVALS["dramatiq"])


def _ratio(
    name: str,
    one: list[float],
    other: list[float],
    versus: str,
    target: float | None = None,
    *,
    at_least: bool = True,
) -> Result:
    return Result(
        f"batches.{name}",
        statistics.median(one) / statistics.median(other),
        "ratio of times",
        versus,
        target,
        at_least=at_least,
        raw={"one_s": quartiles(one), "other_s": quartiles(other), "members": COUNT},
    )


def _costs(seconds: Figures, writes: Figures) -> Iterator[Result]:
    for design in DESIGNS:
        times = seconds[design]
        yield Result(
            f"batches.{design}_tasks_per_s",
            COUNT / statistics.median(times),
            "tasks a second",
            "from the call to the completion",
            raw={"seconds": quartiles(times)},
        )
        yield Result(
            f"batches.{design}_writes",
            statistics.median(writes[design]),
            "entity writes",
            "a member, completion included",
            MAX_WRITES if design == "ours" else None,
            at_least=False,
            raw={"quartiles": quartiles(writes[design])},
        )


def _twice(bench: Bench) -> Result:
    """Count the article's batches that were reported complete more than once."""
    with bench.clients.context():
        rows = BenchDone.query().fetch()
    twice = [row for row in rows if row.key.id().startswith("article:") and row.count > 1]
    return Result("batches.article_completed_twice", len(twice), "batches", f"of {SLOW_ROUNDS + 1}")


def _tree(bench: Bench) -> Result:
    """Run a tree of three levels, and check that each batch in it has completed once."""
    took_s = _run(bench, "tree", LEAVES)
    with bench.clients.context():
        rows = [row for row in BenchDone.query().fetch() if row.key.id().startswith("tree:")]
    levels = 1 + 10 + 100
    if len(rows) != levels:
        raise RuntimeError(f"{len(rows)} of {levels} batches have completed")
    return Result(
        "batches.tree_leaves_per_s", LEAVES / took_s, "leaves a second", "a tree of three levels"
    )


# One run


def _run(bench: Bench, design: str, count: int) -> float:
    """Run a batch; return its seconds from the call that starts it to its completion."""
    batch = f"{time.monotonic_ns()}"
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=TIMEOUT_S)
    connection.request("GET", f"/bench/{design}/{batch}?count={count}")
    response = connection.getresponse()
    connection.close()
    if response.status != 204:
        raise RuntimeError(f"{design} answered {response.status}")
    if design != "bare":
        _until_done(bench, f"{design}:{batch}")
    else:
        _until_idle(bench)
    took_s = time.perf_counter() - began
    _until_idle(bench)
    return took_s


def _until_done(bench: Bench, key: str) -> None:
    """Wait for a completion; polls only when no task is due, as a poll costs the emulators time."""
    ends_at = time.monotonic() + TIMEOUT_S
    with bench.clients.context():
        while not bench.queue.engine.is_idle() or BenchDone.get_by_id(key) is None:
            if time.monotonic() > ends_at:
                raise RuntimeError(f"{key} has not completed")
            time.sleep(0.005)


def _until_idle(bench: Bench) -> None:
    ends_at = time.monotonic() + TIMEOUT_S
    while bench.queue.engine.wake_at() is not None:
        if time.monotonic() > ends_at:
            raise RuntimeError("the queue did not drain")
        time.sleep(0.005)
    bench.queue.wait_idle(TIMEOUT_S)
