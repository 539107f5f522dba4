"""Fork-join queues: many small writes, gathered into few, and not one is lost or doubled.

    @dataclass(frozen=True)
    class Add:
        amount: int

    @fork_join("sums", queue="fork-join", period_s=1.0)
    def add_up(clients: Clients, batch: Batch, items: Sequence[Add]) -> None:
        row = Sum.get_by_id(batch.key) or Sum(id=batch.key)
        row.total += sum(item.amount for item in items)
        row.put()

    add_up.insert(clients, "visitors", Add(1), idempotency_key="r-17")

`insert` puts the item under the open epoch of its key and returns once it is safe. The epoch's
task is due one period after its opening. It closes the epoch, waits a moment for writers that
are still inside, and folds: one transaction re-reads the items, calls the join function with
all of them, and deletes them. The join function reads and writes Datastore as any transaction
body does, and may run more than once, of which one run counts.

With period 0 nothing waits: a batch holds what arrived while the previous one was being folded. A
batch that is full does not wait for its period either.

Inserts of one process that come together share one commit and one entity. An idempotency key makes
an insert safe to repeat: within a day it counts once, also when a commit's reply was lost. Without
one, an insert that raises OutcomeUnknownError may count or not.

Lost on failure: nothing that was accepted. memcached only says which batch is open: without it
batches are smaller. A crash costs one period of the sweep.
Cost of an item, alone: 1 write, 1 delete, and its share of the fold. Of a batch: 1 task, 5 round
trips, 4 where folds are guarded commits, and what the join function does.

Routes: POST /tasks/fork-join/<name>/join, .../drain and .../replay, POST
/tasks/fork-join/delete-expired; GET /cron/fork-join/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Fork-join queue". What its code loses and doubles, and what ours does instead: docs/adr/0009.
"""

from rollforward.fork_join.accumulator import Accumulator
from rollforward.fork_join.fold import Batch
from rollforward.fork_join.items import Accepted
from rollforward.fork_join.queue import ForkJoin, fork_join
from rollforward.fork_join.status import Depth, ItemStatus
from rollforward.runtime.errors import BadItemError, DifferentItemError, OutcomeUnknownError

__all__ = [
    "Accepted",
    "Accumulator",
    "BadItemError",
    "Batch",
    "Depth",
    "DifferentItemError",
    "ForkJoin",
    "ItemStatus",
    "OutcomeUnknownError",
    "fork_join",
]
