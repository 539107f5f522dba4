"""Depth of the outbox: pending rows, their age, and the rate of the relay."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from rollforward.datastore.partitions import PARTITIONS
from rollforward.outbox.entities import outbox_rows
from rollforward.outbox.relay import age_s, rate_key, row_id
from rollforward.runtime.cache import parse_counter
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc

MAX_COUNTED = 1_000


@dataclass(frozen=True)
class Depth:
    """Pending rows and their ages. `is_truncated`: there are more rows than were counted."""

    waiting: int
    is_truncated: bool
    oldest_s: float
    oldest_unacked_s: float
    relayed_per_s: float


def depth(clients: Clients) -> Depth:
    """Return the number of pending rows, their ages, and the rate of the last full minute.

    Unacked rows have an age of their own: they wait for their tasks, others only for the relay.
    """
    at = clients.clock.now()
    fetches = [outbox_rows(p).get_async(keys_only=True) for p in PARTITIONS]
    keys = outbox_rows().fetch(MAX_COUNTED + 1, keys_only=True)
    oldest = [key for fetch in fetches if (key := fetch.get_result()) is not None]
    rows = [row_id(key) for key in (*keys, *oldest)]
    ages_s = [(row, age_s(row, naive_utc(at))) for row in rows]
    relayed = clients.cache.get(rate_key(at - datetime.timedelta(minutes=1)))
    return Depth(
        waiting=min(len(keys), MAX_COUNTED),
        is_truncated=len(keys) > MAX_COUNTED,
        oldest_s=max([0.0, *(s for row, s in ages_s if not row.is_unacked)]),
        oldest_unacked_s=max([0.0, *(s for row, s in ages_s if row.is_unacked)]),
        relayed_per_s=(parse_counter(relayed) or 0) / 60,
    )
