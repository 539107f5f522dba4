"""Pull queues, as the registry knows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from rollforward.datastore.expiry import MAX_KEYS, delete_due
from rollforward.pull_queues import listing
from rollforward.pull_queues.entities import (
    dead_items,
    expired_receipts,
    items_of,
)
from rollforward.pull_queues.queue import PullQueue
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import (
    Letter,
    LetterPage,
    LetterQuery,
    LetterVerb,
    RunDetails,
    RunVerb,
    UnknownRunError,
)

# Of expired receipts in one round; the next one is a minute away. As many as are acks in a minute.
MAX_PAGES = 80
MAX_COUNTED = 1_000  # Keys that a gauge reads.
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
            keys = dead_items(queue.name, until=died_before).fetch(MAX_KEYS, keys_only=True)
            deleted += delete_due(keys, lambda row: row.dead is not None)
        return {"dead_letters_deleted": deleted}

    def gauges(self, clients: Clients, parts: Sequence[PullQueue]) -> Sequence[Gauge]:
        gauges: list[Gauge] = []
        for queue in parts:
            labels = {"pull_queue": queue.name}
            waiting = items_of(queue.name).fetch_async(MAX_COUNTED, keys_only=True)
            dead = dead_items(queue.name).fetch_async(MAX_COUNTED, keys_only=True)
            gauges += [
                Gauge(
                    "pull_queue_items",
                    f"Items that are not acked, leased ones included; at most {MAX_COUNTED}.",
                    len(waiting.result()),
                    labels,
                ),
                Gauge(
                    "pull_queue_oldest_seconds",
                    "Time for which the oldest item has been ready and not leased.",
                    queue.oldest_ready_s(clients),
                    labels,
                ),
                Gauge(
                    "pull_queue_dead_letters",
                    f"Items that were delivered too often; at most {MAX_COUNTED} are counted.",
                    len(dead.result()),
                    labels,
                ),
            ]
        return gauges

    def delete_expired(self, clients: Clients) -> int:
        """Delete expired receipts; return how many went."""
        now_utc, deleted = naive_utc(clients.clock.now()), 0
        for _ in range(MAX_PAGES):
            keys = expired_receipts(now_utc).fetch(MAX_KEYS, keys_only=True)
            deleted += delete_due(keys, lambda row: row.expires < now_utc)
            if len(keys) < MAX_KEYS:
                break
        return deleted

    def part_names(self, parts: Sequence[PullQueue]) -> Iterable[str]:
        return [queue.name for queue in parts]

    def run(self, clients: Clients, parts: Sequence[PullQueue], run_id: str) -> RunDetails:
        return listing.queue_details(clients, _queue(parts, run_id))

    def control_run(
        self, clients: Clients, parts: Sequence[PullQueue], run_id: str, verb: RunVerb
    ) -> str:
        return listing.replay_dead_letters(clients, _queue(parts, run_id), verb)

    def letters(
        self, clients: Clients, parts: Sequence[PullQueue], part_id: str, query: LetterQuery
    ) -> LetterPage:
        return listing.letters_of(_queue(parts, part_id), query)

    def letter(
        self, clients: Clients, parts: Sequence[PullQueue], part_id: str, letter_id: str
    ) -> Letter:
        return listing.letter_of(_queue(parts, part_id), letter_id)

    def change_letter(
        self,
        clients: Clients,
        parts: Sequence[PullQueue],
        part_id: str,
        letter_id: str,
        verb: LetterVerb,
    ) -> None:
        listing.change_letter(clients, _queue(parts, part_id), letter_id, verb)


def _queue(parts: Sequence[PullQueue], name: str) -> PullQueue:
    for queue in parts:
        if queue.name == name:
            return queue
    raise UnknownRunError(name)
