"""Pull queues: items wait until a worker, in any language, leases them.

    THUMBNAILS = PullQueue("thumbnails", max_deliveries=5)

    THUMBNAILS.add(clients, '{"photo": 7}', tag="user-12")
    for lease in THUMBNAILS.lease(clients, limit=50, lease_s=60, tag=OLDEST):
        make_thumbnail(lease.payload)
        THUMBNAILS.ack(clients, [lease])

Cloud Tasks pushes, and has no pull queues any more. A worker that leases items by tag can do
together what belongs together. An item whose lease ends without an ack can be leased again; after
`max_deliveries` leases it is a dead letter. Each item is acked once, or waits: a lease carries the
version of its row, and only the worker that has the newest can ack, renew or release. A late
worker learns that its lease is lost, and its work may have been done twice. A commit of an
ack leaves a receipt for an hour, so an ack whose answer was lost can be repeated.

Cost: an add is one round trip and one write; a lease of up to 40 items of a partition a query, a
lookup and one commit; an ack of 40 one commit, with one write more for its receipt. Items are in
hashed partitions, each ordered by time; a lease looks at the head of one partition after the other,
in random order, so no read grows with the backlog, and workers meet rarely.

Lost on failure: nothing. Items of a dead worker come back when its lease ends. A clock that is
ahead lets a worker lease what another still holds; the fence holds all the same.

Source: the pull queues of App Engine's Task Queue API (2011), with its tags and leases.
"""

from rollforward.pull_queues.items import (
    OLDEST,
    DeadLetter,
    ItemId,
    Lease,
)
from rollforward.pull_queues.queue import PullQueue
from rollforward.runtime.errors import BadItemError, DifferentItemError

__all__ = [
    "OLDEST",
    "BadItemError",
    "DeadLetter",
    "DifferentItemError",
    "ItemId",
    "Lease",
    "PullQueue",
]
