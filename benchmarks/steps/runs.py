"""Runs of flows on the measured app, from the request that starts them to their ends."""

from __future__ import annotations

import http.client
import time

from google.cloud import ndb

from benchmarks.harness.testbed import Bench
from benchmarks.steps.app import BY_NAME
from rollforward.flows.rows.entities import RUNNING, SUCCEEDED, in_state, run_key

TIMEOUT_S = 240
LOOK_EVERY_S = 0.005


def run(bench: Bench, name: str, count: int) -> float:
    """Run some flows to their ends; return the seconds."""
    prefix = f"{time.monotonic_ns()}"
    began = time.perf_counter()
    start(bench, name, prefix, count)
    until_ended(bench)
    took_s = time.perf_counter() - began
    check_ended(bench, name, prefix, count)
    return took_s


def start(bench: Bench, name: str, prefix: str, count: int) -> None:
    """Start some flows by one request."""
    ask(bench, f"/bench/start/{name}/{prefix}?count={count}")


def ask(bench: Bench, path: str) -> None:
    """GET a path of the app."""
    connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=TIMEOUT_S)
    connection.request("GET", path)
    response = connection.getresponse()
    connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{path} answered {response.status}")


def until_idle(bench: Bench) -> None:
    """Wait until no task is left."""
    ends_at = time.monotonic() + TIMEOUT_S
    while bench.queue.engine.wake_at() is not None or not bench.queue.engine.is_idle():
        if time.monotonic() > ends_at:
            raise RuntimeError("the queue did not drain")
        time.sleep(LOOK_EVERY_S)


def until_ended(bench: Bench) -> None:
    """Wait until no flow is running.

    It polls flows only when no task is left, as a poll costs the emulator time.
    """
    ends_at = time.monotonic() + TIMEOUT_S
    with bench.clients.context():
        while True:
            until_idle(bench)
            if in_state(RUNNING).get(keys_only=True) is None:
                return
            if time.monotonic() > ends_at:
                raise RuntimeError("a flow did not end")


def check_ended(bench: Bench, name: str, prefix: str, count: int) -> None:
    """Check that each of some flows has succeeded."""
    flow = BY_NAME[name].name
    with bench.clients.context():
        rows = ndb.get_multi([run_key(f"{flow}|{prefix}-{n}") for n in range(count)])
    ended = sum(row is not None and row.state == SUCCEEDED for row in rows)
    if ended != count:
        raise RuntimeError(f"{ended} of {count} flows have succeeded")
