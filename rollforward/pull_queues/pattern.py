"""Pull queues, as the registry knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from rollforward.datastore.expiry import MAX_KEYS, delete_due
from rollforward.pull_queues.entities import expired_dead_items, expired_receipts
from rollforward.pull_queues.queue import PullQueue
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.pattern import Pattern

# Of expired receipts in one round; the next one is a minute away. As many as are acks in a minute.
MAX_PAGES = 80
DEAD_LETTERS_KEPT_FOR = timedelta(days=30)


class PullQueues(Pattern[PullQueue]):
    """Items that wait for workers to lease them. Nothing wakes them: workers come."""

    name = "pull-queues"
    takes = PullQueue
    has_unique_names = True

    def sweep(
        self, clients: Clients, parts: Sequence[PullQueue], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Delete dead letters a month after their death."""
        died_before = naive_utc(clients.clock.now()) - DEAD_LETTERS_KEPT_FOR
        deleted = 0
        for queue in parts:
            keys = expired_dead_items(queue.name, died_before).fetch(MAX_KEYS, keys_only=True)
            deleted += delete_due(keys, lambda row: row.dead is not None)
        return {"dead_letters_deleted": deleted}

    def delete_expired(self, clients: Clients) -> int:
        """Delete expired receipts."""
        now_utc = naive_utc(clients.clock.now())
        for _ in range(MAX_PAGES):
            keys = expired_receipts(now_utc).fetch(MAX_KEYS, keys_only=True)
            delete_due(keys, lambda row: row.expires < now_utc)
            if len(keys) < MAX_KEYS:
                break
        return len(keys)
