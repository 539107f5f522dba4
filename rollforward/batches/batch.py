"""Task batches: declared, populated, sealed, cancelled, run again and read."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rollforward.batches import callbacks, completion, reading
from rollforward.batches.adding import populate
from rollforward.batches.adding.creation import RunMember
from rollforward.batches.adding.populate import Members, PopulateOptions
from rollforward.batches.declaration import BatchDeclaration, Completed
from rollforward.batches.members import fail, run
from rollforward.batches.policy import Policy
from rollforward.batches.reading import BatchProgress, MemberResult
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.tasks.declaration import Task
from rollforward.tasks.runs import RunLink

KEEP = datetime.timedelta(days=7)


class TaskBatch:
    """Batches of one kind: which tasks may be members, and what happens when all have ended."""

    def __init__(
        self,
        name: str,
        *,
        members: Sequence[Task[Any]],
        on_complete: Task[Completed] | None = None,
        policy: Policy | None = None,
        keep: datetime.timedelta = KEEP,
    ) -> None:
        """Declare batches.

        Args:
            name: Stands in keys and routes: never change it while batches run.
            members: The declared tasks that may be members. Each runs in its own queue, and fails
                after its own `max_attempts`.
            on_complete: A declared task that gets `Completed`, once per completion. As every task
                it may run more than once, but not after it has returned and that was acknowledged.
            policy: When a batch is complete and has succeeded; None: `Policy.all()`.
            keep: How long a batch can be read, and run again, after its completion.

        Raises:
            ValueError, TypeError: the declaration is invalid.
        """
        self.name = name
        paths = {
            task: f"/tasks/batches/{name}/{task.path.removeprefix('/tasks/')}" for task in members
        }
        self.declaration = BatchDeclaration(name, policy or Policy.all(), on_complete, keep, paths)
        self.members = tuple(members)
        self.on_complete = on_complete

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """The tasks to mount: one for each kind of member, and the callback."""
        members: list[Task[Any]] = [
            Task(
                path,
                task.queue,
                RunMember,
                partial(run, self.declaration, task),
                task.max_attempts,
                on_give_up=partial(fail, self.declaration),
            )
            for task, path in self.declaration.paths.items()
        ]
        if self.on_complete is None:
            return members
        return [*members, callbacks.task_of(self.name, self.on_complete)]

    def waiter(self, batch_id: str) -> RunLink | None:
        """Return the run that waits for a batch; None: none that is known."""
        return None

    # Add

    @optional_clients
    def populate(
        self,
        clients: Clients,
        batch_id: str,
        members: Members,
        *,
        idempotency_key: str = "",
        seal: bool = False,
    ) -> int:
        """Add members; create the batch if there is none. Return how many members are new.

        Args:
            batch_id: Chosen so that the same intent has the same id.
            members: Pairs of a task and its arguments, any number of them. With the key of a lane
                as a third one, a member waits in it: `(print_page, Print(1), BY_USER("ada"))`.
            idempotency_key: Sets further members apart from the first ones: what was added under
                the same key before is not added again.
            seal: No more will come.

        Raises:
            BatchError: nothing was added, and why.
            BadArgumentsError, TooLargeError: nothing was added.
        """
        key = self.declaration.key(batch_id)
        options = PopulateOptions(idempotency_key, seal)
        return populate.populate(clients, self.declaration, key, members, options)

    @optional_clients
    def populate_in_transaction(
        self,
        clients: Clients,
        batch_id: str,
        members: Members,
        *,
        idempotency_key: str = "",
        seal: bool = False,
    ) -> int:
        """Add up to 1,000 members in the transaction that this code runs in; else as `populate`.

        Raises:
            NoTransactionError: this is not the body of `transact`.
        """
        key = self.declaration.key(batch_id)
        options = PopulateOptions(idempotency_key, seal)
        return populate.populate_in_transaction(clients, self.declaration, key, members, options)

    @optional_clients
    def seal(self, clients: Clients, batch_id: str) -> None:
        """Say that no more members will come. Only running members may still add some.

        Raises:
            UnknownBatchError: the batch does not exist.
        """
        key = self.declaration.key(batch_id)
        transact(lambda: populate.seal_in_transaction(clients, key))

    # Change

    @optional_clients
    def cancel(self, clients: Clients, batch_id: str) -> bool:
        """Complete a batch now; return whether it was running.

        Members that have not ended are cancelled, and so are the batches nested in it. One that is
        at work is not interrupted, and how it ends counts no more.

        Raises:
            UnknownBatchError: the batch does not exist.
        """
        return completion.cancel(clients, self.declaration.key(batch_id))

    @optional_clients
    def run_again(self, clients: Clients, batch_id: str) -> int:
        """Re-open a batch, and run its failed and cancelled members again; return how many.

        Raises:
            UnknownBatchError: the batch does not exist.
            NestedError: it is a member of another batch, which has to be run again instead.
        """
        return populate.run_again(clients, self.declaration.key(batch_id))

    # Read

    def progress(self, batch_id: str) -> BatchProgress:
        """Return how far a batch is: one read.

        Raises:
            UnknownBatchError: the batch does not exist.
        """
        return reading.progress(self.declaration.key(batch_id))

    def nested(self, batch_id: str) -> list[BatchProgress]:
        """Return how far the batches are that its members have become, up to 1,000 of them."""
        return reading.nested(self.declaration.key(batch_id))

    def results(self, batch_id: str) -> Iterator[MemberResult]:
        """Yield what became of each member, by a few reads per thousand.

        Raises:
            UnknownBatchError: the batch does not exist.
        """
        return reading.results(self.declaration.key(batch_id))

    def failures(self, batch_id: str) -> Iterator[MemberResult]:
        """Yield the members that have failed, each with its error.

        Raises:
            UnknownBatchError: the batch does not exist.
        """
        return reading.failures(self.declaration.key(batch_id))
