"""Pings: a task through each queue of an app, to see whether deliveries arrive.

    sent = send_pings(clients, ping_id, ["default", "mail"])
    deliveries(ping_id, ["default", "mail"])    # {"default": 0.4}: after 0.4 s

A ping goes the way of each task: the app's account creates it, Cloud Tasks delivers it, and the app
authenticates the caller. Its delivery writes a row. So a queue that is absent or paused, a right
that is missing, and a token that the app does not accept are found before a user's task meets them.

Lost on failure: a purged queue loses its pings. Send others.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.operations.entities import PingDelivery
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import task

KEPT_FOR = datetime.timedelta(days=1)


@dataclass(frozen=True)
class PingArgs:
    """A ping of one queue; `sent_s`: seconds since 1970."""

    ping_id: str
    queue: str
    sent_s: float


@task("/tasks/operations/ping")
def ping(clients: Clients, args: PingArgs) -> None:
    """Note that a ping has arrived; a repeated delivery changes nothing."""
    now_utc = clients.clock.now()
    row = PingDelivery(
        key=_key(args.ping_id, args.queue),
        seconds=max(0.0, now_utc.timestamp() - args.sent_s),
        expires=naive_utc(now_utc) + KEPT_FOR,
    )
    transact(lambda: _put_new(row))


def send_pings(
    clients: Clients, ping_id: str, queues: Sequence[str]
) -> Mapping[str, Exception | None]:
    """Send a ping through each queue; return why one could not be created, or None.

    A second call with the same id sends none again.

    Raises:
        UnknownTaskError: the app does not deliver pings.
    """
    ping.check_registered(clients)
    sent_s = clients.clock.now().timestamp()
    messages = [
        replace(ping.message(PingArgs(ping_id, queue, sent_s), name=(ping_id, queue)), queue=queue)
        for queue in queues
    ]
    results = clients.tasks.create_all(messages)
    return {
        queue: result if isinstance(result, Exception) else None
        for queue, result in zip(queues, results, strict=True)
    }


def deliveries(ping_id: str, queues: Sequence[str]) -> Mapping[str, float]:
    """Return the queues whose ping has arrived, each with the seconds that it took."""
    rows = ndb.get_multi([_key(ping_id, queue) for queue in queues])
    return {queue: row.seconds for queue, row in zip(queues, rows, strict=True) if row is not None}


def _put_new(row: PingDelivery) -> None:
    if row.key.get() is None:
        row.put()


def _key(ping_id: str, queue: str) -> ndb.Key:
    return ndb.Key(PingDelivery, f"{ping_id}|{queue}")
