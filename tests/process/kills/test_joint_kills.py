"""Real processes, killed for real, while pushes join the commits of their workers.

Clients push until so many workers are killed; KILLS=100 plays longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from rollforward.runtime import Clients
from tests.infra.runs.sampling import kills
from tests.infra.runs.soak import IS_SOAK
from tests.infra.stack import Stack, running_stack, until
from tests.process.kills import joint_app
from tests.process.kills.joint_app import PIPELINE
from tests.process.kills.test_stream_kills import Killer, clients_of
from tests.process.kills.test_weak_kills import is_answered

KILLS = int(os.environ.get("KILLS") or (60 if IS_SOAK else 5))
CLIENTS = 2
BATCH = 5
AGAIN = 8  # One push in so many is done again.
KILL_EVERY_S = 4.0
TIMEOUT_S = 900 if IS_SOAK else 300


@kills
@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_each_record_counts_once_while_workers_are_killed_whose_commits_pushes_join(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G1: each record that was let in is in its key's list, once, also if it was pushed again."""
    joined = tmp_path / "joined"
    more = {joint_app.JOINED: str(joined)}
    with running_stack("--target", "tests.process.kills.joint_app:serve", **more) as stack:
        clients, began = clients_of(stack), time.monotonic()
        with Killer(stack, KILL_EVERY_S) as killer:
            pushed = push_until(stack, lambda: killer.kills >= KILLS)
        with clients.context():
            until(lambda: len(kept(clients)) >= pushed, TIMEOUT_S)
            numbers = kept(clients)

    joins = len(joined.read_text().splitlines())
    record_property("seconds", round(time.monotonic() - began))
    record_property("kills", killer.kills)
    record_property("joint commits", joins)
    assert sorted(numbers) == list(range(pushed))
    assert joins >= killer.kills


def push_until(stack: Stack, is_over: Callable[[], bool]) -> int:
    """Push batches by clients side by side; return how many records were let in."""
    numbers, is_done = count(step=BATCH), threading.Event()

    def push_some() -> None:
        while not is_done.is_set():
            first = next(numbers)
            for _ in range(1 if first // BATCH % AGAIN else 2):
                push(stack, first)

    threads = [threading.Thread(target=push_some) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    until(is_over, TIMEOUT_S)
    is_done.set()
    for thread in threads:
        thread.join()
    return next(numbers)


def push(stack: Stack, first: int) -> None:
    """Push a batch until it is let in, whoever dies over it."""
    url = f"{stack.app.rstrip('/')}/push/{first}/{first + BATCH}"
    until(lambda: is_answered(url), TIMEOUT_S, 0.05)


def kept(clients: Clients) -> list[int]:
    """Return the numbers that the keys' lists hold."""
    states = PIPELINE.states(clients, "kept")
    return [number for _, state in states for number in state["numbers"]]
