"""Gathered counters: increments go through a fork-join queue, or through memory before it.

A batch of any number of increments is one write of the counter's total.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters.commits import receipt_of
from rollforward.counters.entities import CounterReceipt, CounterTotal, total_key
from rollforward.counters.increments import RECEIPTS_FOR, Counted, IncrementRequest
from rollforward.counters.relocation import take_shards
from rollforward.datastore.versions import insert_all
from rollforward.fork_join import Accumulator, Batch, ForkJoin
from rollforward.fork_join.fold import MAX_PACK_WRITES
from rollforward.runtime import Clients
from rollforward.runtime.errors import OutcomeUnknownError
from rollforward.runtime.idempotency import unknown_outcome

# In memory, the increments of a flush are one item.
MAX_SUM = 2**62
MAX_CLAIMS = 3
PAUSE_S = 0.03


@dataclass(frozen=True)
class Delta:
    """An increment to fold, or a sum of several that were combined in memory."""

    amount: Annotated[int, pydantic.Field(ge=-MAX_SUM, le=MAX_SUM)]


class GatheredIncrements:
    """A fork-join queue of increments, and the totals that its folds write."""

    def __init__(
        self, name: str, *, queue: str, period_s: float, flush_interval_s: float | None
    ) -> None:
        """Declare the queue.

        Args:
            flush_interval_s: The time that an increment stays in memory; None: never.
        """
        self._name = name
        self.fork_join = ForkJoin(
            f"counters-{name}",
            Delta,
            self._add_up,
            queue=queue,
            period_s=period_s,
            receipts_for=RECEIPTS_FOR,
            max_packs=MAX_PACK_WRITES,  # The join writes one row.
        )
        self._in_memory = (
            None
            if flush_interval_s is None
            else Accumulator(
                f"counters:{name}",
                self.fork_join,
                lambda one, other: Delta(one.amount + other.amount),
                flush_interval_s=flush_interval_s,
            )
        )

    def add(self, clients: Clients, request: IncrementRequest) -> Counted:
        """Accept a request.

        Raises:
            DifferentItemError: nothing of it counts.
            OutcomeUnknownError: it may count or not; with an idempotency key it is safe to repeat.
            BufferFullError: the memory has no room; nothing of it counts.
        """
        deltas = request.deltas.items()
        if self._in_memory is not None and request.idempotency_key is None:
            self._in_memory.add_all(clients, {key: Delta(delta) for key, delta in deltas})
            return Counted()
        if request.key is not None:
            ((key, delta),) = deltas
            accepted = self.fork_join.insert(
                clients, key, Delta(delta), idempotency_key=request.idempotency_key
            )
            return Counted(accepted.is_duplicate)
        return self._add_all(clients, request)

    def add_in_transaction(self, clients: Clients, request: IncrementRequest) -> None:
        """Accept a request in a transaction; see `ForkJoin.insert_in_transaction`."""
        for key, delta in request.deltas.items():
            self.fork_join.insert_in_transaction(clients, key, Delta(delta))

    def begin(self, totals: Mapping[str, int], *, is_in_doubt: bool) -> None:
        """Write the initial totals of new counters.

        Args:
            is_in_doubt: An earlier attempt may have written them, and others may have added since.
        """
        rows = [CounterTotal(key=total_key(self._name, key), count=n) for key, n in totals.items()]
        stored = ndb.get_multi([row.key for row in rows]) if is_in_doubt else [None] * len(rows)
        ndb.put_multi([row for row, old in zip(rows, stored, strict=True) if old is None])

    def _add_all(self, clients: Clients, request: IncrementRequest) -> Counted:
        self.fork_join.join_task.check_registered(clients)
        if request.idempotency_key is not None:
            self._claim(clients, request)
        items = [(key, Delta(delta)) for key, delta in request.deltas.items()]
        keys: list[str] | None = None
        if request.idempotency_key is not None:
            # Not the key of an increment of one counter, which may be the same text.
            digest = hashlib.sha256(request.idempotency_key.encode()).hexdigest()
            keys = [f"many.{digest}"] * len(items)
        answers = self.fork_join.insert_each(clients, items, idempotency_keys=keys)
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        for error in sorted(errors, key=lambda error: not isinstance(error, OutcomeUnknownError)):
            raise error
        return Counted(all(not isinstance(a, Exception) and a.is_duplicate for a in answers))

    def _claim(self, clients: Clients, request: IncrementRequest) -> None:
        """Claim an idempotency key for this call, before any of its increments is stored.

        Each increment has a receipt of its own, which proves nothing about the others.

        Raises:
            DifferentItemError: it belongs to another call; nothing of this one counts.
            OutcomeUnknownError: nothing of it counts yet.
        """
        receipt = receipt_of(clients, self._name, request, clients.new_id())
        error: Exception | None = None
        for retry in range(MAX_CLAIMS):
            if retry:
                clients.clock.sleep(PAUSE_S)
            try:
                stored = _insert_or_get(clients, receipt)
            except rpc_errors.GoogleAPIError as failed:
                error = failed
                continue
            if stored.digest != request.digest:
                raise request.different()
            return
        raise unknown_outcome(error)

    def flush(self, clients: Clients) -> None:
        """Store the increments in this process's memory."""
        if self._in_memory is not None:
            self._in_memory.flush(clients)

    def totals(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the totals that folds have written; a counter without one is left out."""
        rows = ndb.get_multi([total_key(self._name, key) for key in keys])
        return {key: row.count for key, row in zip(keys, rows, strict=True) if row is not None}

    def _add_up(self, clients: Clients, batch: Batch, items: Sequence[Delta]) -> None:
        """Add a batch to its total."""
        key = total_key(self._name, batch.key)
        row = key.get()
        if row is None:
            row = CounterTotal(key=key, count=take_shards(self._name, batch.key))
        row.count += sum(item.amount for item in items)
        row.folds += 1
        row.put()


def _insert_or_get(clients: Clients, receipt: CounterReceipt) -> CounterReceipt:
    """Return the receipt that is stored: this one, or the one that was there before."""
    try:
        insert_all(clients.datastore, [receipt])
    except rpc_errors.AlreadyExists:
        stored: CounterReceipt | None = receipt.key.get()
        if stored is None:  # A sweep has deleted it since.
            raise
        return stored
    return receipt
