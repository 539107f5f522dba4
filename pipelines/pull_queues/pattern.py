"""Pull queues, as the registry knows them."""

from __future__ import annotations

from collections.abc import Sequence

from google.cloud import ndb

from models.pull_queues import expired_receipts
from pipelines.pull_queues.queue import PullQueue
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc
from pipelines.tasks.pattern import Pattern

# In one round; the next one is a minute away.
MAX_DELETED = 500


class PullQueues(Pattern[PullQueue]):
    """Items that wait for workers to lease them. Nothing wakes them: workers come."""

    name = "pull-queues"
    takes = PullQueue

    def check(self, parts: Sequence[PullQueue]) -> None:
        names = [queue.name for queue in parts]
        if len(set(names)) < len(names):
            raise TypeError("two pull queues have one name: give one of them another")

    def delete_expired(self, clients: Clients) -> int:
        """Delete receipts that nobody asks for any more."""
        now = naive_utc(clients.clock.now())
        keys = expired_receipts(now).fetch(MAX_DELETED, keys_only=True)
        ndb.delete_multi(keys)
        return len(keys)
