"""Task batches: many tasks, and one more that runs exactly once when all of them have ended.

    @task(queue="fan-out")
    def print_page(clients: Clients, args: Print) -> int: ...

    @task(queue="default")
    def bind(clients: Clients, args: Completed) -> None: ...

    BOOKS = TaskBatch("books", members=[print_page], on_complete=bind)

    BOOKS.populate(clients, "moby-dick", [(print_page, Print(n)) for n in range(1, 636)], seal=True)

A member is a declared task with arguments. It ends as done, with a small result (what its function
returns), or as failed, with its error: after its `max_attempts`, or at once by `Reject`. When a
batch is sealed and all its members have ended, it is complete, and its callback gets the counts.

1. populate  Members are stored in pages of 1,000, and counted in one transaction. A call has an
             idempotency key: made again it adds nothing.
2. create    A walk over the pages creates the members' tasks, 100 per call, by names of their own.
3. end       A member that has ended inserts an item into a fork-join queue, by its batch's key. So
             no two members write the same entity.
4. fold      One commit, guarded by the versions of the rows it read, changes the letters of
             members in their pages and counts the open ones. One transaction does so with the
             last of them, and completes the batch: its callback goes out by the outbox in that
             very commit.

`Policy` says when a batch is complete: when all have ended, at the first failure, or when n are
done; what is left is cancelled then. `run_again` re-opens a batch for what failed or was cancelled:
the next generation, with a completion of its own. A member may add members to its batch
(`current_member().add`), or become a batch (`.nest`): it ends when that is complete.

Lost on failure: nothing. A member runs at least once, as any task, and is counted exactly once. A
member's task that the queue itself lost is created again by the sweep after half an hour, and a
callback that is not acknowledged after an hour.
Cost of a member: 1 task; its share of a pack of ends, put and deleted; 1/1000 of a page, twice; its
share of a fold, which is 3 writes. Alone in its pack that is little more than 2 writes. Cost of a
callback: 1 task, and an acknowledgement, which is a read and a write in two round trips.

Routes: POST /tasks/batches/<name>/<task> for each task that may be a member,
/tasks/batches/<name>/completed for the callback, /tasks/batches/create,
/tasks/batches/cancel-nested, /tasks/batches/remove; GET /cron/batches/sweep.
Source: D. Hermes, "Last to cross the finish line", parts one to three, 2012. What its code does
twice, and what ours does instead: docs/adr/0014.
"""

from rollforward.batches.batch import TaskBatch
from rollforward.batches.declaration import Completed
from rollforward.batches.errors import BatchError, ClosedError, UnknownBatchError
from rollforward.batches.members import current_member
from rollforward.batches.policy import Policy
from rollforward.batches.reading import MemberResult

__all__ = [
    "BatchError",
    "ClosedError",
    "Completed",
    "MemberResult",
    "Policy",
    "TaskBatch",
    "UnknownBatchError",
    "current_member",
]
