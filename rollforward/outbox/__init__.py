"""The outbox: tasks that are enqueued by a transaction, with the data, or not at all.

    def body() -> None:
        order.put()
        outbox.enqueue(clients, ship, Ship(order.key.id()))

    transact(body)

Cloud Tasks cannot join a Datastore transaction. So the task is a row in the same commit. After the
response the process creates the tasks of committed rows, up to 100 per call, and deletes the rows.
The sweep does the same for rows that a crash left behind: a row is deleted only after its task
exists. So a task is created if and only if its transaction was committed, never before its data can
be read, and usually some milliseconds later.

The task's name is made of the row's key, so creating it twice makes one. A name of your own works
as in `Task.enqueue`: "already exists" means that it was enqueued before.

`enqueue_with_ack` keeps the row until the task's own transaction calls `ack`. Then pending rows can
be listed (`tag`), their age is known, and the effect commits with the ack.

`enqueue_cancellable` returns a handle, and `cancel(handle)` is true if the task has never begun and
never will.

Lost on failure: nothing. A crash costs one period of the sweep. A living process recovers within
seconds: it retries until Cloud Tasks answers, and checks rows whose commit was not answered. Rows
beyond the 10,000 that it keeps in memory wait for the sweep. A task that Cloud Tasks refuses blocks
no other; after ten minutes it becomes a dead task, with its reason. An unacked row stays even then.

Routes: POST /tasks/outbox/drain; GET /cron/outbox/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010:
transactional tasks, which the platform had then. Why not its successors': docs/adr/0007.
"""

from rollforward.outbox.background import BackgroundRelay
from rollforward.outbox.cancellable import enqueue_cancellable
from rollforward.outbox.depth import Depth, depth
from rollforward.outbox.enqueue import ack, enqueue, enqueue_with_ack
from rollforward.outbox.relay import InlineRelay, create_later
from rollforward.outbox.sweep import drain, sweep
from rollforward.tasks.stored.cancellation import cancel

__all__ = [
    "BackgroundRelay",
    "Depth",
    "InlineRelay",
    "ack",
    "cancel",
    "create_later",
    "depth",
    "drain",
    "enqueue",
    "enqueue_cancellable",
    "enqueue_with_ack",
    "sweep",
]
