"""Sums: the talk's example of a fork-join queue.

Everybody adds to the same few sums, many times a second. A row that each addition writes itself
is a traffic jam; here it is written once for each batch.

Lost on failure: nothing that was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from models.sums import Sum, sum_key
from pipelines.clients import Clients
from pipelines.clock import naive
from pipelines.fork_join import Batch, fork_join

MOST_AMOUNT = 10**9
MOST_RECENT = 40


@dataclass(frozen=True)
class Add:
    """An addition to a sum."""

    amount: Annotated[int, Field(ge=-MOST_AMOUNT, le=MOST_AMOUNT)]


@fork_join("sums", queue="fork-join", period_s=1.0)
def add_up(clients: Clients, batch: Batch, items: Sequence[Add]) -> Sequence[int]:
    """Add a batch to its sum; return the sum after each item."""
    now = naive(clients.clock.now())
    row = sum_key(batch.key).get() or Sum(key=sum_key(batch.key), created=now)
    totals = []
    for item in items:
        row.total += item.amount
        totals.append(row.total)
    row.items += len(items)
    row.batches += 1
    folded = {
        "epoch": batch.epoch,
        "items": len(items),
        "opened": batch.opened.isoformat(),
        "folded": now.isoformat(),
    }
    row.recent = [folded, *(row.recent or [])][:MOST_RECENT]
    row.put()
    return totals
