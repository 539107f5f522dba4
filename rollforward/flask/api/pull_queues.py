"""Pull queues over HTTP, so that a worker in any language can lease.

A worker proves itself by an OIDC token of the app's service account, as the task queue does; an app
that has none, since App Engine's own headers prove its queue, lets no worker in. A lease is a
signed token: it says which item, at which version, until when, and cannot be made up. Mounted where
an app has a pull queue. JSON in, JSON out; errors as of RFC 9457.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from flask import Blueprint, Flask, jsonify
from flask.typing import ResponseReturnValue
from itsdangerous import BadSignature, URLSafeSerializer

from rollforward.flask.api.json_requests import idempotency_key, reject, typed_body
from rollforward.flask.context import clients, find_part, mount_for, settings
from rollforward.flask.guards.auth import workers_only
from rollforward.pull_queues import (
    OLDEST,
    BadItemError,
    DifferentItemError,
    ItemId,
    Lease,
    PullQueue,
)
from rollforward.pull_queues.items import MAX_PAYLOAD_BYTES, MAX_TAG_CHARS
from rollforward.pull_queues.listing import MAX_ID_BYTES
from rollforward.pull_queues.pattern import PullQueues
from rollforward.pull_queues.queue import MAX_LEASE_S

bp = Blueprint("rollforward_pull_queues", __name__, url_prefix="/api/v1/pull")

# A payload of 100,000 bytes, each of which JSON may write as six.
MAX_ITEM_BODY_BYTES = 650_000
MAX_BODY_BYTES = 100_000
MAX_LEASES = 200
MAX_DELAY_S = 30 * 24 * 3600

MAX_TOKEN_CHARS = 500
_STRICT: pydantic.ConfigDict = {"extra": "forbid"}


@dataclass(frozen=True)
class ItemRequest:
    __pydantic_config__ = _STRICT
    payload: Annotated[str, pydantic.Field(max_length=MAX_PAYLOAD_BYTES)]
    tag: Annotated[str, pydantic.Field(max_length=MAX_TAG_CHARS)] | None = None
    delay_s: Annotated[float, pydantic.Field(ge=0, le=MAX_DELAY_S)] = 0.0


@dataclass(frozen=True)
class LeaseRequest:
    __pydantic_config__ = _STRICT
    limit: Annotated[int, pydantic.Field(ge=1, le=MAX_LEASES)] = 1
    lease_s: Annotated[float, pydantic.Field(ge=1, le=MAX_LEASE_S)] = 60.0
    tag: Annotated[str, pydantic.Field(max_length=MAX_TAG_CHARS)] | None = None
    oldest_tag: bool = False


@dataclass(frozen=True)
class HeldTokens:
    __pydantic_config__ = _STRICT
    tokens: Annotated[
        list[Annotated[str, pydantic.Field(max_length=MAX_TOKEN_CHARS)]],
        pydantic.Field(min_length=1, max_length=MAX_LEASES),
    ]


@dataclass(frozen=True)
class Renewal(HeldTokens):
    lease_s: Annotated[float, pydantic.Field(ge=1, le=MAX_LEASE_S)] = 60.0


@dataclass(frozen=True)
class Release(HeldTokens):
    delay_s: Annotated[float, pydantic.Field(ge=0, le=MAX_DELAY_S)] = 0.0


def register(app: Flask) -> None:
    """Mount the API, if the registry of the app has pull queues."""
    mount_for(app, bp, PullQueues.name)


@bp.post("/<name>/items")
@workers_only
def add(name: str) -> ResponseReturnValue:
    """Add an item; with an Idempotency-Key once, however often it is sent within 24 hours."""
    queue = _queue_or_404(name)
    item = typed_body(ItemRequest, MAX_ITEM_BODY_BYTES)
    try:
        id_ = queue.add(
            clients(),
            item.payload,
            tag=item.tag,
            delay_s=item.delay_s,
            idempotency_key=idempotency_key(),
        )
    except DifferentItemError:
        reject(422, "This Idempotency-Key was used for another item. Nothing was added.")
    except BadItemError as error:
        reject(400, f"Nothing was added: {error}.")
    return jsonify(id=id_), 201


@bp.post("/<name>/lease")
@workers_only
def lease(name: str) -> ResponseReturnValue:
    """Lease items; an empty list if none can be leased."""
    queue = _queue_or_404(name)
    asked = typed_body(LeaseRequest, MAX_BODY_BYTES)
    if asked.oldest_tag and asked.tag is not None:
        reject(400, "Ask for a tag or for the oldest item's, not for both.")
    tag = OLDEST if asked.oldest_tag else asked.tag
    leases = queue.lease(clients(), limit=asked.limit, lease_s=asked.lease_s, tag=tag)
    return jsonify(leases=[_shown(queue, item) for item in leases])


@bp.post("/<name>/ack")
@workers_only
def ack(name: str) -> ResponseReturnValue:
    """Delete items that are done; return which leases were lost."""
    queue = _queue_or_404(name)
    leases = _leases(queue, typed_body(HeldTokens, MAX_BODY_BYTES).tokens)
    return jsonify(lost=[lost.id for lost in queue.ack(clients(), leases)])


@bp.post("/<name>/renew")
@workers_only
def renew(name: str) -> ResponseReturnValue:
    """Lease items for longer; return the new leases of items still held."""
    queue = _queue_or_404(name)
    asked = typed_body(Renewal, MAX_BODY_BYTES)
    held = queue.renew(clients(), _leases(queue, asked.tokens), lease_s=asked.lease_s)
    return jsonify(leases=[_shown(queue, lease) for lease in held])


@bp.post("/<name>/release")
@workers_only
def release(name: str) -> ResponseReturnValue:
    """Give items back before their leases end."""
    queue = _queue_or_404(name)
    asked = typed_body(Release, MAX_BODY_BYTES)
    queue.release(clients(), _leases(queue, asked.tokens), delay_s=asked.delay_s)
    return "", 204


@bp.get("/<name>/dead-letters")
@workers_only
def dead_letters(name: str) -> ResponseReturnValue:
    """Return the hundred oldest items that reached their limit of deliveries."""
    letters = _queue_or_404(name).dead_letters()
    return jsonify(
        dead_letters=[
            {"id": item.id, "payload": item.payload, "tag": item.tag, "deliveries": item.deliveries}
            for item in letters
        ]
    )


@bp.post("/<name>/dead-letters/<id_>/replay")
@workers_only
def replay(name: str, id_: str) -> ResponseReturnValue:
    """Let a dead letter be leased again."""
    queue = _queue_or_404(name)
    if len(id_.encode()) > MAX_ID_BYTES or not queue.replay(clients(), ItemId(id_)):
        reject(404, "Dead letter not found.")
    return "", 204


def _queue_or_404(name: str) -> PullQueue:
    queue: PullQueue = find_part(PullQueues.name, name) or reject(404, "Pull queue not found.")
    return queue


def _signer(queue: PullQueue) -> URLSafeSerializer:
    return URLSafeSerializer(list(reversed(settings().secret_keys)), salt=f"pull.{queue.name}")


def _shown(queue: PullQueue, lease: Lease) -> dict[str, Any]:
    expires_at = lease.expires_at.replace(tzinfo=datetime.UTC).isoformat()
    return {
        "id": lease.id,
        "payload": lease.payload,
        "tag": lease.tag,
        "deliveries": lease.deliveries,
        "expires_at": expires_at,
        "token": _signer(queue).dumps([lease.id, lease.version, expires_at]),
    }


def _leases(queue: PullQueue, tokens: list[str]) -> list[Lease]:
    signer, leases = _signer(queue), dict[str, Lease]()
    for token in tokens:
        try:
            id_, version, expires_at = signer.loads(token)
        except BadSignature:
            reject(400, "A token is not one of this queue.")
        at = datetime.datetime.fromisoformat(expires_at).replace(tzinfo=None)
        lease = Lease(ItemId(id_), "", None, 0, at, version)
        # The newest of an item's leases counts, in any order of tokens.
        leases[id_] = max(leases.get(id_, lease), lease, key=lambda held: held.version)
    return list(leases.values())
