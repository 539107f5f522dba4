"""Saves of a source with one view, compared with bare puts: threads of one process, both emulators.

There is no HTTP, no relay and no memcached, so a save is begin, lookup, commit. "alone" is a save
with a transaction of its own, by ndb. The three designs take turns, in rounds.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import PROJECT
from benchmarks.materialized_views.app import GROUPS, Bare, source
from rollforward.datastore.transactions import RETRIED, transact
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import Clients, Cost, Meter, NoCache, open_datastore
from rollforward.testing.world import in_threads

EMULATORS = ("firestore", "datastore")
CLIENTS = (8, 32)
ROUNDS, SECONDS = 5, 2.0
# By emulator and clients; other figures have no target.
TARGETS = {("firestore", 8): 1.0, ("firestore", 32): 1.0, ("datastore", 8): 0.8}
_numbers = itertools.count()


class NoRelay:
    """A relay that leaves all rows in the outbox."""

    def send(self, clients: Clients, rows: Any) -> None:
        """Do nothing."""

    def resolve(self, clients: Clients, rows: Any) -> None:
        """Do nothing."""


def measure() -> Iterator[Result]:
    """Measure both emulators, each with all numbers of clients."""
    for kind in EMULATORS:
        for threads in CLIENTS:
            with datastore_emulator(kind) as address:
                yield from _measure(kind, threads, clients_of(address))


def clients_of(address: str) -> Clients:
    """Return clients of an emulator, without other services."""
    meter = Meter()
    return Clients(
        datastore=open_datastore(PROJECT, emulator=address, interceptors=[meter]),
        tasks=None,  # type: ignore[arg-type]
        cache=NoCache(),
        meter=meter,
        relay=NoRelay(),
    )


def designs(clients: Clients) -> dict[str, Callable[[], object]]:
    """Return the saves to compare, by name."""
    kind, views = GROUPS[1]
    return {
        "put": lambda: source(Bare, next(_numbers)).put(),
        "alone": lambda: _alone(views, clients, source(kind, next(_numbers))),
        "shared": lambda: views.save(clients, source(kind, next(_numbers))),
    }


def _alone(views: Any, clients: Clients, saved: Any) -> None:
    transact(lambda: views.save_in_transaction(clients, saved))


def _measure(kind: str, threads: int, clients: Clients) -> Iterator[Result]:
    acts = designs(clients)
    rates: dict[str, list[float]] = {name: [] for name in acts}
    costs: dict[str, Cost] = {name: Cost() for name in acts}
    counts = dict.fromkeys(acts, 0)
    for act in acts.values():
        run(clients, act, threads, SECONDS / 4)
    for _ in range(ROUNDS):
        for name, act in acts.items():
            start_cost = clients.meter.total()
            count, seconds = run(clients, act, threads, SECONDS)
            rates[name].append(count / seconds)
            counts[name] += count
            costs[name] += clients.meter.total() - start_cost
    for name in ("shared", "alone"):
        ratios = [ours / put for ours, put in zip(rates[name], rates["put"], strict=True)]
        yield Result(
            f"saves.{name}_{kind}_{threads}",
            statistics.median(ratios),
            "ratio",
            "a bare put",
            TARGETS.get((kind, threads)) if name == "shared" else None,
            raw={
                "quartiles": quartiles(ratios),
                "ours_per_s": round(statistics.median(rates[name]), 1),
                "theirs_per_s": round(statistics.median(rates["put"]), 1),
                "rounds": ROUNDS,
                **{
                    field: round(getattr(costs[name], field) / counts[name], 2)
                    for field in ("round_trips", "reads", "writes")
                },
            },
        )


def run(
    clients: Clients, act: Callable[[], object], threads: int, seconds: float
) -> tuple[int, float]:
    """Return the number of actions by concurrent threads, without lost races, and the seconds."""
    counts: list[int] = []

    def work() -> None:
        ends_at, done = time.perf_counter() + seconds, 0
        with clients.context():
            while time.perf_counter() < ends_at:
                try:
                    act()
                except RETRIED:
                    continue
                done += 1
        counts.append(done)

    began = time.perf_counter()
    in_threads(*[work] * threads)
    return sum(counts), time.perf_counter() - began
