"""A worker of a pull queue, in a process of its own: it leases and acks until nothing is left.

    python -m benchmarks.batches.leaser PROJECT DATASTORE QUEUE AT_ONCE

It says "ready", begins with the first line that it reads, and says as JSON how many items it has
acked; and when it acked the last one, on the machine's monotonic clock, and by how many round trips
until then. To see that a queue is empty costs more of them: a query for each partition.
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
# What others have leased comes back when they fail: nothing is left after so many looks in vain.
MAX_EMPTY, PAUSE_S = 3, 0.02


def main() -> None:
    """Work off a queue."""
    project, datastore, name, at_once = sys.argv[1:]
    meter = Meter()
    client = open_datastore(project, emulator=datastore, interceptors=[meter])
    clients = Clients(client, None, NoCache(), meter, InlineRelay())  # type: ignore[arg-type]
    queue = PullQueue(name, partitions=PARTITIONS)
    with clients.context():
        queue.has_items("none")  # The connection is there.
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(asdict(drain(clients, queue, int(at_once)))))


@dataclass
class Worked:
    """The work of a worker, until it acked the last item."""

    acked: int = 0
    ended_at: float = 0.0
    round_trips: int = 0


def drain(clients: Clients, queue: PullQueue, at_once: int) -> Worked:
    """Lease and ack until nothing is left."""
    worked, empty = Worked(), 0
    before = clients.meter.total()
    while empty < MAX_EMPTY:
        if leases := queue.lease(clients, limit=at_once):
            worked.acked += len(leases) - len(queue.ack(clients, leases))
            worked.ended_at = time.monotonic()
            worked.round_trips = (clients.meter.total() - before).round_trips
            empty = 0
        else:
            empty += 1
            time.sleep(PAUSE_S)
    return worked


if __name__ == "__main__":
    main()
