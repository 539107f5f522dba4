"""The time of a lone insert by its parts, and of a bare put: `python -m benchmarks.insert_cost`.

One thread makes inserts and puts in turn against the Datastore emulator, memcached and the Cloud
Tasks emulator, without HTTP and without folds. The output has medians in milliseconds, of the clock
and of the thread's processor time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fork_join.app import FORK_JOIN, Addition, BareAddition
from benchmarks.harness.testbed import ACCOUNT, LOCATION, PROJECT, QUEUE_YAML
from rollforward.fork_join import insert
from rollforward.fork_join.items import ItemCodec
from rollforward.fork_join.joiners import Joiners
from rollforward.local.cloudtasks.emulator import running
from rollforward.local.services.standalone import datastore_emulator, memcached
from rollforward.outbox import InlineRelay
from rollforward.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from rollforward.tasks import CloudTaskQueue, UrlTarget

WARM, TIMES = 500, 4_000
NOWHERE = "http://127.0.0.1:9"
PARTS: dict[str, tuple[Any, str]] = {
    "... its item, as JSON": (ItemCodec, "insertion"),
    "... its batch, in memcached": (Joiners, "enter"),
    "... who folds the batch": (Joiners, "start"),
    "... its commit": (insert, "insert_rows"),
    "... it leaves the batch, in memcached": (Joiners, "leave"),
}

Times = dict[str, list[tuple[float, float]]]


def main() -> None:
    """Measure and print."""
    times: Times = defaultdict(list)
    for name, (owner, function) in PARTS.items():
        setattr(owner, function, _timing(times, name, getattr(owner, function)))
    with _clients() as clients, clients.context():
        put = _timing(times, "a bare put", lambda: BareAddition(amount=1).put())
        add = _timing(times, "a lone insert", lambda: FORK_JOIN.insert(clients, "sum", Addition(1)))
        for turn in range(WARM + TIMES):
            if turn == WARM:
                times.clear()
            put()
            add()
    print(f"{'':<40}{'clock':>8}{'processor':>11}")
    for name in ("a bare put", "a lone insert", *PARTS):
        clock, processor = zip(*times[name], strict=True)
        print(f"{name:<40}{statistics.median(clock):8.2f}{statistics.median(processor):11.2f}")


def _timing(times: Times, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that notes the milliseconds of each call."""

    def timed(*arguments: Any, **options: Any) -> Any:
        clock, processor = time.perf_counter(), time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            took = time.perf_counter() - clock, time.thread_time() - processor
            times[name].append((1e3 * took[0], 1e3 * took[1]))

    return timed


@contextmanager
def _clients() -> Iterator[Clients]:
    with tempfile.TemporaryDirectory() as folder:
        queues = Path(folder) / "queue.yaml"
        queues.write_text(QUEUE_YAML.replace("AT_ONCE", "1"))
        with (
            datastore_emulator() as datastore,
            memcached() as cache,
            running(
                queue_yaml=queues, app_url=NOWHERE, project=PROJECT, location=LOCATION
            ) as queue,
        ):
            tasks = open_cloud_tasks(emulator=queue.grpc_address)
            target = UrlTarget(NOWHERE, ACCOUNT, NOWHERE)
            yield Clients(
                datastore=open_datastore(PROJECT, emulator=datastore),
                tasks=CloudTaskQueue(tasks, PROJECT, LOCATION, target),
                cache=open_cache(cache),
                meter=Meter(),
                relay=InlineRelay(),
            )


if __name__ == "__main__":
    main()
