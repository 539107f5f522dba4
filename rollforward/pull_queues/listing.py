"""Pull queues as an operator sees them: waiting and leased items, and dead letters."""

from __future__ import annotations

from rollforward.pull_queues.entities import dead_items, items_of, ready_items
from rollforward.pull_queues.queue import PullQueue
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.runs import RunDetails, RunIssue, RunRefusedError, RunVerb, standing_run

PATTERN = "pull-queues"
MAX_COUNTED = 1_000
MAX_SHOWN = 20
# Of dead letters that one command replays; give it again for more.
MAX_REPLAYED = 100


def queue_details(clients: Clients, queue: PullQueue) -> RunDetails:
    """Return the counts of a queue, by keys alone, and its oldest dead letters."""
    now_utc = naive_utc(clients.clock.now())
    ready = [
        len(ready_items(queue.name, partition, now_utc).fetch(MAX_COUNTED, keys_only=True))
        for partition in range(queue.partitions)
    ]
    living = len(items_of(queue.name).fetch(MAX_COUNTED, keys_only=True))
    letters = queue.dead_letters(limit=MAX_SHOWN)
    issues = [
        RunIssue(letter.id, "failed", f"leased {letter.deliveries} times: {letter.payload[:200]}")
        for letter in letters
    ]
    numbers = {
        "waiting": min(sum(ready), MAX_COUNTED),
        "leased_or_delayed": max(0, living - sum(ready)),
        "dead_letters": len(dead_items(queue.name).fetch(MAX_COUNTED, keys_only=True)),
        "counted_up_to": MAX_COUNTED,
        "max_deliveries": queue.max_deliveries,
        "partitions": queue.partitions,
    }
    verbs: tuple[RunVerb, ...] = ("retry",) if letters else ()
    return RunDetails(standing_run(PATTERN, queue.name, verbs), issues=issues, numbers=numbers)


def replay_dead_letters(clients: Clients, queue: PullQueue, verb: RunVerb) -> str:
    """Let up to 100 dead letters be leased again; return the queue's name.

    Raises:
        RunRefusedError: there are none, or the verb is another one.
    """
    letters = queue.dead_letters(limit=MAX_REPLAYED)
    if verb != "retry" or not letters:
        raise RunRefusedError("it has no dead letters to retry")
    for letter in letters:
        queue.replay(clients, letter.id)
    return queue.name
