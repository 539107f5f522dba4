"""A fork-join queue: many visits, few writes, and each visit counts once.

    .venv/bin/python -m docs.examples.count_visits

Ninety visits to two pages come in, every tenth of them twice because its answer was lost. Then
each task is delivered twice. The program starts its own services: see raise_prices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud import ndb

from docs.examples.raise_prices import ROOT, open_clients
from rollforward.fork_join import Batch, fork_join
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import Clients


# howto: from here
class PageCount(ndb.Model):
    visits = ndb.IntegerProperty(indexed=False, default=0)
    writes = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Visit:
    visitor: str


@fork_join("visits", queue="fork-join", period_s=30)
def count_visits(batch: Batch, items: Sequence[Visit]) -> None:
    # Runs in a transaction, perhaps twice, with the visits of one page.
    count = PageCount.get_by_id(batch.key) or PageCount(id=batch.key)
    count.visits += len(items)
    count.writes += 1
    count.put()


def visit(clients: Clients, page: str, visitor: str, idempotency_key: str) -> None:
    count_visits.insert(clients, page, Visit(visitor), idempotency_key=idempotency_key)


# howto: to here


def play(clients: Clients, queue: RunningEmulator) -> str:
    """Insert visits, and fold them; return the counts."""
    with clients.context():
        for number in range(90):
            for _ in range(2 if number % 10 == 0 else 1):
                page = "home" if number % 3 else "about"
                visit(clients, page, f"visitor {number}", idempotency_key=f"r{number}")
        deliver_all(clients, queue)
        counts = sorted(PageCount.query(), key=lambda count: count.key.id())
    return ", ".join(
        f"{count.key.id()}: {count.visits} visits in {count.writes} "
        f"{'write' if count.writes == 1 else 'writes'}"
        for count in counts
    )


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: advance to the next due time, and deliver each task twice."""
    while (wake_at := queue.engine.wake_at()) is not None:
        queue.engine.advance(max(0.0, wake_at - queue.engine.clock.now()))
        while due := queue.engine.due():
            attempt = queue.engine.begin_attempt(due[0].task_name)
            for _ in range(2):
                task = count_visits.join_task
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
