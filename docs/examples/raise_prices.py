"""A job of your own over a kind of your own: it raises each book's price exactly once.

    .venv/bin/python -m docs.examples.raise_prices

It has the requirements of `make run`, starts its own services on free ports, and delivers the
tasks itself. In an app, rollforward/flask/endpoints/tasks.py delivers them
(docs/howto/add-a-job.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations import EntitySource, job
from rollforward.continuations.pages.attempt import page_task
from rollforward.continuations.progress import progress
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.outbox import InlineRelay
from rollforward.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from rollforward.tasks import AppEngineTarget, CloudTaskQueue

ROOT = Path(__file__).parents[2]


# howto: from here
class Book(ndb.Model):
    cents = ndb.IntegerProperty(indexed=False)


@dataclass(frozen=True)
class RaiseArgs:
    percent: int


@job(source=EntitySource(Book), page_size=50)
def raise_prices(args: RaiseArgs, books: Sequence[Book]) -> None:
    # Runs in a transaction, perhaps twice, so it reads the books again.
    fresh = [book for book in ndb.get_multi([book.key for book in books]) if book]
    for book in fresh:
        book.cents += book.cents * args.percent // 100
    ndb.put_multi(fresh)


# howto: to here


def walk(clients: Clients, queue: RunningEmulator) -> tuple[str, list[int]]:
    """Raise the price of some books; return the run's result, and the distinct prices."""
    with clients.context():
        ndb.put_multi([Book(id=f"book-{i}", cents=1000) for i in range(120)])
        for _ in range(2):  # The same intent is the same run: the second start does nothing.
            continuations.start(clients, raise_prices, RaiseArgs(percent=5), run_id="spring")
        deliver_all(clients, queue)
        run = progress("spring")
        prices = sorted({book.cents for book in Book.query()})
    return f"{run.totals.done} of {run.expected} books, {run.totals.pages} pages", prices


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: deliver due tasks, each twice."""
    task = page_task(raise_prices)
    while due := queue.engine.due():
        attempt = queue.engine.begin_attempt(due[0].task_name)
        for _ in range(2):
            task.work(clients, task.read(attempt.body))
        queue.engine.end_attempt(attempt.id, status=204)


def open_clients(datastore: str, queue: RunningEmulator, namespace: str = "") -> Clients:
    """Open the clients that pipelines use, without a cache."""
    place = queue.engine.place
    cloud_tasks = open_cloud_tasks(emulator=queue.grpc_address)
    return Clients(
        datastore=open_datastore("demo-books", emulator=datastore, namespace=namespace),
        tasks=CloudTaskQueue(cloud_tasks, place.project, place.location, AppEngineTarget()),
        cache=open_cache(None),
        meter=Meter(),
        relay=InlineRelay(),
    )


def main() -> None:
    """Start the services, walk, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        said, prices = walk(open_clients(datastore, queue), queue)
        print(f"{said}; prices in cents: {prices}")  # noqa: T201


if __name__ == "__main__":
    main()
