"""A comparison of the two Datastore emulators: `python -m benchmarks.emulators`.

It measures saves of threads that share no row, writes of one row, the time of a save as the number
of rows grows, the time of a start, and the memory at the end. All calls are bare calls from one
process, on the emulators in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    CommitRequest,
    Entity,
    Key,
    LookupRequest,
    Mutation,
    ReadOptions,
    Value,
)

from benchmarks.harness.testbed import PROJECT
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.runtime import open_datastore

KINDS = ("datastore", "firestore")
ROUNDS, SECONDS = 3, 5.0
THREADS = (1, 8, 32)
SHARED_ROWS = 64  # Saves read them, and none writes them.
GROWN_TO = 25_000
SAVES_TIMED = 100

_numbers = itertools.count()
Save = Callable[[ndb.Client], None]


def main() -> None:
    """Measure and print one line of JSON for each figure."""
    for round_number, kind in itertools.product(range(ROUNDS), KINDS):
        for figure in _measure(kind):
            print(json.dumps({"round": round_number, "emulator": kind, **figure}), flush=True)


def _measure(kind: str) -> Iterator[dict[str, Any]]:
    with _running(kind) as (emulator, client, start_s):
        yield {"name": "start_s", "value": round(start_s, 2)}
        for name, save in (("saves", _save_alone), ("one_row", _save_shared)):
            for threads in THREADS:
                per_s, aborted = _rate(client, save, threads)
                yield {"name": f"{name}_{threads}", "per_s": per_s, "aborted": aborted}
        yield {"name": "save_ms", "rows": "few", "value": _save_ms(client)}
    with _running(kind) as (emulator, client, _):
        for _ in range(GROWN_TO // 500):
            _commit(client, [_key("Row", next(_numbers)) for _ in range(500)])
        yield {"name": "save_ms", "rows": GROWN_TO, "value": _save_ms(client)}
        per_s, aborted = _rate(client, _save_alone, THREADS[-1])
        yield {"name": "saves_32", "rows": GROWN_TO, "per_s": per_s, "aborted": aborted}
        yield {"name": "resident_mb", "rows": GROWN_TO, "value": _resident_mb(emulator)}


@contextlib.contextmanager
def _running(kind: str) -> Iterator[tuple[DatastoreEmulator, ndb.Client, float]]:
    """Run an emulator; yield it, its client, and the seconds until its first answer."""
    emulator = DatastoreEmulator(kind)
    began = time.perf_counter()
    emulator.start()
    try:
        client = open_datastore(PROJECT, emulator=emulator.address)
        _save_alone(client)
        yield emulator, client, time.perf_counter() - began
    finally:
        emulator.stop()


def _rate(client: ndb.Client, save: Save, threads: int) -> tuple[int, int]:
    """Return the saves a second of some threads, and the number of aborted saves."""
    saved, aborted = [0] * threads, [0] * threads
    ends_at = time.perf_counter() + SECONDS

    def run(number: int) -> None:
        while time.perf_counter() < ends_at:
            try:
                save(client)
                saved[number] += 1
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.ABORTED:
                    raise
                aborted[number] += 1

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return round(sum(saved) / SECONDS), sum(aborted)


def _save_ms(client: ndb.Client) -> float:
    began = time.perf_counter()
    for _ in range(SAVES_TIMED):
        _save_alone(client)
    return round((time.perf_counter() - began) / SAVES_TIMED * 1000, 2)


def _save_alone(client: ndb.Client) -> None:
    """Read a row of each of two kinds, and write three new rows."""
    number = next(_numbers)
    read = [_key("Catalog", number % SHARED_ROWS), _key("Marker", number)]
    written = [_key(kind, number) for kind in ("Source", "Marker", "Outbox")]
    _transact(client, read, written)


def _save_shared(client: ndb.Client) -> None:
    """Read one row and write it."""
    _transact(client, [_key("Row", 0)], [_key("Row", 0)])


def _transact(client: ndb.Client, read: list[Key], written: list[Key]) -> None:
    begun = client.stub.begin_transaction(BeginTransactionRequest(project_id=PROJECT))
    options = ReadOptions(transaction=begun.transaction)
    client.stub.lookup(LookupRequest(project_id=PROJECT, keys=read, read_options=options))
    _commit(client, written, begun.transaction)


def _commit(client: ndb.Client, keys: list[Key], transaction: bytes | None = None) -> None:
    mode = CommitRequest.Mode
    request = CommitRequest(
        project_id=PROJECT,
        mode=mode.TRANSACTIONAL if transaction else mode.NON_TRANSACTIONAL,
        mutations=[Mutation(upsert=_entity(key)) for key in keys],
        transaction=transaction,
    )
    client.stub.commit(request)


def _key(kind: str, number: int) -> Key:
    path = [Key.PathElement(kind=kind, name=f"{number:x}")]
    return Key(partition_id={"project_id": PROJECT}, path=path)


def _entity(key: Key) -> Entity:
    number = Value(integer_value=1, exclude_from_indexes=True)
    return Entity(key=key, properties={"grade": Value(integer_value=1), "points": number})


def _resident_mb(emulator: DatastoreEmulator) -> int:
    assert emulator.process is not None
    return int(emulator.process.process().memory_info().rss) // 1_000_000


if __name__ == "__main__":
    main()
