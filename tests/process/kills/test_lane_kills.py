"""Real processes, killed for real, with lanes: order, limit, rate and windows hold all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import requests

from rollforward.lanes.rows.entities import LaneTask
from tests.infra.runs.sampling import kills
from tests.infra.runs.soak import IS_SOAK
from tests.infra.stack import Stack, running_stack, until
from tests.process import lane_work
from tests.process.kills.lanes_app import FOUR, IN_ORDER, PACED, QUICK, RATE, digest
from tests.process.kills.test_stream_kills import Killer, clients_of

JOBS = 600 if IS_SOAK else 36  # Of a key.
BATCH = 6
KEYS = [
    *((IN_ORDER.name, key) for key in "abcd"),
    *((FOUR.name, key) for key in "ab"),
    *((PACED.name, key) for key in "ab"),
    *((digest.name, key) for key in "ab"),
]
# Their jobs have no other effect than their lines in the log.
QUICK_KEYS = [(QUICK.name, key) for key in "ab"]
KILL_EVERY_S = 1.0
# The locking emulator does the same, and takes longer.
EMULATORS = os.environ.get("PROCESS_EMULATORS", "datastore").split()
# Killed before the second half is added, and in all, at least.
KILLS_BEFORE, KILLS = 1, 3
TIMEOUT_S = 900 if IS_SOAK else 300


@kills
@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("emulator", EMULATORS)
def test_lanes_keep_their_promises_while_workers_are_killed(
    tmp_path: Path, emulator: str, record_property: Callable[[str, object], None]
) -> None:
    """K1, K2, K3, K5, K6, K8, R1, R2: kill -9 in the middle of tasks, claims and hints."""
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
        lane_work.assert_first_begins_in_order(log.of_key(QUICK.name, key), JOBS)
    assert [begin for begin in log.not_ended() if begin.key in QUICK_KEYS] == []


@kills
@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_a_worker_that_stands_still_beyond_its_claims_goes_on_with_the_job_at_work_alone(
    tmp_path: Path,
) -> None:
    """K1, K2, K3, K4: another one has its other tasks, and has begun that job once more."""
    target = "tests.process.kills.lanes_app:serve"
    with running_stack("--target", target, **{lane_work.FILES: str(tmp_path)}) as stack:
        clients = clients_of(stack)
        with clients.context():
            add(stack, 0, JOBS // 2)
            with frozen(tmp_path) as jobs:
                until(lambda: is_over(stack) or is_begun_elsewhere(tmp_path, jobs), TIMEOUT_S)
            add(stack, JOBS // 2, JOBS)
            until(lambda: is_over(stack), TIMEOUT_S)
            lane_work.assert_done_once(dict.fromkeys(KEYS, JOBS))

    assert is_begun_elsewhere(tmp_path, jobs)
    log, beside = lane_work.Log.of(tmp_path), Counter(job.key for job in jobs)
    for lane, key in [*((IN_ORDER.name, key) for key in "abcd"), *QUICK_KEYS]:
        begins = log.of_key(lane, key)
        lane_work.assert_first_begins_in_order(begins, JOBS)
        assert max(begin.at_work for begin in begins) <= 1 + beside[lane, key]
    for key in "ab":
        begins = log.of_key(FOUR.name, key)
        assert max(begin.at_work for begin in begins) <= FOUR.limit + beside[FOUR.name, key]
    assert [begin for begin in log.not_ended() if begin.key in QUICK_KEYS] == []


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[Sequence[lane_work.Begin]]:
    """Stop a worker in the middle of a job of an order meanwhile; yield the jobs that it is at."""
    ends_at = time.monotonic() + TIMEOUT_S
    while True:
        assert time.monotonic() < ends_at, "no worker was met at work"
        orders = [job for job in unended(folder) if job.key[0] == IN_ORDER.name]
        if not orders:
            continue
        pid = orders[-1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            jobs = [job for job in unended(folder) if job.pid == pid]
            if any(job.key[0] == IN_ORDER.name for job in jobs):
                yield jobs
                return
        finally:
            os.kill(pid, signal.SIGCONT)


def unended(folder: Path) -> list[lane_work.Begin]:
    try:
        return lane_work.Log.of(folder).not_ended()
    except (FileNotFoundError, ValueError):  # It is about to be written.
        return []


def is_begun_elsewhere(folder: Path, jobs: Sequence[lane_work.Begin]) -> bool:
    """Return whether another worker has begun one of the jobs in an order."""
    orders = {(job.key, job.name, job.pid) for job in jobs if job.key[0] == IN_ORDER.name}
    begins = lane_work.Log.of(folder).begins
    return any(
        (begin.key, begin.name) == (key, name) and begin.pid != pid
        for begin in begins
        for key, name, pid in orders
    )


def add(stack: Stack, first: int, end: int) -> None:
    """Add jobs to each key, in batches: each again until its request is answered."""
    for number in range(first, end, BATCH):
        for lane, key in [*KEYS, *QUICK_KEYS]:
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
