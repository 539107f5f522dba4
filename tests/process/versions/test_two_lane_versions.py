"""Two versions of lanes on one store, rolled forward and back under load, as real processes.

Their settings differ, and tasks of both wait all the time. Workers are killed, and at the end the
whole instance of the first version with the claims that it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from rollforward.lanes.rows.entities import LaneTask
from tests.infra.runs.sampling import kills
from tests.infra.stack import until
from tests.process import lane_work
from tests.process.versions import second_office as office
from tests.process.versions.deployment import Deployment, deployed

# The shares of the first version: rolled forward, back, and forward again.
SHARES = (1, 0.5, 0, 0.5, 1, 0.5)
KILLED_AT = {1: "first", 3: "second"}
BATCH = 5  # Jobs for each key in each phase.
JOBS = BATCH * len(SHARES)
LATE_JOBS = 20  # Added when only the second version serves.
KNOWN = (office.LETTERS, office.PARCELS, office.STAMPS, office.BILLS, office.digest)
KEYS = [(lane.name, key) for lane in KNOWN for key in ("ada", "bob")]
LATE_KEYS = [(lane.name, "late") for lane in (*KNOWN, office.NEWS)]
NEWS = (office.NEWS.name, "ada")
TIMEOUT_S = 120.0

pytestmark = [pytest.mark.process, kills]


@pytest.fixture
def deployment(
    tmp_path: Path, datastore_address: Callable[[str], str], memcached_address: str | None
) -> Iterator[Deployment]:
    targets = {
        version: f"tests.process.versions.{version}_office:serve()"
        for version in ("first", "second")
    }
    files = {lane_work.FILES: str(tmp_path)}
    address = datastore_address("datastore")
    with deployed(Deployment, tmp_path, targets, address, memcached_address, **files) as started:
        yield started


@pytest.mark.timeout(300)
def test_lanes_are_rolled_forward_and_back_under_load(
    deployment: Deployment, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """K1, K2, K3, K8, K11, R1, R10: nothing is lost, doubled, dead or stuck."""
    news, waiting = 0, []
    for phase, share in enumerate(SHARES):
        waiting.append(len(LaneTask.query().fetch(500, keys_only=True)))
        deployment.router.split(first=share, second=1 - share)
        if phase in KILLED_AT:
            deployment.kill_worker(KILLED_AT[phase])
        for lane, key in KEYS:
            add(deployment, lane, key, phase * BATCH, (phase + 1) * BATCH)
        # While both serve, the one that does not know the lane has added nothing.
        if share == 0:
            add(deployment, *NEWS, 0, BATCH)
            news += BATCH

    deployment.router.split(first=0, second=1)
    deployment.kill_instance("first")
    late_s = time.time()
    for lane, key in LATE_KEYS:
        add(deployment, lane, key, 0, LATE_JOBS)
    until(lambda: is_over(deployment), TIMEOUT_S)

    record_property("waiting", waiting)
    assert any(waiting), "no task waited when the version changed: nothing was proved"
    late = dict.fromkeys(LATE_KEYS, LATE_JOBS)
    lane_work.assert_done_once({**dict.fromkeys(KEYS, JOBS), NEWS: news, **late})
    log = lane_work.Log.of(tmp_path)
    record_property("cut off", log.cut_off)
    for key in ("ada", "bob"):
        lane_work.assert_in_order(log.of_key(office.LETTERS.name, key))
        lane_work.assert_in_windows(log.of_key(office.digest.name, key), JOBS)
        assert {begin.at_work for begin in log.of_key(office.PARCELS.name, key)} <= {1, 2, 3, 4}
        assert {begin.at_work for begin in log.of_key(office.STAMPS.name, key)} <= {1, 2}
    lane_work.assert_in_order(log.of_key(*NEWS))
    for ordered in (office.LETTERS, office.STAMPS, office.NEWS):
        lane_work.assert_in_order(log.of_key(ordered.name, "late"))
    assert {begin.at_work for begin in log.of_key(office.PARCELS.name, "late")} == {1}
    lane_work.assert_paced(log.of_key(office.BILLS.name, "late"), office.RATE, late_s)
    lane_work.assert_in_windows(log.of_key(office.digest.name, "late"), LATE_JOBS)


def add(deployment: Deployment, lane: str, key: str, first: int, end: int) -> None:
    """Add jobs to a key, again until a version answers."""
    url = f"{deployment.router.url}/add/{lane}/{key}/{first}/{end}"
    until(lambda: is_added(url), TIMEOUT_S, 0.05)


def is_added(url: str) -> bool:
    answer = requests.get(url, timeout=30)
    assert answer.text != "unknown"
    return answer.status_code == 200


def is_over(deployment: Deployment) -> bool:
    """Return whether no task waits any more; cron has done its part, as it does each minute."""
    deployment.run_waiting()
    deployment.sweep()
    return not LaneTask.query().fetch(1, keys_only=True)
