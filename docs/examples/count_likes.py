"""A sharded counter: many likes at once, each counted once, while its shards come and go.

    .venv/bin/python -m docs.examples.count_likes

Ninety likes of one post come in, every tenth of them twice because its answer was lost. In between
the counter gets eight shards, and then one again. The program starts its own services: see
raise_prices.py.
"""

from __future__ import annotations

from docs.examples.raise_prices import ROOT, open_clients
from rollforward.counters import Counter
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import Clients

# howto: from here
LIKES = Counter("likes", queue="default")


def like(clients: Clients, post: str, request_id: str) -> bool:
    return not LIKES.increment(clients, post, idempotency_key=request_id).is_duplicate


def likes(clients: Clients, post: str) -> int:
    return LIKES.total(clients, post, max_age_s=5).value


# howto: to here


def play(clients: Clients, queue: RunningEmulator) -> str:
    """Add likes, and change the shards between them; return the counts."""
    counted = repeated = 0
    with clients.context():
        for number in range(90):
            if number in (30, 60):
                LIKES.resize(clients, "post-17", 8 if number == 30 else 1)
                deliver_all(clients, queue)
            for _ in range(2 if number % 10 == 0 else 1):
                is_new = like(clients, "post-17", f"r{number}")
                counted, repeated = counted + is_new, repeated + (not is_new)
        shards = LIKES.status(clients, "post-17").shards
        total = likes(clients, "post-17")
    return f"{total} likes in {shards} shard; {counted} counted, {repeated} sent again"


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: deliver each task twice."""
    while due := queue.engine.due():
        attempt = queue.engine.begin_attempt(due[0].task_name)
        for _ in range(2):
            task = LIKES.settle_task
            task.work(clients, task.read(attempt.body))
        queue.engine.end_attempt(attempt.id, status=204)


def main() -> None:
    """Start the services, play, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        print(play(open_clients(datastore, queue), queue))  # noqa: T201


if __name__ == "__main__":
    main()
