"""Flows: one thing and many steps over time, each step with one outcome for ever.

    @flow("orders", queue="orders")
    def order(step: Steps, item: str, email: str) -> str:
        stock = step.commit("reserve", reserve, item)
        step.undo_commit("release", release, stock)
        paid = step.outside("charge", charge, email, key=step.key("charge"))
        step.undo("refund", refund, paid)
        came = step.wait_for("courier", timeout_s=3 * DAY_S)
        if came is None:
            raise Reject("no courier came")
        step.sleep("to try it on", days=45)
        return paid

    order.start("A1", "boots", "ada@example.org")
    order.signal("A1", "courier", {"at": "the door"})

The code runs from its beginning in each delivery. A step has a name. One that has ended returns its
stored outcome; the first one that has not is run. Nothing else is demanded of the code: a new
version may add, drop and reorder names, as long as a name means one thing.

    commit    a function's writes, its tasks and its result are one commit: exactly once
    outside   a function that works elsewhere: at least once, with one stable key
    undo      called, the last one first, if the flow is rejected (`Reject`) or cancelled
    sleep     any length; wait_for: an event or the time-out; batch: until all tasks have ended

A flow is one row: its steps, their results (a large one in rows of its own), its events, and when
it is due. Each write of a delivery is a compare-and-set by the row's version. So an event, a
cancellation and a delivery that overlaps are never overwritten, and of a wait, its event and its
time-out one commit decides. Quick steps run one after the other in one delivery, without a task.

A call outside takes a lease of the row, for this delivery. If its worker dies, the next delivery
counts the call as in doubt, and makes it again under the same key. A flow that is cancelled
meanwhile makes the call to its end first, and then undoes it.

In a lane, by `order.start_in(BY_USER("ada"), "A1", ...)`, each delivery is a task of its key
(`turns.py`). A flow that sleeps or waits has nothing there.

Lost on failure: nothing. A wake that was lost costs a round of the sweep.
Cost: a flow starts by a write and a task, and ends by a write. A step is one write; a call outside
is one more as it begins, with the lease. A sleep or a wait is one write and one task. A flow that
waits costs nothing. A commit that reads nothing is one round trip, which flows of a process share.

Routes: POST /tasks/flows/<name>; GET /cron/flows/sweep.
Source: the Pipeline API and Fantasm of App Engine, 2010 to 2012; their successors' steps by name,
in DBOS, Restate and Inngest, 2023. Why not a replay of events as in Temporal: docs/adr/0029.
"""

from rollforward.flows.declaration import Flow, flow
from rollforward.flows.errors import (
    BadFlowError,
    BadStepError,
    FlowEndedError,
    FlowError,
    FlowRefusedError,
    StepFailedError,
    UnknownFlowError,
)
from rollforward.flows.rows.events import Event
from rollforward.flows.steps.policy import RetryPolicy
from rollforward.flows.steps.steps import Steps

__all__ = [
    "BadFlowError",
    "BadStepError",
    "Event",
    "Flow",
    "FlowEndedError",
    "FlowError",
    "FlowRefusedError",
    "RetryPolicy",
    "StepFailedError",
    "Steps",
    "UnknownFlowError",
    "flow",
]
