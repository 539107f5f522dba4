"""A flow of orders, version 2. What has changed since version 1, in one deployment:

insure, uninsure    are new, and come before all that is outside
pack                comes before charge, and before the sleep
stamp               is dropped
label               comes after ship
"""

from __future__ import annotations

from flask import Flask

from rollforward.flows import RetryPolicy, Steps, flow
from rollforward.tasks.errors import Reject
from tests.process import flow_work
from tests.process.flow_work import call, count

VERSION = "second"


@flow(flow_work.NAME, retries=RetryPolicy(attempts=20, longest_s=2))
def order(step: Steps, number: int) -> str:
    """Insure, reserve, pack, charge and ship an order; undo it if its courier says so."""
    flow_id = step.flow_id
    step.outside("insure", call, VERSION, flow_id, "insure", step.key("insure"))
    step.undo("uninsure", call, VERSION, flow_id, "uninsure", step.key("uninsure"))
    step.commit("reserve", count, flow_id, "reserve")
    step.undo_commit("release", count, flow_id, "release")
    step.outside("pack", call, VERSION, flow_id, "pack", step.key("pack"))
    step.undo("unpack", call, VERSION, flow_id, "unpack", step.key("unpack"))
    key = step.key("charge")
    step.outside("charge", call, VERSION, flow_id, "charge", key)
    step.undo("refund", call, VERSION, flow_id, "refund", key)
    step.sleep("a while", seconds=0.3)
    event = step.wait_for("courier", timeout_s=3600.0)
    if event is None or event.payload != "takes":
        raise Reject("no courier takes it")
    step.commit("ship", count, flow_id, "ship")
    step.outside("label", call, VERSION, flow_id, "label", step.key("label"))
    return "shipped"


def serve() -> Flask:
    return flow_work.serve(order)
