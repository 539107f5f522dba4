"""A worker of a pull queue, in a process of its own: it leases and acks until nothing is left.

    python -m benchmarks.batches.leaser PROJECT DATASTORE QUEUE AT_ONCE

It prints "ready", and starts when it reads a line. At the end it prints as JSON the number of acked
items, the time of the last ack on the machine's monotonic clock, and the round trips until then.
The check that a queue is empty costs further ones, which are not counted: a query per partition.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass

from rollforward.outbox import InlineRelay
from rollforward.pull_queues import PullQueue
from rollforward.runtime import Clients, Meter, NoCache, open_datastore

PARTITIONS = 16
# A failed worker's leases return to the queue, so it is empty only after several empty looks.
MAX_EMPTY, PAUSE_S = 3, 0.02


def main() -> None:
    """Drain a queue."""
    project, datastore, name, at_once = sys.argv[1:]
    meter = Meter()
    client = open_datastore(project, emulator=datastore, interceptors=[meter])
    clients = Clients(client, None, NoCache(), meter, InlineRelay())  # type: ignore[arg-type]
    queue = PullQueue(name, partitions=PARTITIONS)
    with clients.context():
        queue.has_items("none")  # Opens the connection.
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(asdict(drain(clients, queue, int(at_once)))))


@dataclass
class Worked:
    """A worker's work until its last ack."""

    acked: int = 0
    ended_at: float = 0.0
    round_trips: int = 0


def drain(clients: Clients, queue: PullQueue, at_once: int) -> Worked:
    """Lease and ack until nothing is left."""
    worked, empty = Worked(), 0
    start_cost = clients.meter.total()
    while empty < MAX_EMPTY:
        if leases := queue.lease(clients, limit=at_once):
            worked.acked += len(leases) - len(queue.ack(clients, leases))
            worked.ended_at = time.monotonic()
            worked.round_trips = (clients.meter.total() - start_cost).round_trips
            empty = 0
        else:
            empty += 1
            time.sleep(PAUSE_S)
    return worked


if __name__ == "__main__":
    main()
