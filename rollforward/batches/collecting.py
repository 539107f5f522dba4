"""Ends of members by a pull queue: a variant, beside the fork-join queue, for `ends_by`.

An end is an item with its batch for a tag. A collector leases the items of one batch, counts them
as a fold does, in one transaction, and acks them. After a crash in between the items come back, for
the same task's next delivery, and counting them again changes nothing. Collectors are tasks named
after their batch and the moment, so that a batch has one in a period; one that is overtaken by
another waits until that has acked.

A member whose clock is far behind may find that the collector of its moment has run. Its end is
collected with the next one, or by the sweep.

Lost on failure: nothing. Cost of a member's end: an item that is written, leased and deleted, three
writes, where the fork-join queue has two at most; so this is for comparison, and for apps that see
their ends by other means.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic

from rollforward.batches.ending import End, count_ends
from rollforward.datastore.transactions import transact
from rollforward.pull_queues import OLDEST, Lease, PullQueue
from rollforward.runtime.clients import Clients
from rollforward.runtime.type_adapters import adapter_of
from rollforward.tasks.declaration import hashed_name, task
from rollforward.tasks.errors import Retry

# As good as without a bound: an end that is given up would leave its batch open.
MAX_DELIVERIES = 100_000
PERIOD_S = 0.1
# Clocks may differ by so much without an end that waits for the next collector.
MARGIN_S = 0.1
LEASE_S = 20.0
MAX_ENDS = 200  # Of one transaction.
MAX_ROUNDS = 20

ENDS = PullQueue("batch-ends", max_deliveries=MAX_DELIVERIES, partitions=16)


@dataclass(frozen=True)
class Ended:
    """The end of a member, as an item says it."""

    batch: Annotated[str, pydantic.Field(max_length=300)]
    end: End


@dataclass(frozen=True)
class Collect:
    """Whose ends to collect."""

    batch: Annotated[str, pydantic.Field(max_length=300)]


def add_end(clients: Clients, batch: str, end: End) -> None:
    """Add the end of a member, and see to a collector. Added twice, it is counted once."""
    ENDS.add(
        clients, adapter_of(Ended).dump_json(Ended(batch, end)).decode(), tag=hashed_name(batch)
    )
    period = int(clients.clock.now().timestamp() / PERIOD_S) + 1
    due_s = period * PERIOD_S + MARGIN_S
    due = datetime.datetime.fromtimestamp(due_s, datetime.UTC)
    collect.enqueue(clients, Collect(batch), name=(batch, period), at=due)


@task("/tasks/batches/collect", queue="fork-join")
def collect(clients: Clients, args: Collect) -> None:
    """Count the ends of a batch that wait, until there are none.

    Raises:
        Retry: another collector has leased some: should it have died, they are to come back.
    """
    tag = hashed_name(args.batch)
    for _ in range(MAX_ROUNDS):
        leases = ENDS.lease(clients, limit=MAX_ENDS, lease_s=LEASE_S, tag=tag)
        if leases:
            _count(clients, leases)
        elif ENDS.has_items(tag):
            raise Retry("another collector has leased the rest")
        else:
            return
    collect.enqueue(clients, args)


def collect_late(clients: Clients) -> int:
    """Count ends that no collector has found, batch by batch; return how many."""
    counted = 0
    for _ in range(MAX_ROUNDS):
        leases = ENDS.lease(clients, limit=MAX_ENDS, lease_s=LEASE_S, tag=OLDEST)
        if not leases:
            break
        _count(clients, leases)
        counted += len(leases)
    return counted


def _count(clients: Clients, leases: Sequence[Lease]) -> None:
    """Count the ends of one batch, and ack them."""
    ended = [adapter_of(Ended).validate_json(lease.payload) for lease in leases]
    batch, ends = ended[0].batch, [each.end for each in ended]
    try:
        transact(lambda: count_ends(clients, batch, ends))
    except Exception:
        ENDS.release(clients, leases)
        raise
    ENDS.ack(clients, leases)
