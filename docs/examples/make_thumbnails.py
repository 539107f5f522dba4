"""A pull queue: workers lease items by tag, one of them dies, and each item is done.

    .venv/bin/python -m docs.examples.make_thumbnails

Six photos of two users wait. A worker leases the photos of the user who has waited longest, and
dies. After its lease has ended, another worker processes them all. The program starts its own
services: see raise_prices.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import json

from docs.examples.raise_prices import ROOT, open_clients
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.pull_queues import OLDEST, Lease, PullQueue
from rollforward.runtime import Clients

# howto: from here
THUMBNAILS = PullQueue("thumbnails", max_deliveries=5)


def upload(clients: Clients, user: str, photo: int) -> None:
    THUMBNAILS.add(
        clients, json.dumps({"photo": photo}), tag=user, idempotency_key=f"photo-{photo}"
    )


def work(clients: Clients) -> list[int]:
    # Photos of the user who has waited longest, because they are read from one disk.
    leases = THUMBNAILS.lease(clients, limit=20, lease_s=60, tag=OLDEST)
    done = [lease for lease in leases if make_thumbnail(lease)]
    lost = THUMBNAILS.ack(clients, done)
    return [json.loads(lease.payload)["photo"] for lease in done if lease not in lost]


def make_thumbnail(lease: Lease) -> bool:
    return lease.payload.startswith("{")  # Your code: returns whether it succeeded.


# howto: to here


@dataclasses.dataclass
class Clock:
    """A clock that the program advances, instead of waiting a minute for a lease to end."""

    at: datetime.datetime

    def now(self) -> datetime.datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += datetime.timedelta(seconds=seconds)


def play(clients: Clients, queue: RunningEmulator) -> str:
    """Upload, let one worker die and another one work; return their reports. Nothing is pushed."""
    clock = Clock(clients.clock.now())
    clients = dataclasses.replace(clients, clock=clock)
    said = []
    with clients.context():
        for photo in range(6):
            upload(clients, user="aki" if photo % 2 else "mio", photo=photo)
            clock.sleep(1)
        dead = THUMBNAILS.lease(clients, limit=20, lease_s=60, tag=OLDEST)
        said.append(f"a worker dies with {len(dead)} photos")
        while done := work(clients):
            said.append(f"another does {sorted(done)}")
        clock.sleep(61)
        while done := work(clients):
            said.append(f"a minute later it does {sorted(done)}")
        said.append(f"the dead one comes back and has lost {len(THUMBNAILS.ack(clients, dead))}")
    return "\n".join(said)


def main() -> None:
    """Start the services, play, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        print(play(open_clients(datastore, queue), queue))  # noqa: T201


if __name__ == "__main__":
    main()
