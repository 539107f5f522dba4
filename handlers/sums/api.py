"""Sums as an API: add to one, read one. JSON in, JSON out; errors as of RFC 9457.

The API needs no CSRF token, because it reads no cookies: any caller may call. A page elsewhere
can make a visitor's browser send a form or plain text. It can send JSON only after a preflight,
which we never allow. So the API refuses any body that is not declared as JSON, with 415.
"""

from __future__ import annotations

import re
import threading

from flask import Blueprint, jsonify, request
from flask.typing import ResponseReturnValue

from handlers.sums.openapi import DESCRIPTION
from pipelines.sums import reconciliation, sums
from pipelines.sums.sums import MAX_AMOUNT
from rollforward.flask.api.json_requests import idempotency_key, json_body, refuse
from rollforward.flask.api.problems import problem
from rollforward.flask.context import clients
from rollforward.fork_join import Accepted, DifferentItemError, OutcomeUnknownError

bp = Blueprint("sums_api", __name__, url_prefix="/api/v1")

MAX_BODY_BYTES = 4096
MAX_WAIT_MS = 5000
# Each holds a thread while it waits. Callers beyond these get 202 at once.
MAX_WAITING = 4


@bp.get("/openapi.json")
def openapi() -> ResponseReturnValue:
    """Describe this API."""
    return jsonify(DESCRIPTION)


@bp.get("/sums/<name>")
def read(name: str) -> ResponseReturnValue:
    """Return a sum: its total, and what still waits to be added."""
    _sum_or_404(name)
    status = reconciliation.status(name)
    return jsonify(
        sum=name,
        total=status.folded.amount,
        items=status.folded.items,
        batches=status.batches,
        waiting=status.waiting,
    )


@bp.post("/sums/<name>")
def add(name: str) -> ResponseReturnValue:
    """Add to a sum; respond once the addition is safe, or, if asked, once it is folded."""
    amount = _amount()
    key, wait_ms = idempotency_key(), _wait_ms()
    _sum_or_404(name)
    try:
        accepted = sums.add(clients(), name, amount, idempotency_key=key, keep_result=bool(wait_ms))
    except DifferentItemError:
        refuse(422, "This Idempotency-Key was used with another body before. Nothing was added.")
    except OutcomeUnknownError:
        return _outcome_unknown(key)
    response = {
        "sum": name,
        "accepted": True,
        "repeat": accepted.is_duplicate,
        "ref": f"{accepted.pack}#{accepted.position}",
    }
    total = _wait(accepted, name, wait_ms) if wait_ms else None
    if total is None:
        return jsonify(response), 202
    return jsonify(response | {"total": total})


def _wait(accepted: Accepted, name: str, wait_ms: int) -> int | None:
    """Return the total after an addition; None: it is not folded in time."""
    slots = clients().process_state.get_or_create(
        "sums:waiting", lambda: threading.Semaphore(MAX_WAITING)
    )
    if not slots.acquire(blocking=False):
        return None
    try:
        outcome, total = sums.outcome(clients(), accepted, wait_ms / 1000, name)
    finally:
        slots.release()
    return total if outcome.is_folded else None


def _outcome_unknown(key: str | None) -> ResponseReturnValue:
    detail = "Datastore did not take it, or did not say so. "
    detail += (
        "Send it again with the same Idempotency-Key: it counts once."
        if key is not None
        else "Without an Idempotency-Key it may count or not, and sent again it may count twice."
    )
    return problem(503, detail)


# What a request holds


def _amount() -> int:
    """Return the amount in a body that holds an amount and nothing else."""
    body = json_body(MAX_BODY_BYTES)
    if not isinstance(body, dict):
        refuse(400, 'The body is an object like {"amount": 5}.')
    unknown_fields = sorted(set(body) - {"amount"})
    if unknown_fields:
        refuse(400, f"The body has an amount and nothing else, not {unknown_fields[0]!r:.50}.")
    amount = body.get("amount")
    if type(amount) is not int:  # A bool is an int to isinstance, and none to a caller.
        refuse(400, "amount is missing, or is no whole number.")
    if not -MAX_AMOUNT <= amount <= MAX_AMOUNT:
        refuse(400, f"amount lies from {-MAX_AMOUNT} to {MAX_AMOUNT}.")
    return amount


def _wait_ms() -> int | None:
    text = request.args.get("wait_ms")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MAX_WAIT_MS:
        refuse(400, f"wait_ms is a whole number from 0 to {MAX_WAIT_MS}.")
    return int(text)


def _sum_or_404(name: str) -> None:
    if not sums.exists(clients(), name):
        refuse(404, "There is no such sum. The page /sums makes one.")
