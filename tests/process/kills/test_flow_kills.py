"""Real processes, killed for real, between any two steps of a flow and within each of them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import requests
from google.cloud.ndb import get_context

from rollforward.flows.reading import FlowState
from tests.infra.runs.sampling import IS_SAMPLED, kills, sample
from tests.infra.runs.soak import IS_SOAK
from tests.infra.stack import Stack, running_stack, until
from tests.process import flow_work
from tests.process.flow_work import Begin, FlowStepCounts
from tests.process.kills.flows_app import BACKWARDS, PAST, PLACES, killed, place_of
from tests.process.kills.test_stream_kills import clients_of

ROUNDS = 10 if IS_SOAK else 1  # Flows of each place.
NUMBERS: Sequence[int] = range(ROUNDS * len(PLACES))
if IS_SAMPLED:  # A third of the places: a worker that dies is followed by another for seconds.
    NUMBERS = sample("deaths of flows", NUMBERS, 3)
# The locking emulator does the same, and takes longer.
EMULATORS = os.environ.get("PROCESS_EMULATORS", "datastore").split()
TIMEOUT_S = 900 if IS_SOAK else 400


@kills
@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("emulator", EMULATORS)
def test_no_step_that_has_ended_runs_again_wherever_a_worker_dies(
    tmp_path: Path, emulator: str, record_property: Callable[[str, object], None]
) -> None:
    """W2, W5, W13: kill -9 before, in and behind each step; each has had its effect once."""
    environment = {"DATASTORE_EMULATOR": emulator, flow_work.FILES: str(tmp_path)}
    target = "tests.process.kills.flows_app:serve"
    with running_stack("--target", target, **environment) as stack:
        for number in NUMBERS:
            ask(stack, f"start/{number}")
            ask(stack, f"signal/{number}/{'refuses' if is_rejected(number) else 'takes'}")
        with clients_of(stack).context():
            until(lambda: are_over(stack), TIMEOUT_S)
            states = {str(number): killed.state(str(number)) for number in NUMBERS}
            counts = {flow_id: FlowStepCounts.get_by_id(flow_id).counts for flow_id in states}

    log = defaultdict[str, list[Begin]](list)
    for line in flow_work.begins(tmp_path):
        log[line.flow_id].append(line)
    doubts = 0
    for flow_id, state in states.items():
        assert (tmp_path / f"death of {flow_id}").exists(), f"nobody died {place_of(flow_id)}"
        assert_no_call_behind_its_end(log[flow_id])
        calls = [line for line in log[flow_id] if line.version != PAST]
        doubts += flow_work.assert_done_once(state, calls, counts[flow_id])
        assert_ended(state, int(flow_id))
    record_property("in doubt", doubts)
    assert doubts >= len([number for number in NUMBERS if place_of(str(number)) in CALLS])


# Who dies there is known to have begun a call, and no more.
CALLS = ("in charge", "in label", "in refund")


def is_rejected(number: int) -> bool:
    return place_of(str(number)) in BACKWARDS


def ask(stack: Stack, path: str) -> None:
    """Ask again until a worker answers."""
    url = f"{stack.app.rstrip('/')}/{path}"
    until(lambda: is_answered(url), TIMEOUT_S, 0.05)


def is_answered(url: str) -> bool:
    try:
        return requests.get(url, timeout=30).status_code == 200
    except requests.RequestException:
        return False


def are_over(stack: Stack) -> bool:
    """Return whether each flow has ended; cron has done its part, as it does each minute."""
    stack.control("/api/v1/cron/run", {"name": "/cron/flows/sweep"})
    get_context().cache.clear()  # Of this process, which is no request.
    states = [killed.state(str(number)) for number in NUMBERS]
    assert [state.reason for state in states if state.state == "failed"] == []
    return all(state.ended is not None for state in states)


def assert_no_call_behind_its_end(log: list[Begin]) -> None:
    """No call has begun when the code had come past its step."""
    ended: set[str] = set()
    for line in log:
        if line.version == PAST:
            ended.add(line.name)
        else:
            assert line.name not in ended, log


def assert_ended(state: FlowState, number: int) -> None:
    """A flow has ended as it is to; what it had done is undone, unless it has succeeded."""
    undone = {"refund", "release"}
    if is_rejected(number):
        assert (state.state, undone - state.steps.keys()) == ("rejected", set()), state
        assert not state.steps.keys() & {"ship", "label"}, state
    else:
        assert (state.state, state.result) == ("succeeded", "2 mails"), state
        assert not state.steps.keys() & undone, state
    assert state.unread == [], state
