"""Pings of the app's queues, and when its patterns were swept last."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from rollforward.console.api.changes import ChangeRefusedError, queue_names, recorded_change
from rollforward.console.api.rows import json_response
from rollforward.flask.api.json_requests import idempotency_key
from rollforward.flask.context import clients, registry
from rollforward.operations.pings import deliveries, send_pings
from rollforward.operations.sweeps import last_sweeps
from rollforward.runtime.texts import describe_error
from rollforward.tasks.stored.names import hashed_name

MAX_ID_CHARS = 100


def send() -> ResponseReturnValue:
    """Send a ping through each queue of the app."""
    ping_id = hashed_name("ping", idempotency_key() or clients().new_id())
    queues = sorted(queue_names())
    with recorded_change("ping queues", ", ".join(queues)):
        errors = send_pings(clients(), ping_id, queues)
    return json_response(
        {
            "id": ping_id,
            "queues": [
                {"queue": queue, "error": None if error is None else describe_error(error)}
                for queue, error in errors.items()
            ],
        },
        201,
    )


def show(ping_id: str) -> ResponseReturnValue:
    """Return which queues have delivered a ping, and the last sweep that memcached knows of."""
    if len(ping_id) > MAX_ID_CHARS:
        raise ChangeRefusedError(404, "There is no such ping.")
    queues = sorted(queue_names())
    delivered = deliveries(ping_id, queues)
    swept = last_sweeps(clients(), registry().swept).values()
    return json_response(
        {
            "id": ping_id,
            "queues": [
                {"queue": queue, "delivered_after_s": delivered.get(queue)} for queue in queues
            ],
            "last_sweep": max(swept, default=None),
        }
    )
