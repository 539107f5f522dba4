"""Deletion of rows that expire, in partitions: a page a minute, and by tasks when it is more.

A sweep deletes a page of one partition, so that an idle sweep costs a query or two. If the page is
full, the other partitions are full, too: then each gets a task, which deletes some pages and passes
on the rest to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pydantic

from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task, task

# What a task deletes takes seconds.
PAGES_PER_TASK = 10


@dataclass(frozen=True)
class DeleteExpired:
    """In which partition to delete; how many tasks of the chain came before."""

    partition: Annotated[str, pydantic.Field(max_length=20)]
    minute: Annotated[str, pydantic.Field(max_length=20)]
    number: int = 0


class Expiry:
    """How the rows of a pattern are deleted after their time.

    Args:
        path: Of the task.
        partitions: Of the rows.
        delete_page: Deletes up to so many rows of a partition, or of each kind in it; returns how
            many.
        page_size: How many at once.
        max_tasks: How long a chain of tasks becomes for one partition. The next sweep goes on.
    """

    def __init__(
        self,
        path: str,
        partitions: Sequence[str],
        delete_page: Callable[[Clients, str, int], int],
        *,
        page_size: int,
        max_tasks: int,
    ) -> None:
        self._partitions = partitions
        self._delete_page = delete_page
        self.page_size = page_size
        self.max_tasks = max_tasks
        # What deletes the rest; a pattern lists it with its tasks.
        self.task: Task[DeleteExpired] = task(path, queue="default")(self.delete_partition)

    def sweep(self, clients: Clients) -> int:
        """Delete a page of one partition, or start tasks for all; return how many were deleted."""
        found = self._delete_page(clients, clients.random.choice(self._partitions), self.page_size)
        if found >= self.page_size:
            minute = f"{clients.clock.now():%Y%m%dT%H%M}"
            names = [(minute, partition, 0) for partition in self._partitions]
            tasks = [DeleteExpired(partition, minute) for partition in self._partitions]
            self.task.enqueue_many(clients, tasks, names=names)
        return found

    def delete_partition(self, clients: Clients, args: DeleteExpired) -> None:
        """Delete what has expired in a partition; pass on to another task what is too much."""
        for _ in range(PAGES_PER_TASK):
            if self._delete_page(clients, args.partition, self.page_size) < self.page_size:
                return
        number = args.number + 1
        if number < self.max_tasks:
            following = replace(args, number=number)
            self.task.enqueue(clients, following, name=(args.minute, args.partition, number))
