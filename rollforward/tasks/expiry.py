"""Deletion of rows that expire, in partitions: a page a minute, and by tasks if there are more.

A sweep deletes a page of one partition, so an idle sweep costs a query for each kind. If the page
is full, the other partitions are full, too: then each gets a task, which deletes some pages and
enqueues another task for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pydantic
from google.cloud import ndb

from rollforward.datastore.expiry import delete_expired, expired, expiry
from rollforward.datastore.partitions import PARTITIONS
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import Task, task

# What a task deletes takes seconds.
PAGES_PER_TASK = 10


@dataclass(frozen=True)
class DeleteExpired:
    """A partition to delete from; `number` counts the earlier tasks of the chain."""

    partition: Annotated[str, pydantic.Field(max_length=20)]
    minute: Annotated[str, pydantic.Field(max_length=20)]
    number: int = 0


class Expiry:
    """A declaration of kinds whose rows are deleted after their time.

    Args:
        path: URL path of the task.
        kinds: Each with an indexed `expires`, which `datastore.expiry.expiry` has made.
        page_size: Rows of each kind that are deleted at once.
        max_tasks: Tasks in the chain of one partition. The next sweep continues.
    """

    def __init__(
        self, path: str, kinds: Sequence[type[ndb.Model]], *, page_size: int, max_tasks: int
    ) -> None:
        self._kinds = kinds
        self.page_size = page_size
        self.max_tasks = max_tasks
        # The task that deletes the rest; a pattern lists it with its tasks.
        self.task: Task[DeleteExpired] = task(path, queue="default")(self.delete_partition)

    def sweep(self, clients: Clients) -> int:
        """Delete a page of one partition, or start tasks for all; return how many were deleted."""
        deleted = self.delete_page(clients, clients.random.choice(PARTITIONS))
        if deleted >= self.page_size:
            minute = f"{clients.clock.now():%Y%m%dT%H%M}"
            names = [(minute, partition, 0) for partition in PARTITIONS]
            tasks = [DeleteExpired(partition, minute) for partition in PARTITIONS]
            self.task.enqueue_many(clients, tasks, names=names)
        return deleted

    def delete_page(self, clients: Clients, partition: str) -> int:
        """Delete a page of each kind in a partition; return how many rows had expired."""
        expires_before = expiry(partition, naive_utc(clients.clock.now()))
        queries = [expired(kind, partition, expires_before) for kind in self._kinds]
        keys = [key for query in queries for key in query.fetch(self.page_size, keys_only=True)]
        delete_expired(keys, expires_before)
        return len(keys)

    def delete_partition(self, clients: Clients, args: DeleteExpired) -> None:
        """Delete expired rows of a partition; enqueue another task for the rest."""
        for _ in range(PAGES_PER_TASK):
            if self.delete_page(clients, args.partition) < self.page_size:
                return
        number = args.number + 1
        if number < self.max_tasks:
            following = replace(args, number=number)
            self.task.enqueue(clients, following, name=(args.minute, args.partition, number))
