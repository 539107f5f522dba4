"""Sums: the talk's example of a fork-join queue.

Many callers add to the same few sums, many times a second. A row that each addition writes itself
is a traffic jam; here it is written once per batch.

pipelines/sums/reconciliation.py compares accepted items with folded, waiting and parked ones.

Lost on failure: no accepted item.
Cost of an item: 1 write, 1 delete, and its share of the fold; 1 write more with an idempotency key.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Literal

import pydantic
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from models.sums import (
    Sum,
    SumAddition,
    SumDirectory,
    SumTally,
    addition_key,
    directory_key,
    sum_key,
    tally_key,
)
from pipelines.sums.tally_buffer import TALLY_SHARDS, tally_buffer
from rollforward.datastore import transact
from rollforward.datastore.expiry import expired, expiry
from rollforward.datastore.partitions import PARTITIONS
from rollforward.fork_join import Accepted, Batch, ItemStatus, fork_join
from rollforward.runtime import Clients, naive_utc

log = logging.getLogger(__name__)

MAX_AMOUNT = 10**9
MAX_RECENT = 40
# Target latency from an addition to its fold; it determines the size of the batches.
LATENCY_S = 1.5
MAX_SUMS = 50
NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")

# Within this time a repeated form counts once.
FORMS_FOR = timedelta(days=2)
MAX_FORMS_DELETED = 100


class TooManySumsError(ValueError):
    """The limit of sums is reached."""


@dataclass(frozen=True)
class Add:
    """An addition to a sum."""

    amount: Annotated[int, pydantic.Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]
    via: Literal["api"] | None = field(default=None, compare=False)  # Never set by a caller.


@dataclass(frozen=True)
class Count:
    """A number of items, and their total amount."""

    items: int = 0
    amount: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.items + other.items, self.amount + other.amount)


def count_of(items: Sequence[Add], via: str | None = None) -> Count:
    """Count items, or only the items of one way in."""
    amounts = [item.amount for item in items if via in (None, item.via)]
    return Count(len(amounts), sum(amounts))


@fork_join("sums", queue="fork-join", period_s=1.0, shards=4, target_latency_s=LATENCY_S)
def add_up(clients: Clients, batch: Batch, items: Sequence[Add]) -> Sequence[int]:
    """Add a batch to its sum; return the sum after each item."""
    folded_at = naive_utc(clients.clock.now())
    row = sum_key(batch.key).get() or Sum(key=sum_key(batch.key), created=folded_at)
    totals = []
    for item in items:
        row.total += item.amount
        totals.append(row.total)
    by_api = count_of(items, via="api")
    row.items += len(items)
    row.api_items, row.api_amount = row.api_items + by_api.items, row.api_amount + by_api.amount
    row.batches += 1
    folded = {
        "epoch": batch.epoch,
        "items": len(items),
        "opened": batch.opened.isoformat(),
        "folded": folded_at.isoformat(),
    }
    row.recent = [folded, *(row.recent or [])][:MAX_RECENT]
    row.put()
    return totals


# The directory


def create(name: str) -> bool:
    """Create a sum; return False if there is one of this name.

    Raises:
        TooManySumsError: the limit is reached.
    """

    def body() -> bool:
        directory = directory_key().get() or SumDirectory(key=directory_key(), names=[])
        if name in directory.names:
            return False
        if len(directory.names) >= MAX_SUMS:
            raise TooManySumsError(
                f"the number of sums must be at most {MAX_SUMS}, got {len(directory.names) + 1}"
            )
        directory.names = sorted([*directory.names, name])
        directory.put()
        return True

    return transact(body)


def names() -> list[str]:
    """Return the names of all sums."""
    directory = directory_key().get()
    return list(directory.names) if directory else []


def exists(clients: Clients, name: str) -> bool:
    """Return whether there is a sum of this name; a process reads each name once."""
    known_names: set[str] = clients.process_state.get_or_create("sums:names", set)
    if name not in known_names and NAME.fullmatch(name):
        known_names.update(names())
    return name in known_names


def listed() -> list[tuple[str, Sum | None]]:
    """Return all sums by name; None: nothing is folded into this one yet."""
    sum_names = names()
    return list(zip(sum_names, ndb.get_multi([sum_key(name) for name in sum_names]), strict=True))


# Additions


def add(
    clients: Clients,
    name: str,
    amount: int,
    *,
    idempotency_key: str | None,
    keep_result: bool = False,
) -> Accepted:
    """Add to a sum, as the API does; it raises the errors of `insert`."""
    scoped_key = _scoped(idempotency_key)
    item = Add(amount, via="api")
    accepted = add_up.insert(
        clients, name, item, idempotency_key=scoped_key, keep_result=keep_result
    )
    if not accepted.is_duplicate:
        tally_buffer(clients).count(name, amount)
    return accepted


def add_batch(
    clients: Clients, name: str, amounts: Sequence[int], *, idempotency_key: str | None
) -> list[Accepted]:
    """Add amounts to a sum, all or none; it raises the errors of `insert_batch`."""
    items = [Add(amount, via="api") for amount in amounts]
    scoped_key = _scoped(idempotency_key)
    accepted = add_up.insert_batch(clients, name, items, idempotency_key=scoped_key)
    if not accepted[0].is_duplicate:
        tally_buffer(clients).count(name, sum(amounts), len(amounts))
    return accepted


def add_each(
    clients: Clients, name: str, additions: Sequence[tuple[int, str]]
) -> list[Accepted | Exception]:
    """Add amounts, each with its idempotency key; return for each what `add` would."""
    items = [(name, Add(amount, via="api")) for amount, _ in additions]
    keys = [_scoped(key) for _, key in additions]
    answers = add_up.insert_each(clients, items, idempotency_keys=keys)
    for (amount, _), answer in zip(additions, answers, strict=True):
        if isinstance(answer, Accepted) and not answer.is_duplicate:
            tally_buffer(clients).count(name, amount)
    return answers


def _scoped(idempotency_key: str | None) -> str | None:
    """Return a hash of a caller's key, who so cannot choose the id of another kind of insert."""
    if idempotency_key is None:
        return None
    return f"api.{hashlib.sha256(idempotency_key.encode()).hexdigest()}"


def outcome(
    clients: Clients, accepted: Accepted, timeout_s: float, name: str
) -> tuple[ItemStatus, int | None]:
    """Wait until an addition is folded; return its status, and the sum's total after it.

    An item that was first inserted without `keep_result` has no result of its own: then the total
    is the current one.
    """
    item = add_up.outcome(accepted)
    if not item.is_folded:
        # Before its batch is due, polling is useless, and each poll costs four reads.
        policy = add_up.policy(clients, name)
        period_s = policy.period_s if policy else add_up.settings.period_s
        early_s = period_s - (naive_utc(clients.clock.now()) - accepted.opened).total_seconds()
        pause_s = min(timeout_s, max(0.0, early_s))
        clients.clock.sleep(pause_s)
        item = add_up.wait(clients, accepted, timeout_s - pause_s)
    if not item.is_folded or item.result is not None:
        return item, item.result
    row = sum_key(name).get()
    return item, row.total if row else None


def add_once(clients: Clients, name: str, form: str, amount: int) -> bool:
    """Add to a sum, once for each form; return False if it was sent before, within two days.

    The item commits with its tally.
    """
    shard = clients.random.randrange(TALLY_SHARDS)
    expires = expiry(form, naive_utc(clients.clock.now()) + FORMS_FOR)
    tried: list[bool] = []

    def body() -> bool:
        sent, tally = ndb.get_multi([addition_key(name, form), tally_key(name, shard)])
        if sent is not None:
            return bool(
                tried
            )  # True if an attempt of this call inserted it, and its reply was lost.
        tried.append(True)
        SumAddition(key=addition_key(name, form), amount=amount, expires=expires).put()
        row = tally or SumTally(key=tally_key(name, shard))
        row.items, row.amount = row.items + 1, row.amount + amount
        row.put()
        add_up.insert_in_transaction(clients, name, Add(amount))
        return True

    is_added = transact(body)
    if is_added:
        _delete_expired_forms(clients)
    return is_added


def _delete_expired_forms(clients: Clients) -> None:
    """Delete some expired receipts of forms."""
    partition = clients.random.choice(PARTITIONS)
    expires_before = expiry(partition, naive_utc(clients.clock.now()))
    try:
        keys = expired(SumAddition, partition, expires_before).fetch(
            MAX_FORMS_DELETED, keys_only=True
        )
        ndb.delete_multi(keys)
    except rpc_errors.GoogleAPIError as error:
        log.warning("expired forms of sums are deleted later: %s", error)
