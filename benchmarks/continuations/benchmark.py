"""Fan-out by pages of a continuation, against one task an item and against one long request.

Datastore and Cloud Tasks are emulators on this machine, and the app is gunicorn with two workers.
All three designs run on them in turn in each round, and the medians are compared.
benchmarks/continuations/app.py explains the designs.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import fields

from google.cloud import ndb

from benchmarks.continuations.app import (
    EFFECTS,
    ITEMS,
    MAIL,
    NOTHING,
    PAGES,
    REQUEST,
    Addressee,
    Receipt,
    Walk,
)
from benchmarks.harness.results import Result
from benchmarks.harness.testbed import Bench, open_testbed
from rollforward import continuations
from rollforward.continuations.entities import FINISHED
from rollforward.continuations.progress import progress
from rollforward.runtime import Cost

ITEMS_A_RUN = 1000
ROUNDS = 3
TIMEOUT_S = 120
VERSUS_ITEMS, VERSUS_REQUEST = "one task an item", "one long request"


def measure() -> Iterator[Result]:
    """Measure all designs and yield the comparisons."""
    with _bench() as bench:
        rates: dict[tuple[str, str], float] = {}
        for effect in EFFECTS:
            for name, rate in _rates(bench, effect).items():
                rates[name, effect] = rate
        yield _ratio("items_per_s", rates, NOTHING, "items", 5)
        yield _ratio("items_per_s_versus_request", rates, NOTHING, "request", None)
        yield _ratio("mails_per_s", rates, MAIL, "items", None)
        yield _ratio("mails_per_s_versus_request", rates, MAIL, "request", None)
        yield from _operations(bench)


def _ratio(
    name: str, rates: dict[tuple[str, str], float], effect: str, rival: str, target: float | None
) -> Result:
    ours, theirs = rates["pages", effect], rates[rival, effect]
    versus = {"items": VERSUS_ITEMS, "request": VERSUS_REQUEST}[rival]
    raw = {
        "ours_per_s": round(ours, 1),
        "theirs_per_s": round(theirs, 1),
        "items": ITEMS_A_RUN,
        "rounds": ROUNDS,
        "ours_tasks_per_s": round(ours / PAGES.page_size, 1),
        "theirs_tasks_per_s": round(theirs if rival == "items" else theirs / ITEMS_A_RUN, 1),
    }
    return Result(f"continuations.{name}", ours / theirs, "ratio", versus, target, raw=raw)


def _rates(bench: Bench, effect: str) -> dict[str, float]:
    """Return each design's items a second, as the median of the rounds."""
    took: dict[str, list[float]] = {"pages": [], "items": [], "request": []}
    for _ in range(ROUNDS):
        took["pages"].append(_timed(bench, effect, _run_pages))
        took["items"].append(_timed(bench, effect, _run_items))
        took["request"].append(_timed(bench, effect, _run_request))
    return {name: ITEMS_A_RUN / statistics.median(times) for name, times in took.items()}


Run = Callable[[Bench, Walk], None]


def _timed(bench: Bench, effect: str, run: Run) -> float:
    """Run one design over all items; return the seconds until the last receipt is stored."""
    bench.queue.engine.reset()
    bench.relay.clear()
    walk = Walk(secrets.token_hex(8), "g", effect)
    started = time.perf_counter()
    run(bench, walk)
    took_s = time.perf_counter() - started
    if effect == MAIL and bench.relay.count() != ITEMS_A_RUN:
        raise RuntimeError(f"{bench.relay.count()} mails instead of {ITEMS_A_RUN}")
    return took_s


def _run_pages(bench: Bench, walk: Walk) -> None:
    with bench.clients.context():
        continuations.start(bench.clients, PAGES, walk, run_id=walk.run_id, expected=ITEMS_A_RUN)
    bench.queue.wait_idle(TIMEOUT_S)
    with bench.clients.context():
        state = progress(walk.run_id)
    if state.state != FINISHED or state.totals.done != ITEMS_A_RUN:
        raise RuntimeError(f"the run is {state.state} with {state.totals.done} items done")


def _run_items(bench: Bench, walk: Walk) -> None:
    with bench.clients.context():
        ITEMS.enqueue(bench.clients, walk)
    bench.queue.wait_idle(TIMEOUT_S)
    check_receipts(bench, walk)


def _run_request(bench: Bench, walk: Walk) -> None:
    with bench.clients.context():
        REQUEST.enqueue(bench.clients, walk)
    bench.queue.wait_idle(TIMEOUT_S)
    check_receipts(bench, walk)


def check_receipts(bench: Bench, walk: Walk) -> None:
    with bench.clients.context():
        low, high = ndb.Key(Receipt, f"{walk.run_id}:"), ndb.Key(Receipt, f"{walk.run_id};")
        keys = Receipt.query(Receipt._key > low, Receipt._key < high).fetch(keys_only=True)
    if len(keys) != ITEMS_A_RUN:
        raise RuntimeError(f"{len(keys)} receipts instead of {ITEMS_A_RUN}")


def _operations(bench: Bench) -> Iterator[Result]:
    """Count the operations of one run, per item."""
    spent = {}
    for name, run in (("pages", _run_pages), ("items", _run_items), ("request", _run_request)):
        start_cost = bench.cost()
        _timed(bench, NOTHING, run)
        spent[name] = bench.cost() - start_cost
    targets = {"writes": 2.0, "tasks": 0.05}
    for counted in fields(Cost):
        per_item = {name: getattr(cost, counted.name) / ITEMS_A_RUN for name, cost in spent.items()}
        yield Result(
            f"continuations.{counted.name}_per_item",
            per_item["pages"],
            "operations",
            VERSUS_ITEMS,
            targets.get(counted.name),
            at_least=False,
            raw={"one_task_an_item": per_item["items"], "one_long_request": per_item["request"]},
        )


@contextlib.contextmanager
def _bench() -> Iterator[Bench]:
    """Start everything, store the items, warm up."""
    with open_testbed("benchmarks.continuations.app:serve()") as bench:
        with bench.clients.context():
            for start in range(0, ITEMS_A_RUN, 500):
                ndb.put_multi([addressee(i) for i in range(start, start + 500)])
        _timed(bench, NOTHING, _run_items)
        yield bench


def addressee(number: int) -> Addressee:
    spread = f"{(number * 2654435761) % 2**32:08x}"
    return Addressee(id=f"g:{spread}", address=f"guest{number}@example.com")
