"""Real processes, killed for real: every window of a stream is exact, and is written once.

It takes minutes, so it is a part of `make soak`. STREAM_RECORDS=5000 makes it half a minute.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import requests

from rollforward.flask.app import open_clients
from rollforward.flask.settings import Settings
from rollforward.local.shell import find
from rollforward.runtime import Clients
from rollforward.streams import FOREVER, Pipeline, PushedRecord
from tests.infra.runs.soak import IS_SOAK
from tests.infra.stack import Stack, running_stack, until
from tests.process.kills.streams_app import APART, DISORDER, FUSED, WINDOW

RECORDS = int(os.environ.get("STREAM_RECORDS", "50000"))
KEYS = 500
SPAN_MS = 100_000
START_MS = 1_760_000_000_000
BATCH = 500
KILL_EVERY_S = 2.0
TIMEOUT_S = 900
WINDOW_MS = int(WINDOW.total_seconds() * 1000)


class Killer:
    """Kills a worker every few seconds, until it is told to stop.

    Between two kills the app has answered, and has had as long again: on a busy machine a worker
    takes longer to begin than the pause, and nobody would ever work.
    """

    def __init__(self, stack: Stack, every_s: float = KILL_EVERY_S) -> None:
        self.stack, self.every_s = stack, every_s
        self.kills = 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pause_s = self.every_s
        while not self.is_over.wait(pause_s):
            self.kills += bool(self.stack.control("/api/v1/workers/kill", {})["pid"])
            killed_at = time.monotonic()
            until(lambda: self.is_over.is_set() or self._app_answers(), TIMEOUT_S)
            pause_s = max(self.every_s, time.monotonic() - killed_at)

    def _app_answers(self) -> bool:
        try:
            url = f"{self.stack.app.rstrip('/')}/health/live"
            return requests.get(url, timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def __enter__(self) -> Killer:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self.thread.join()


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack("--target", "tests.process.kills.streams_app:serve") as running:
        yield running


@pytest.mark.process
@pytest.mark.skipif(
    not (IS_SOAK or "STREAM_RECORDS" in os.environ), reason="takes minutes: make soak"
)
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("pipeline", [APART, FUSED], ids=lambda pipeline: pipeline.name)
def test_windows_are_exact_while_workers_are_killed(
    stack: Stack, pipeline: Pipeline, record_property: Callable[[str, object], None]
) -> None:
    """G1, G2, G3, G16: of three stages, with disorder and repeated pushes; each comes once."""
    records = made(random.Random(pipeline.name))
    clients = clients_of(stack)
    began, repeated = time.monotonic(), 0
    with clients.context(), Killer(stack) as killer:
        for first in range(0, len(records), BATCH):
            repeated += push(clients, pipeline, records[first : first + BATCH], first)
        pipeline.close(clients, "raw")
        until(lambda: is_over(clients, pipeline), TIMEOUT_S)

    with clients.context():
        windows = windows_of(clients, pipeline)
        status = pipeline.status(clients)
    record_property("seconds", round(time.monotonic() - began))
    record_property("kills", killer.kills)
    assert killer.kills > 1
    assert all(each.late == each.dead == 0 for each in status.computations.values())
    assert windows == truth(records)
    assert status.computations["sorted"].repeated == repeated
    assert [status.computations[name].records for name in ("sorted", "counted")] == [RECORDS] * 2


def clients_of(stack: Stack) -> Clients:
    """Open what the app has, in this process, which nobody kills."""
    settings = Settings.from_environment(find(stack.console).environment)
    return open_clients(settings, {})


def made(chance: random.Random) -> list[PushedRecord]:
    """Return records of many keys, in the order in which they come: up to 2 s late."""
    disorder_ms = int(DISORDER.total_seconds() * 1000)
    records = []
    for n in range(RECORDS):
        at = START_MS + n * SPAN_MS // RECORDS + disorder_ms - chance.randrange(disorder_ms)
        value = {"sender": n % 97, "key": f"key {chance.randrange(KEYS)}"}
        records.append(PushedRecord(f"record {n}", value, at))
    return records


def truth(records: list[PushedRecord]) -> dict[str, list[list[int]]]:
    """Return the windows of each key, counted by a plain script."""
    counts = Counter(
        (each.value["key"], each.timestamp_ms // WINDOW_MS * WINDOW_MS) for each in records
    )
    return {
        key: sorted([start, count] for (other, start), count in counts.items() if other == key)
        for key in {key for key, _ in counts}
    }


def windows_of(clients: Clients, pipeline: Pipeline) -> dict[str, list[list[int]]]:
    """Return the windows of each key, as they were collected."""
    if pipeline is FUSED:
        states = {key: state["collected"] for key, state in FUSED.states(clients, "counted")}
    else:
        states = dict(pipeline.states(clients, "collected"))
    return {key: sorted(state["windows"]) for key, state in states.items()}


def push(clients: Clients, pipeline: Pipeline, records: list[PushedRecord], first: int) -> int:
    """Push a batch, one in five again; return how many records came again."""
    pipeline.push(clients, "raw", records)
    if first % (5 * BATCH):
        return 0
    pipeline.push(clients, "raw", records)
    return len(records)


def is_over(clients: Clients, pipeline: Pipeline) -> bool:
    """Return whether all has come, and all timers have fired."""
    status = pipeline.status(clients).computations.values()
    return all(
        each.waiting == each.waiting_timers == 0 and each.watermark >= FOREVER for each in status
    )
