"""Sums as an API: add to one, read one. JSON in, JSON out; errors as of RFC 9457.

The API needs no CSRF token, because it reads no cookies: any caller may call. A page elsewhere
can make a visitor's browser send a form or plain text. It can send JSON or NDJSON only after a
preflight, which we never allow. So the API refuses any body that is declared as neither, with 415.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from flask import Blueprint, jsonify, request
from flask.typing import ResponseReturnValue

from handlers.sums.openapi import DESCRIPTION, KEY_PATTERN
from pipelines.sums import reconciliation, sums
from pipelines.sums.sums import MAX_AMOUNT
from rollforward.flask.api.item_lists import item_list, reject_items
from rollforward.flask.api.json_requests import idempotency_key, json_body, reject
from rollforward.flask.api.problems import problem
from rollforward.flask.context import clients
from rollforward.fork_join import Accepted, DifferentItemError, OutcomeUnknownError

log = logging.getLogger(__name__)

bp = Blueprint("sums_api", __name__, url_prefix="/api/v1")

MAX_BODY_BYTES = 4096
MAX_BATCH_ITEMS = 1_000
MAX_BATCH_BODY_BYTES = 512 * 1024
MAX_WAIT_MS = 5000
_STRICT: pydantic.ConfigDict = {"extra": "forbid"}
# Each holds a thread while it waits. Callers beyond these get 202 at once.
MAX_WAITING = 4


@dataclass(frozen=True)
class Addition:
    """An item of a batch."""

    __pydantic_config__ = _STRICT
    amount: Annotated[int, pydantic.Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]
    key: Annotated[str, pydantic.Field(max_length=200, pattern=KEY_PATTERN)] = ""  # "": none.


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
        reject(422, "This Idempotency-Key was used with another body before. Nothing was added.")
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


@bp.post("/sums/<name>/batch")
def add_batch(name: str) -> ResponseReturnValue:
    """Add up to 1,000 amounts; respond for each, once they are safe.

    Without keys of their own all are added or none, by one commit, and an Idempotency-Key is of the
    whole batch. With keys of their own each is answered for itself.
    """
    additions = item_list(Addition, max_items=MAX_BATCH_ITEMS, max_bytes=MAX_BATCH_BODY_BYTES)
    key = idempotency_key()
    has_keys = _have_keys(additions)
    if has_keys and key is not None:
        reject(400, "Send an Idempotency-Key for all items, or a key with each, not both.")
    _sum_or_404(name)
    if has_keys:
        return _each(name, additions)
    amounts = [addition.amount for addition in additions]
    try:
        accepted = sums.add_batch(clients(), name, amounts, idempotency_key=key)
    except DifferentItemError:
        reject(422, "This Idempotency-Key was used with another body before. Nothing was added.")
    except OutcomeUnknownError:
        return _outcome_unknown(key)
    return jsonify(sum=name, accepted=len(accepted), items=[_shown(item) for item in accepted]), 202


def _have_keys(additions: list[Addition]) -> bool:
    """Return whether all additions have keys; end the request with 400 if only some of them have.

    After a lost reply a caller sends the whole batch again, and an item without a key counts twice.
    """
    without = [line for line, addition in enumerate(additions, 1) if not addition.key]
    if without and len(without) < len(additions):
        detail = "key: Send a key with each item, or with none."
        reject_items([{"line": line, "detail": detail} for line in without])
    return not without


def _each(name: str, additions: list[Addition]) -> ResponseReturnValue:
    """Add amounts that have keys; respond with 207 if some of them were not accepted."""
    pairs = [(addition.amount, addition.key) for addition in additions]
    items = [_shown(answer) for answer in sums.add_each(clients(), name, pairs)]
    accepted = sum(item["accepted"] for item in items)
    if not accepted and any(item["status"] == 503 for item in items):
        return problem(503, "Datastore did not confirm the batch. Send the same batch again.")
    status = 202 if accepted == len(items) else 207
    return jsonify(sum=name, accepted=accepted, items=items), status


def _shown(answer: Accepted | Exception) -> dict[str, Any]:
    """Return the answer of an item, whatever it is: others of its batch may be accepted."""
    match answer:
        case Accepted():
            ref = f"{answer.pack}#{answer.position}"
            return {"accepted": True, "repeat": answer.is_duplicate, "ref": ref}
        case DifferentItemError():
            status, detail = 422, "Its key was used for another one."
        case OutcomeUnknownError():
            status, detail = 503, "It may count. Sent again with its key, it counts once."
        case _:
            log.error("An item of a batch was not accepted.", exc_info=answer)
            status, detail = 500, "It was not accepted."
    return {"accepted": False, "status": status, "detail": detail}


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
    detail = "Datastore did not confirm the write. "
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
        reject(400, 'The body is an object like {"amount": 5}.')
    unknown_fields = sorted(set(body) - {"amount"})
    if unknown_fields:
        reject(400, f"The body has an amount and nothing else, not {unknown_fields[0]!r:.50}.")
    amount = body.get("amount")
    if type(amount) is not int:  # A bool is an int to isinstance, and none to a caller.
        reject(400, "amount must be a whole number.")
    if not -MAX_AMOUNT <= amount <= MAX_AMOUNT:
        reject(400, f"amount lies from {-MAX_AMOUNT} to {MAX_AMOUNT}.")
    return amount


def _wait_ms() -> int | None:
    text = request.args.get("wait_ms")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MAX_WAIT_MS:
        reject(400, f"wait_ms is a whole number from 0 to {MAX_WAIT_MS}.")
    return int(text)


def _sum_or_404(name: str) -> None:
    if not sums.exists(clients(), name):
        reject(404, "There is no such sum. Create it on the page /sums.")
