"""An app whose workers kill themselves between the steps of its flows, and within them.

Each flow has a place, by its number, at which the first worker that comes there dies by SIGKILL: in
front of its first step, behind each step, and within each function of one. Each place is a flow's
own, so no place is left to chance. Their queue delivers few at a time: a death is one of all tasks
that the worker has, and a task has a number of deaths.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flask import Flask

from rollforward.flows import RetryPolicy, Steps, flow
from rollforward.tasks import task
from rollforward.tasks.errors import Reject
from tests.process import flow_work

CODE, PAST = "code", "past"  # In the log, in the place of a version: a call began, or has ended.

FORWARDS = (
    *("before all", "in reserve", "past reserve", "in charge", "past charge", "past a while"),
    *("past courier", "in mail", "past mails", "in ship", "past ship", "in label", "past label"),
)
BACKWARDS = ("before the undos", "in refund", "in release")
PLACES = (*FORWARDS, *BACKWARDS)


def place_of(flow_id: str) -> str:
    """Return the place at which a flow's first worker dies."""
    return PLACES[int(flow_id) % len(PLACES)]


def reach(flow_id: str, place: str) -> None:
    """Let this process die, if it is the first one that comes to the place of a flow."""
    if place == place_of(flow_id):
        death = Path(os.environ[flow_work.FILES]) / f"death of {flow_id}"
        try:
            death.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def past(flow_id: str, name: str) -> None:
    """Note that a step has ended, and come to the place behind it."""
    flow_work.note(PAST, flow_id, name, "")
    reach(flow_id, f"past {name}")


def count(flow_id: str, name: str) -> int:
    """Count a step in its commit, which the worker may not come to."""
    counted = flow_work.count(flow_id, name)
    reach(flow_id, f"in {name}")
    return counted


def call(flow_id: str, name: str, key: str) -> None:
    """Work outside; the worker may die when that has had its effect."""
    flow_work.call(CODE, flow_id, name, key)
    reach(flow_id, f"in {name}")


@task("/tasks/tests/killed-flow-mail", queue="default")
def mail(flow_id: str, number: int) -> int:
    """Do one of the tasks of a batch; return its number."""
    reach(flow_id, "in mail")
    return number


@flow("killed", queue="default", members=[mail], retries=RetryPolicy(attempts=50, longest_s=2))
def killed(step: Steps, number: int) -> str:
    """Go through each kind of step, and back if the courier refuses."""
    flow_id = step.flow_id
    reach(flow_id, "before all")
    step.commit("reserve", count, flow_id, "reserve")
    step.undo_commit("release", count, flow_id, "release")
    past(flow_id, "reserve")
    step.outside("charge", call, flow_id, "charge", step.key("charge"))
    step.undo("refund", call, flow_id, "refund", step.key("refund"))
    past(flow_id, "charge")
    step.sleep("a while", seconds=0.2)
    past(flow_id, "a while")
    event = step.wait_for("courier", timeout_s=3600.0)
    past(flow_id, "courier")
    sent = step.batch("mails", [(mail, mail.bind(flow_id, n)) for n in range(2)])
    past(flow_id, "mails")
    if event is None or event.payload != "takes":
        reach(flow_id, "before the undos")
        raise Reject("no courier takes it")
    step.commit("ship", count, flow_id, "ship")
    past(flow_id, "ship")
    step.outside("label", call, flow_id, "label", step.key("label"))
    past(flow_id, "label")
    return f"{sent.done} mails"


def serve() -> Flask:
    return flow_work.serve(killed, mail)
