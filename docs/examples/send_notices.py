"""Lanes: notices of a user in their order, and no tenant behind another one's flood.

    .venv/bin/python -m docs.examples.send_notices

Ada gets three notices, and the first attempt at the second one fails. Then the tenant acme imports
300 rows, and zoo one. Each task is delivered twice. The program starts its own services: see
raise_prices.py.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from google.cloud import ndb

import rollforward as rf
from docs.examples.mail_digests import QueueClock
from docs.examples.raise_prices import ROOT, open_clients
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import Clients
from rollforward.tasks import Task


# howto: from here
class Basket(ndb.Model):
    user = ndb.TextProperty()


BY_USER = rf.Lane("by-user", order=True)
BY_TENANT = rf.Lane("by-tenant")


@rf.task
def notify(user: str, text: str) -> None:
    deliver(user, text)  # Your code: an error holds up the later notices of this user alone.


@rf.task
def import_row(tenant: str, number: int) -> None:
    store(tenant, number)  # Your code.


def place(clients: Clients, user: str, order_id: str) -> None:
    def body() -> None:
        if Basket.get_by_id(order_id) is not None:
            return  # The guard: this ran before, and its notice waits.
        Basket(id=order_id, user=user).put()
        rf.enqueue(clients, notify, notify.bind(user, f"{order_id} ordered"), lane=BY_USER(user))

    rf.transact(body)


def import_all(clients: Clients, tenant: str, rows: int) -> None:
    many = [import_row.bind(tenant, number) for number in range(rows)]
    import_row.enqueue_many(clients, many, lane=BY_TENANT(tenant))


# howto: to here

PARTS = {
    part.path: part
    for part in (
        notify,
        import_row,
        *(task for lane in (BY_USER, BY_TENANT) for task in lane.tasks),
    )
}
NOTICES: list[str] = []
IMPORTED: list[str] = []


def deliver(user: str, text: str) -> None:
    """Stand for a mail service, which fails once."""
    if text.startswith("lamp") and NOTICES[-1:] != ["failed"]:
        NOTICES.append("failed")
        raise ConnectionError("the mail service is down")
    NOTICES.append(text)


def store(tenant: str, number: int) -> None:
    """Stand for an import."""
    IMPORTED.append(tenant)


def play(clients: Clients, queue: RunningEmulator) -> str:
    """Order, import, and deliver all of it; return what came in which order."""
    clients = replace(clients, clock=QueueClock(queue), task_paths=PARTS)
    NOTICES.clear()
    IMPORTED.clear()
    with clients.context():
        for order_id in ("chair", "lamp", "table"):
            place(clients, "ada", order_id)
        import_all(clients, "acme", 300)
        import_all(clients, "zoo", 1)
        deliver_all(clients, queue)
    behind = "before" if IMPORTED.index("zoo") < 300 else "after"
    return (
        f"ada: {', '.join(NOTICES)}\n"
        f"{IMPORTED.count('acme')} rows of acme, {IMPORTED.count('zoo')} of zoo, "
        f"which came {behind} the end of acme's"
    )


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: advance to the next due time, and deliver each task twice."""
    while (wake_at := queue.engine.wake_at()) is not None:
        queue.engine.advance(max(0.0, wake_at - queue.engine.clock.now()))
        while due := queue.engine.due():
            attempt = queue.engine.begin_attempt(due[0].task_name)
            task: Task[object] = PARTS[urlsplit(attempt.url).path]
            for _ in range(2):
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
