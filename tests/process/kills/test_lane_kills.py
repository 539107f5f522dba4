"""Real processes, killed for real, with lanes: order, limit, rate and windows hold all the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from rollforward.lanes.rows.entities import LaneTask
from tests.infra.runs.sampling import kills
from tests.infra.runs.soak import IS_SOAK
from tests.infra.stack import Stack, running_stack, until
from tests.process import lane_work
from tests.process.kills.lanes_app import FOUR, IN_ORDER, PACED, RATE, digest
from tests.process.kills.test_stream_kills import Killer, clients_of

JOBS = 600 if IS_SOAK else 36  # Of a key.
BATCH = 6
KEYS = [
    *((IN_ORDER.name, key) for key in "abcd"),
    *((FOUR.name, key) for key in "ab"),
    *((PACED.name, key) for key in "ab"),
    *((digest.name, key) for key in "ab"),
]
KILL_EVERY_S = 1.0
# The locking emulator does the same, and takes longer.
EMULATORS = os.environ.get("PROCESS_EMULATORS", "datastore").split()
# Killed before the second half is added, and in all, at least.
KILLS_BEFORE, KILLS = 1, 3
TIMEOUT_S = 900 if IS_SOAK else 120


@kills
@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("emulator", EMULATORS)
def test_lanes_keep_their_promises_while_workers_are_killed(
    tmp_path: Path, emulator: str, record_property: Callable[[str, object], None]
) -> None:
    """K1, K2, K3, K5, K6, K8, G1, G2: kill -9 in the middle of tasks, claims and hints."""
    target = "tests.process.kills.lanes_app:serve"
    environment = {"DATASTORE_EMULATOR": emulator, lane_work.FILES: str(tmp_path)}
    with running_stack("--target", target, **environment) as stack:
        clients, added_s = clients_of(stack), time.time()
        with clients.context(), Killer(stack, KILL_EVERY_S) as killer:
            add(stack, 0, JOBS // 2)
            until(lambda: killer.kills >= KILLS_BEFORE, TIMEOUT_S)
            add(stack, JOBS // 2, JOBS)
            until(lambda: killer.kills >= KILLS, TIMEOUT_S)
            until(lambda: is_over(stack), TIMEOUT_S)
        with clients.context():
            until(lambda: is_over(stack), TIMEOUT_S)
            lane_work.assert_done_once(dict.fromkeys(KEYS, JOBS))

    log = lane_work.Log.of(tmp_path)
    record_property("seconds", round(time.time() - added_s))
    record_property("kills", killer.kills)
    record_property("cut off", log.cut_off)
    assert log.cut_off > 0, "no worker was killed in the middle of a task: nothing was proved"
    assert log.repeats() <= killer.kills
    for key in "abcd":
        lane_work.assert_in_order(log.of_key(IN_ORDER.name, key))
    for key in "ab":
        at_work = {begin.at_work for begin in log.of_key(FOUR.name, key)}
        assert 1 < max(at_work) <= FOUR.limit
        lane_work.assert_paced(log.of_key(PACED.name, key), RATE, added_s)
        lane_work.assert_in_windows(log.of_key(digest.name, key), JOBS)


def add(stack: Stack, first: int, end: int) -> None:
    """Add jobs to each key, in batches: each again until its request is answered."""
    for number in range(first, end, BATCH):
        for lane, key in KEYS:
            url = f"{stack.app.rstrip('/')}/add/{lane}/{key}/{number}/{number + BATCH}"
            until(lambda url=url: is_answered(url), TIMEOUT_S, 0.05)  # type: ignore[misc]


def is_answered(url: str) -> bool:
    try:
        return requests.get(url, timeout=30).status_code == 200
    except requests.RequestException:
        return False


def is_over(stack: Stack) -> bool:
    """Return whether no task waits any more; cron has done its part, as it does each minute."""
    stack.control("/api/v1/cron/run", {"name": "/cron/lanes/sweep"})
    return not LaneTask.query().fetch(1, keys_only=True)
