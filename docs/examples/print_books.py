"""A batch of tasks: the pages of a book are printed in parallel, and then it is bound, once.

    .venv/bin/python -m docs.examples.print_books

Page 7 jams until the jam is cleared. Every task is delivered twice. The program starts its own
services: see raise_prices.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from docs.examples.raise_prices import ROOT, open_clients
from rollforward.batches import Completed, TaskBatch
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import Reject, task


# howto: from here
class BoundBook(ndb.Model):
    bound = ndb.TextProperty()


class Jam(ndb.Model):
    """A page that cannot be printed as long as this row exists."""


@dataclass(frozen=True)
class Print:
    number: int


@task(queue="fan-out")
def print_page(clients: Clients, args: Print) -> dict[str, int]:
    if Jam.get_by_id(args.number) is not None:
        raise Reject(f"page {args.number} has jammed")
    return {"sheets": 1 + args.number % 2}


@task(queue="default")
def bind(clients: Clients, args: Completed) -> None:
    # May be delivered twice; it writes the same both times.
    if args.outcome == "succeeded":
        sheets = sum(page.result["sheets"] for page in BOOKS.results(args.batch_id))
        BoundBook(id=args.batch_id, bound=f"{args.done} pages on {sheets} sheets").put()


BOOKS = TaskBatch("books", members=[print_page], on_complete=bind)


def print_book(clients: Clients, book: str, pages: int) -> None:
    work = [(print_page, Print(number)) for number in range(1, pages + 1)]
    BOOKS.populate(clients, book, work, seal=True)


# howto: to here


def play(clients: Clients, queue: RunningEmulator) -> list[str]:
    """Print a book, clear the jam, and run the failed page again; return the reports."""
    said = []
    with clients.context():
        Jam(id=7).put()
        for _ in range(2):  # The same intent is the same batch: the second call adds nothing.
            print_book(clients, "moby-dick", pages=100)
        deliver_all(clients, queue)
        seen = BOOKS.progress("moby-dick")
        said.append(f"{seen.outcome}: {seen.done} of {seen.members} pages are printed")
        said += [f"page {page.ordinal + 1}: {page.error}" for page in BOOKS.failures("moby-dick")]
        Jam(id=7).key.delete()
        said.append(f"run again: {BOOKS.run_again(clients, 'moby-dick')} page")
        deliver_all(clients, queue)
        said += [f"{book.key.id()}: {book.bound}" for book in BoundBook.query()]
    return said


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: wait until a task is due, and deliver each twice."""
    tasks = Registry(BOOKS).tasks
    while (wake_at := queue.engine.wake_at()) is not None:
        # Also wait in real time, by which batches know when they are complete.
        time.sleep(max(0.0, wake_at - queue.engine.clock.now()))
        queue.engine.advance(max(0.0, wake_at - queue.engine.clock.now()))
        while due := queue.engine.due():
            attempt = queue.engine.begin_attempt(due[0].task_name)
            task = tasks[f"/tasks/{attempt.url.partition('/tasks/')[2]}"]
            for _ in range(2):
                run(clients, task, task.read(attempt.body))
            queue.engine.end_attempt(attempt.id, status=204)


def run(clients: Clients, task: Any, args: Any) -> None:
    """Do what rollforward/flask/endpoints/tasks.py does for one delivery."""
    try:
        task.work(clients, args)
    except Reject as error:
        task.on_give_up(clients, args, f"Reject: {error}")


def main() -> None:
    """Start the services, play, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        print("\n".join(play(open_clients(datastore, queue), queue)))  # noqa: T201


if __name__ == "__main__":
    main()
