"""One commit of increments: their receipts and their shards, all of it or nothing.

There are two ways, and both raise the same errors:

one round trip    receipts are inserted and shards incremented by the service; nothing is read
two round trips   shards are read with their versions; the commit inserts the receipts, and writes
                  the shards if none has changed since

A process tests the service once, when it starts or with its first increment. Both ways may be
mixed, since each sees the writes of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as rpc_errors

from rollforward.counters.entities import CounterReceipt
from rollforward.counters.increments import RECEIPTS_FOR, IncrementRequest
from rollforward.datastore.expiry import expiry
from rollforward.datastore.increments import (
    PROBES,
    Increment,
    insert_and_increment,
    supports_increments,
)
from rollforward.datastore.versions import commit_if_current, read_versions
from rollforward.runtime import Clients, naive_utc

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """One commit: all of it took effect, or nothing."""

    id: str
    members: Sequence[int]  # Of its group, by their places.
    deltas: Mapping[Any, int]  # By the keys of shards.
    receipts: Sequence[CounterReceipt]

    def matches(self, receipt: CounterReceipt | None) -> bool:
        """Return whether a receipt was committed by this attempt."""
        return receipt is not None and receipt.commit == self.id


def receipt_of(
    clients: Clients, declaration: str, request: IncrementRequest, commit: str
) -> CounterReceipt:
    """Return the receipt of a request that has an idempotency key."""
    key = request.receipt_key(declaration)
    expires_at = naive_utc(clients.clock.now()) + RECEIPTS_FOR + timedelta(hours=1)
    expires = expiry(key.id(), expires_at)
    return CounterReceipt(key=key, commit=commit, digest=request.digest, expires=expires)


def write(clients: Clients, attempt: Attempt) -> None:
    """Commit an attempt.

    Raises:
        google.api_core.exceptions.AlreadyExists: a receipt exists; nothing was written.
        google.api_core.exceptions.NotFound: a shard does not exist; nothing was written.
        google.api_core.exceptions.Aborted: a race was lost; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: it may have been written all the same.
    """
    if has_increments(clients):
        grown = [Increment(key, "count", delta) for key, delta in attempt.deltas.items()]
        insert_and_increment(clients.datastore, attempt.receipts, grown)
    else:
        _write_if_current(clients, attempt)


def has_increments(clients: Clients) -> bool:
    """Return whether the service has increments; a process tests it once.

    If it does not answer, this commit takes two round trips, and the next one tests again.
    """
    memory: dict[str, bool] = clients.process_state.get_or_create("counters:increments", dict)
    if "is_supported" not in memory:
        try:
            probe_number = clients.random.randrange(PROBES)
            memory["is_supported"] = supports_increments(clients.datastore, probe_number)
        except rpc_errors.GoogleAPIError as error:
            log.warning("increments read their shards until the service answers: %s", error)
            return False
    return memory["is_supported"]


def _write_if_current(clients: Clients, attempt: Attempt) -> None:
    shards = read_versions(clients.datastore, list(attempt.deltas))
    existing = [shard for shard in shards if shard is not None]
    if len(existing) < len(shards):
        raise rpc_errors.NotFound("a shard was drained")  # type: ignore[no-untyped-call]
    for (shard, _), delta in zip(existing, attempt.deltas.values(), strict=True):
        shard.count += delta
    receipts = [(receipt, None) for receipt in attempt.receipts]
    try:
        commit_if_current(clients.datastore, puts=[*existing, *receipts])
    except rpc_errors.FailedPrecondition as changed:
        raise rpc_errors.Aborted("a race was lost") from changed  # type: ignore[no-untyped-call]
