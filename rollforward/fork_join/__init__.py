"""Fork-join queues: many small writes, gathered into few; none is lost or counted twice.

    @dataclass(frozen=True)
    class Add:
        amount: int

    @fork_join("sums", queue="fork-join", period_s=1.0)
    def add_up(batch: Batch, items: Sequence[Add]) -> None:
        row = Sum.get_by_id(batch.key) or Sum(id=batch.key)
        row.total += sum(item.amount for item in items)
        row.put()

    add_up.insert(clients, "visitors", Add(1), idempotency_key="r-17")

`insert` puts the item under the open epoch of its key and returns once it is safe. The epoch's task
is due one period after its opening. It closes the epoch, waits a moment for writers that are still
inside, and folds: one transaction re-reads the items, calls the join function with all of them, and
deletes them. The join function reads and writes Datastore as any transaction body does. It may run
more than once; one run counts.

With period 0 no item waits: a batch holds the items that came during the previous fold. A full
batch does not wait for its period either.

Concurrent inserts of one process share one commit and one entity. An idempotency key makes an
insert safe to repeat: within a day it counts once, even if a commit's reply was lost. Without one,
an insert that raises OutcomeUnknownError may count or not.

Lost on failure: no accepted item. memcached only names the open batch; without it batches are
smaller. A crash costs one period of the sweep.
Cost of a lone item: 1 write, 1 delete, and its share of the fold. A batch costs 1 task, 5 round
trips (4 if its fold is a guarded commit), and the work of the join function.

Routes: POST /tasks/fork-join/<name>/join, .../drain and .../replay, POST
/tasks/fork-join/delete-expired; GET /cron/fork-join/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Fork-join queue". docs/adr/0009 compares its losses and duplicates with this code.
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
