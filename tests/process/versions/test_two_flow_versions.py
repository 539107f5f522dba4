"""Two versions of a flow on one store, rolled forward and back under load, as real processes.

Steps of theirs are added, dropped and in another order. Workers are killed, and at the end the
whole instance of the first version. A cancelled flow whose calls are behind one that never began,
in the code at work, waits for a person, who retries it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from google.cloud.ndb import get_context

from rollforward.flows.reading import FlowState
from tests.infra.runs.sampling import kills
from tests.infra.stack import until
from tests.process import flow_work
from tests.process.flow_work import Begin, FlowStepCounts
from tests.process.servers import THREADS
from tests.process.versions.deployment import Deployment, deployed
from tests.process.versions.second_orders import order

# The shares of the first version: rolled forward, back, and forward again.
SHARES = (1, 0.5, 0, 0.5, 1, 0.5, 0)
KILLED_AT = {1: "first", 3: "second"}
BATCH = 12  # Flows that are started in each phase.
# Of each six flows: one is rejected by its courier, and one is cancelled.
ENDS = ("succeeded", "succeeded", "succeeded", "succeeded", "rejected", "cancelled")
PATH = f"/tasks/flows/{flow_work.NAME}"
CUT_OFF = (len(KILLED_AT) + 1) * THREADS  # Calls that killed workers may have had.
TIMEOUT_S = 150.0

pytestmark = [pytest.mark.process, kills]


@pytest.fixture
def deployment(
    tmp_path: Path, datastore_address: Callable[[str], str], memcached_address: str | None
) -> Iterator[Deployment]:
    targets = {
        version: f"tests.process.versions.{version}_orders:serve()"
        for version in ("first", "second")
    }
    files = {flow_work.FILES: str(tmp_path)}
    address = datastore_address("datastore")
    with deployed(Deployment, tmp_path, targets, address, memcached_address, **files) as started:
        yield started


@pytest.mark.timeout(300)
def test_flows_are_rolled_forward_and_back_under_load(
    deployment: Deployment, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """W20: each flow ends as it is to, and each of its steps has had its effect once."""
    for phase, share in enumerate(SHARES):
        deployment.router.split(first=share, second=1 - share)
        for number in range(phase * BATCH, (phase + 1) * BATCH):
            ask(deployment, f"start/{number}")
        if phase in KILLED_AT:
            deployment.kill_worker(KILLED_AT[phase])
        # The flows of the phase before have come to their couriers meanwhile, or have not.
        for number in range(max(0, phase - 1) * BATCH, phase * BATCH):
            end(deployment, number)

    deployment.kill_instance("first")
    last = range((len(SHARES) - 1) * BATCH, len(SHARES) * BATCH)
    for number in last:
        end(deployment, number)
    numbers = range(len(SHARES) * BATCH)
    retried: Counter[str] = Counter()
    until(lambda: are_over(deployment, numbers, retried), TIMEOUT_S)

    calls = defaultdict[str, list[Begin]](list)
    for begin in flow_work.begins(tmp_path):
        calls[begin.flow_id].append(begin)
    doubts = 0
    for number in numbers:
        state, flow_id = order.state(str(number)), str(number)
        row = FlowStepCounts.get_by_id(flow_id)
        doubts += flow_work.assert_done_once(state, calls[flow_id], row.counts if row else {})
        assert_ended(state, ENDS[number % len(ENDS)])
    record_property("in doubt", doubts)
    record_property("retried", len(retried))
    assert doubts <= CUT_OFF
    assert_mixed(deployment, calls)


def ask(deployment: Deployment, path: str) -> None:
    """Ask again until a version answers."""
    url = f"{deployment.router.url}/{path}"
    until(lambda: requests.get(url, timeout=30).status_code == 200, TIMEOUT_S, 0.05)


def end(deployment: Deployment, number: int) -> None:
    """Let a flow's courier come, or cancel it."""
    match ENDS[number % len(ENDS)]:
        case "succeeded":
            ask(deployment, f"signal/{number}/takes")
        case "rejected":
            ask(deployment, f"signal/{number}/refuses")
        case _:
            ask(deployment, f"cancel/{number}")


def are_over(deployment: Deployment, numbers: range, retried: Counter[str]) -> bool:
    """Return whether each flow has ended; cron and a person do their parts."""
    deployment.sweep()
    get_context().cache.clear()  # Of this process, which is no request.
    states = [order.state(str(number)) for number in numbers]
    for state in states:
        if state.state == "failed":
            assert "may have taken effect" in state.reason, state.reason
            retried[state.flow_id] += 1
            ask(deployment, f"retry/{state.flow_id}/r{retried[state.flow_id]}")
    return all(state.ended is not None for state in states)


def assert_ended(state: FlowState, expected: str) -> None:
    """A flow has ended as it is to; what it had done is undone, unless it has succeeded."""
    assert (state.state, state.unread) == (expected, []), state
    done = state.steps.keys()
    if expected == "succeeded":
        assert state.result == "shipped"
        assert {"reserve", "charge", "pack", "courier", "ship", "label"} <= done
        assert not done & {"release", "refund", "unpack", "uninsure"}
    else:
        assert not done & {"ship", "label", "stamp"}
        for name, undo in (
            ("reserve", "release"),
            ("charge", "refund"),
            ("pack", "unpack"),
            ("insure", "uninsure"),
        ):
            assert (name in done) == (undo in done), (state, name)


def assert_mixed(deployment: Deployment, calls: dict[str, list[Begin]]) -> None:
    """Both versions have worked, also on one flow, and in either order: else nothing is proved."""
    at_work = {one.version for one in deployment.router.deliveries if one.path == PATH}
    assert at_work == {"first", "second"}
    assert any(len({begin.version for begin in begun}) == 2 for begun in calls.values())
    orders = {
        tuple(begin.name for begin in begun if begin.name in ("pack", "charge"))
        for begun in calls.values()
    }
    assert {("pack", "charge"), ("charge", "pack")} <= orders
