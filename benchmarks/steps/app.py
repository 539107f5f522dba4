"""The measured app: flows of five quick steps, each of which writes a row or calls outside.

none      a flow without a step, for the cost of a start and an end
commits   five steps that write a row each, in the commit of the step
outside   five calls that do nothing
mix       two commits and a call, a sleep of a second, an event, and one more commit
long      a sleep of 45 days, and then a commit

"/bench/by-hand" runs the steps of "commits" without a flow: a task and a transaction each, which
advance a row's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flask import Flask, request
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.datastore.transactions import transact
from rollforward.flows import Flow, Steps, flow
from rollforward.flows.pattern import Flows
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import task

STEPS = 5
STARTERS = 16  # Threads that start flows, within one request.
SLEEP_S = 1.0


class BenchRow(ndb.Model):
    """A row written by a step."""

    number = ndb.IntegerProperty(indexed=False)


def write(flow_id: str, number: int) -> int:
    """Write a row of a step."""
    BenchRow(id=f"{flow_id}-{number}", number=number).put()
    return number


def call(flow_id: str, number: int, key: str) -> int:
    """Do nothing, like a call of a fast service."""
    return number


@flow("bench-none", queue="bench")
def none(step: Steps) -> int:
    return 0


@flow("bench-commits", queue="bench")
def commits(step: Steps) -> int:
    return sum(step.commit(f"write {n}", write, step.flow_id, n) for n in range(STEPS))


@flow("bench-outside", queue="bench")
def outside(step: Steps) -> int:
    names = [f"call {n}" for n in range(STEPS)]
    return sum(
        step.outside(name, call, step.flow_id, n, step.key(name)) for n, name in enumerate(names)
    )


@flow("bench-mix", queue="bench")
def mix(step: Steps) -> int:
    """Run some steps of each kind, as an order would."""
    reserved = step.commit("reserve", write, step.flow_id, 0)
    paid = step.outside("charge", call, step.flow_id, 1, step.key("charge"))
    step.sleep("a while", seconds=SLEEP_S)
    courier = step.wait_for("courier", timeout_s=600.0)
    return reserved + paid + courier.payload if courier is not None else 0  # type: ignore[no-any-return]


@flow("bench-long", queue="bench")
def long(step: Steps) -> int:
    """Sleep for longer than a task can be delayed."""
    step.sleep("45 days", days=45)
    return step.commit("write", write, step.flow_id, 0)


class BenchState(ndb.Model):
    """The state of one thing, stored in the simplest way without a flow."""

    steps = ndb.IntegerProperty(indexed=False, default=0)


@task("/tasks/bench/by-hand", queue="bench")
def by_hand(clients: Clients, thing: str, number: int) -> None:
    """Write the row of a step once, and enqueue the next step."""

    def body() -> None:
        state = BenchState.get_by_id(thing) or BenchState(id=thing)
        if state.steps == number:
            write(thing, number)
            state.steps += 1
            state.put()

    transact(body)
    if number + 1 < STEPS:
        by_hand.enqueue(clients, thing, number + 1)


FLOWS: Sequence[Flow[Any]] = (none, commits, outside, mix, long)
BY_NAME = {declared.name.removeprefix("bench-"): declared for declared in FLOWS}


def serve() -> Flask:
    """Return the app."""
    app, clients = app_for(Registry(*FLOWS, by_hand))

    @app.get("/bench/start/<name>/<prefix>")
    def start(name: str, prefix: str) -> Any:
        """Start flows, as many as the request's `count`, with the threads of one process."""
        flow_ids = [f"{prefix}-{n}" for n in range(int(request.args["count"]))]
        with ThreadPoolExecutor(STARTERS) as threads:
            started = list(threads.map(lambda flow_id: _start(clients, name, flow_id), flow_ids))
        return ("", 204) if all(started) else ("a flow was there", 409)

    @app.get("/bench/by-hand/<prefix>")
    def start_by_hand(prefix: str) -> Any:
        """Start things, as many as the request's `count`, that run the steps without a flow."""
        for n in range(int(request.args["count"])):
            by_hand.enqueue(clients, f"{prefix}-{n}", 0)
        return "", 204

    @app.get("/bench/signal/<prefix>")
    def signal(prefix: str) -> Any:
        """Send each of some flows the event for which it waits."""
        for n in range(int(request.args["count"])):
            mix.signal(clients, f"{prefix}-{n}", "courier", 1)
        return "", 204

    @app.get("/bench/sweep")
    def sweep() -> Any:
        """Sweep as often as the request's `count`, as cron does."""
        flows = Flows()
        for _ in range(int(request.args["count"])):
            flows.sweep(clients, FLOWS)
            flows.delete_expired(clients)
        return "", 204

    return app


def _start(clients: Clients, name: str, flow_id: str) -> bool:
    with clients.context():
        return BY_NAME[name].start(clients, flow_id)
