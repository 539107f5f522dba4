"""The workloads of `make bench NAMES=dollars`: items through each pattern and each plain design.

A plain design runs with one client at a time, without contention, so this is its lowest cost. The
plain design of pull queues is here, the others are in the apps of the other benchmarks.
"""

from __future__ import annotations

import secrets
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from google.cloud import ndb

from benchmarks.batches.leasing import AT_ONCE, WORK
from benchmarks.continuations.app import ITEMS, NOTHING, PAGES, Walk
from benchmarks.continuations.benchmark import ITEMS_A_RUN, addressee, check_receipts
from benchmarks.counters.app import total
from benchmarks.fan_in import benchmark as fan_in
from benchmarks.fork_join import benchmark as fork_join
from benchmarks.harness.load import counted, new_numbers, paced
from benchmarks.harness.testbed import Bench
from benchmarks.query_cache.app import posts
from benchmarks.steps.app import STEPS, BenchRow
from benchmarks.streams.app import BATCH, PUSHED, Arrived, BenchCount, count_each
from benchmarks.streams.load import check_windows, push
from benchmarks.streams.workload import events
from rollforward import continuations
from rollforward.continuations.progress import progress
from rollforward.datastore.transactions import transact
from rollforward.runtime import Cost
from rollforward.streams import PushedRecord

TIMEOUT_S = 120
CLIENTS, MANY = 8, 32
ITEMS_EACH, ITEMS_OF_MANY = 200, 1_000
# For plain designs, where each item costs the same.
PLAIN_ITEMS = 100
# A rate from the talk's table, at which a fork-join queue has little to gather.
PACED_PER_S = 76
PAGES_PER_S, PAGES_SHOWN = 100, 600
RECORDS = 20_000
THINGS = 40
# Long enough to store the items gathered in memory, and to create the tasks that follow.
GATHERED_S = 0.6


@dataclass(frozen=True)
class Spent:
    """The cost of some items."""

    cost: Cost
    items: int


@dataclass(frozen=True)
class Compared:
    """A pattern and a plain design for the same work."""

    name: str
    subject: str
    ours: Spent
    plain_way: str
    plain: Spent


@dataclass(frozen=True)
class Stack:
    """An app of the benchmarks, and the measurements on it."""

    subject: str
    measure: Callable[[Bench], Iterator[Compared]]
    options: Mapping[str, Any] = field(default_factory=dict)


class WrongError(Exception):
    """Items were lost or doubled, so their price is meaningless."""


def settle(bench: Bench) -> None:
    """Wait until no task and no gathered item is left, without a call to Datastore."""
    for _ in range(2):
        time.sleep(GATHERED_S)
        bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)


def spend(bench: Bench, items: int, start: Callable[[], object]) -> Spent:
    """Start some items, wait until they are done, and return their cost."""
    start_cost = bench.whole_cost()
    start()
    settle(bench)
    return Spent(bench.whole_cost() - start_cost, items)


def check(subject: str, count: int, expected: int) -> None:
    """Check that each item was done once.

    Raises:
        WrongError: the counts differ.
    """
    if count != expected:
        raise WrongError(f"{subject}: {count} of {expected} items were done")


# Patterns


def fan_out(bench: Bench) -> Iterator[Compared]:
    """Process a thousand items in pages, and by a task each."""
    with bench.clients.context():
        for start in range(0, ITEMS_A_RUN, 500):
            ndb.put_multi([addressee(number) for number in range(start, start + 500)])
    run, walk = (Walk(secrets.token_hex(8), "g", NOTHING) for _ in range(2))

    def start_pages() -> None:
        with bench.clients.context():
            continuations.start(bench.clients, PAGES, run, run_id=run.run_id)

    def start_items() -> None:
        with bench.clients.context():
            ITEMS.enqueue(bench.clients, walk)

    ours = spend(bench, ITEMS_A_RUN, start_pages)
    plain = spend(bench, ITEMS_A_RUN, start_items)
    check_receipts(bench, walk)
    with bench.clients.context():
        check("continuations", progress(run.run_id).totals.done, ITEMS_A_RUN)
    yield Compared("continuations", "in pages of 100", ours, "a task and a receipt each", plain)


def views(bench: Bench) -> Iterator[Compared]:
    """Save sources of a few hot rows, and of many rows."""
    for name, rows in (("views_hot", 2), ("views_spread", 100)):
        spent = {}
        for design in ("folds", "talk"):
            start_count = fan_in.visible(bench, design, rows)
            save = partial(
                counted,
                bench.port,
                f"/bench/{design}/{rows}/{{}}",
                CLIENTS,
                new_numbers(ITEMS_EACH),
            )
            spent[design] = spend(bench, ITEMS_EACH, save)
            check(design, fan_in.visible(bench, design, rows) - start_count, ITEMS_EACH)
        subject = f"saves over {rows} rows, gathered"
        yield Compared(name, subject, spent["folds"], "the talk's code", spent["talk"])


def sums(bench: Bench) -> Iterator[Compared]:
    """Add to one sum: under full load, and at a pace with little to gather."""
    plain = _additions(bench, "inline", 1, PLAIN_ITEMS)
    way = "a transaction each, one at a time"
    full = _additions(bench, "fork-join", MANY, ITEMS_OF_MANY)
    yield Compared("fork_join", f"{MANY} clients, one sum", full, way, plain)
    numbers = range(4 * PACED_PER_S)
    start_count = fork_join.folded(bench, "fork-join")
    add = partial(paced, bench.port, "/bench/fork-join", CLIENTS, PACED_PER_S, numbers)
    slow = spend(bench, len(numbers), add)
    check("fork-join", fork_join.folded(bench, "fork-join") - start_count, len(numbers))
    yield Compared("fork_join_paced", f"{PACED_PER_S} a second, one sum", slow, way, plain)


def _additions(bench: Bench, design: str, clients: int, items: int) -> Spent:
    start_count = fork_join.folded(bench, design)
    add = partial(counted, bench.port, f"/bench/{design}", clients, range(items))
    spent = spend(bench, items, add)
    check(design, fork_join.folded(bench, design) - start_count, items)
    return spent


def counts(bench: Bench) -> Iterator[Compared]:
    """Increment one count, with an idempotency key and without."""
    spent = {}
    for design, clients, items in (("adaptive", CLIENTS, ITEMS_EACH), ("one-row", 1, PLAIN_ITEMS)):
        count = partial(counted, bench.port, f"/bench/{design}", clients, range(items))
        spent[design] = spend(bench, items, count)
        with bench.clients.context():
            check(design, total(bench.clients, design), items)
    ours, plain = spent["adaptive"], spent["one-row"]
    subject = f"exact, {CLIENTS} clients"
    yield Compared("counters", subject, ours, "a transaction each, one at a time, no key", plain)


def tasks(bench: Bench) -> Iterator[Compared]:
    """Run a batch of tasks, and drain a pull queue."""
    ours = spend(bench, ITEMS_EACH, partial(_get, bench, f"/bench/ours/b?count={ITEMS_EACH}"))
    plain = spend(bench, PLAIN_ITEMS, partial(_get, bench, f"/bench/article/b?count={PLAIN_ITEMS}"))
    yield Compared("batches", "members of one batch", ours, "the article's code", plain)
    ours = spend(bench, ITEMS_EACH, partial(_lease_all, bench))
    plain = spend(bench, PLAIN_ITEMS, partial(_claim_all, bench))
    subject = f"leased and acked, {AT_ONCE} at a time"
    yield Compared("pull_queues", subject, ours, "a row each, claimed in a transaction", plain)


def _get(bench: Bench, path: str) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{bench.port}{path}", timeout=TIMEOUT_S):
        pass


def _lease_all(bench: Bench) -> None:
    with bench.clients.context():
        for number in range(ITEMS_EACH):
            WORK.add(bench.clients, str(number))
        acked, ends_at = 0, time.monotonic() + TIMEOUT_S
        while acked < ITEMS_EACH and time.monotonic() < ends_at:
            leases = WORK.lease(bench.clients, limit=AT_ONCE)
            acked += len(leases) - len(WORK.ack(bench.clients, leases))
    check("pull queue", acked, ITEMS_EACH)


class BenchJob(ndb.Model):
    """Pending work, stored in the simplest way without a queue."""

    payload = ndb.TextProperty()
    is_claimed = ndb.BooleanProperty(default=False)


def _claim_all(bench: Bench) -> None:
    """Put a row for each item; find, claim and delete them one by one."""
    with bench.clients.context():
        for number in range(PLAIN_ITEMS):
            BenchJob(payload=str(number)).put()
        waiting = BenchJob.query(BenchJob.is_claimed == False)  # noqa: E712
        done = 0
        while (key := waiting.get(keys_only=True)) is not None:
            if transact(partial(_claim, key)):
                key.delete()
                done += 1
    check("rows", done, PLAIN_ITEMS)


def _claim(key: Any) -> bool:
    job = key.get()
    if job is None or job.is_claimed:
        return False
    job.is_claimed = True
    job.put()
    return True


def windows(bench: Bench) -> Iterator[Compared]:
    """Count records in windows: pushed a hundred at a time, and by a task each."""
    pipeline = PUSHED[BATCH]

    def push_all() -> None:
        for start in range(0, RECORDS, BATCH):
            part = enumerate(events(RECORDS)[start : start + BATCH], start)
            push(
                bench,
                pipeline,
                [PushedRecord(f"{n}", {"key": event.key}, event.at) for n, event in part],
            )
        pipeline.close(bench.clients, "in")

    def enqueue_all() -> None:
        part: Sequence[Any] = events(RECORDS)[:PLAIN_ITEMS]
        count_each.enqueue_many(bench.clients, [Arrived(*event) for event in part])

    ours = spend(bench, RECORDS, push_all)
    check_windows(bench, pipeline, RECORDS)
    plain = spend(bench, PLAIN_ITEMS, enqueue_all)
    with bench.clients.context():
        check("tasks", sum(row.count for row in BenchCount.query().fetch()), PLAIN_ITEMS)
    subject = f"records in pushes of {BATCH}, one stage"
    yield Compared("streams", subject, ours, "a task and a transaction each", plain)


def steps(bench: Bench) -> Iterator[Compared]:
    """Run flows of five steps that write a row each."""
    spent = {}
    for prefix, path in (("f", "/bench/start/commits/f"), ("h", "/bench/by-hand/h")):
        start = partial(_get, bench, f"{path}?count={THINGS}")
        spent[prefix] = spend(bench, THINGS * STEPS, start)
        names = [f"{prefix}-{n}-{step}" for n in range(THINGS) for step in range(STEPS)]
        with bench.clients.context():
            rows = ndb.get_multi([ndb.Key(BenchRow, name) for name in names])
        check("steps", sum(row is not None for row in rows), len(names))
    subject = f"steps that write a row, {STEPS} a flow, its start and end included"
    yield Compared("flows", subject, spent["f"], "a task and a transaction a step", spent["h"])


def pages(bench: Bench) -> Iterator[Compared]:
    """Show a front page, cached for two seconds and uncached."""
    with bench.clients.context():
        entities = posts()
        for start in range(0, len(entities), 200):
            ndb.put_multi(entities[start : start + 200])
    cached = partial(paced, bench.port, "/bench/cached", CLIENTS, PAGES_PER_S, range(PAGES_SHOWN))
    bare = partial(counted, bench.port, "/bench/bare", 1, range(PLAIN_ITEMS))
    ours, plain = spend(bench, PAGES_SHOWN, cached), spend(bench, PLAIN_ITEMS, bare)
    subject = f"a page of ten posts, {PAGES_PER_S} a second, kept for 2 s"
    yield Compared("query_cache", subject, ours, "not cached", plain)


STACKS = (
    Stack("continuations", fan_out),
    Stack("fan_in", views, {"is_cached": True}),
    Stack("fork_join", sums, {"is_cached": True}),
    Stack("counters", counts, {"is_cached": True}),
    Stack("batches", tasks, {"is_cached": True}),
    Stack("steps", steps),
    Stack("streams", windows, {"emulator": "firestore"}),
    Stack("query_cache", pages, {"is_cached": True}),
)
