"""Operations of flows: per flow, per step, and of sleeping flows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb

from benchmarks.harness.results import Result
from benchmarks.harness.testbed import Bench
from benchmarks.steps.app import SLEEP_S, STEPS
from benchmarks.steps.runs import ask, check_ended, run, start, until_idle
from rollforward.datastore.batched import batched
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.runtime import Cost

FLOWS = 50
SLEEPERS, PER_PUT = 10_000, 500
SWEEPS = 60  # An hour of sweeps.
COUNTED = ("writes", "reads", "tasks", "round_trips")
# For a step: its flow's row, and the row that the step writes.
GOALS = {"writes": 2.0, "tasks": 1.0}


def measure(bench: Bench) -> Iterator[Result]:
    """Count the operations of a flow and of a step."""
    costs = {name: _spent(bench, name) for name in ("none", "commits", "outside")}
    costs["mix"] = _mix(bench)
    for name, cost in costs.items():
        for counted in COUNTED:
            yield Result(
                f"steps.{counted}_per_flow_{name}",
                cost[counted],
                "operations a flow",
                "its start and its end included",
            )
    for name in ("commits", "outside"):
        for counted in COUNTED:
            goal = 0.0 if counted == "tasks" else GOALS.get(counted)
            yield Result(
                f"steps.{counted}_per_step_{name}",
                (costs[name][counted] - costs["none"][counted]) / STEPS,
                "operations a step",
                "a flow without steps",
                goal,
                at_least=False,
            )
    for counted in COUNTED:
        yield Result(
            f"steps.{counted}_per_step_mix",
            (costs["mix"][counted] - costs["none"][counted]) / 4,
            "operations a step",
            "a commit, a call, a sleep and a wait with its event",
            GOALS.get(counted),
            at_least=False,
        )


def _spent(bench: Bench, name: str) -> dict[str, float]:
    start_cost = bench.cost()
    run(bench, name, FLOWS)
    return _per_flow(bench.cost() - start_cost)


def _mix(bench: Bench) -> dict[str, float]:
    """Count the operations of flows whose event arrives while they wait for it."""
    prefix, start_cost = f"{time.monotonic_ns()}", bench.cost()
    start(bench, "mix", prefix, FLOWS)
    time.sleep(SLEEP_S + 2.0)
    ask(bench, f"/bench/signal/{prefix}?count={FLOWS}")
    # The wait's time-out task, ten minutes away, still exists.
    bench.queue.wait_idle(60)
    time.sleep(2.0)
    check_ended(bench, "mix", prefix, FLOWS)
    cost = _per_flow(bench.cost() - start_cost)
    bench.queue.engine.reset()
    return cost


def _per_flow(cost: Cost) -> dict[str, float]:
    return {counted: getattr(cost, counted) / FLOWS for counted in COUNTED}


# Sleep


def measure_sleepers(bench: Bench) -> Iterator[Result]:
    """Count the operations of an hour of sweeps, without sleeping flows and with 10,000."""
    empty = _swept(bench)
    _sleep(bench)
    slept = _swept(bench)
    for counted in ("reads", "query_reads", "writes", "tasks", "round_trips"):
        none, many = getattr(empty, counted), getattr(slept, counted)
        yield Result(
            f"steps.{counted}_by_sleepers",
            many - none,
            "operations an hour",
            f"{SLEEPERS:,} flows that sleep, {SWEEPS} sweeps, against none",
            0.0,
            at_least=False,
            raw={"with_sleepers": many, "without": none},
        )


def _swept(bench: Bench) -> Cost:
    start_cost = bench.cost()
    ask(bench, f"/bench/sweep?count={SWEEPS}")
    return bench.cost() - start_cost


def _sleep(bench: Bench) -> None:
    """Run one flow until it sleeps, and store copies of its row for the others."""
    prefix = f"{time.monotonic_ns()}"
    start(bench, "long", prefix, 1)
    with bench.clients.context():
        row: Any = None
        while row is None or not row.steps:
            until_idle(bench)
            row = run_key(f"bench-long|{prefix}-0").get()
        values = row.to_dict()
        copies = [
            FlowRun(key=run_key(f"bench-long|{prefix}-{n}"), **values) for n in range(1, SLEEPERS)
        ]
        for part in batched(copies, PER_PUT):
            ndb.put_multi(part)
