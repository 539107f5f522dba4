"""The processor time of a save by its parts: `python -m benchmarks.save_cost`.

One thread saves to the Datastore emulator, without HTTP and without a relay. The output has the
processor time of this process, in milliseconds per operation. It contains neither the emulator's
time nor any waiting, so other load on the machine disturbs it little.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

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
from benchmarks.materialized_views.app import GROUPS, Bare, source
from rollforward.datastore.transactions import transact
from rollforward.local.services.standalone import datastore_emulator
from rollforward.materialized_views.entities import catalog_key, marker_key
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Clients, Meter, NoCache, open_datastore

ROUNDS, TIMES = 3, 150
_numbers = itertools.count()


class _NoRelay:
    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        pass

    def resolve(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        pass


def main() -> None:
    """Measure and print."""
    meter = Meter()
    with datastore_emulator() as datastore:
        clients = Clients(
            datastore=open_datastore(PROJECT, emulator=datastore, interceptors=[meter]),
            tasks=None,  # type: ignore[arg-type]
            cache=NoCache(),
            meter=meter,
            relay=_NoRelay(),
        )
        kind, views = GROUPS[1]
        with clients.context():
            works: dict[str, Callable[[], object]] = {
                "a bare put": lambda: _new(Bare).put(),
                "its call, without ndb": lambda: _commit(clients, [_new(Bare).key]),
                "the calls of a save, without ndb": lambda: _call(clients),
                "a transaction of nothing": lambda: transact(lambda: None),
                "... with two reads": lambda: transact(_read),
                "... and three writes": lambda: transact(_read_and_write),
                "a save with one view": lambda: views.save(clients, _new(kind)),
            }
            for name, work in works.items():
                times = [_timed(work) for _ in range(ROUNDS)]
                print(f"{name:<34}{statistics.median(times):6.2f}")


def _timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of processor time of an operation."""
    started = time.process_time()
    for _ in range(TIMES):
        work()
    return (time.process_time() - started) / TIMES * 1e3


def _new(kind: type[ndb.Model]) -> ndb.Model:
    """Return a new source, not saved yet."""
    return source(kind, next(_numbers))


def _keys(bare: ndb.Model) -> list[ndb.Key]:
    """Return the keys that a save of a source reads: its marker, and a copy of the catalog."""
    return [marker_key(bare.key), catalog_key("one", 0)]


def _read() -> None:
    ndb.get_multi(_keys(_new(Bare)))


def _read_and_write() -> None:
    _read()
    for _ in range(3):
        _new(Bare).put()


def _call(clients: Clients) -> None:
    """Begin, read two rows and commit three, by bare calls."""
    stub, project = clients.datastore.stub, clients.datastore.project
    transaction = stub.begin_transaction(BeginTransactionRequest(project_id=project)).transaction
    keys = [_message(key) for key in _keys(_new(Bare))]
    options = ReadOptions(transaction=transaction)
    stub.lookup(LookupRequest(project_id=project, keys=keys, read_options=options))
    _commit(clients, [_new(Bare).key for _ in range(3)], transaction)


def _commit(clients: Clients, keys: Sequence[ndb.Key], transaction: bytes | None = None) -> None:
    mode = CommitRequest.Mode
    request = CommitRequest(
        project_id=clients.datastore.project,
        mode=mode.TRANSACTIONAL if transaction else mode.NON_TRANSACTIONAL,
        mutations=[Mutation(upsert=_entity(key)) for key in keys],
        transaction=transaction,
    )
    clients.datastore.stub.commit(request)


def _entity(key: ndb.Key) -> Entity:
    number = Value(integer_value=1, exclude_from_indexes=True)
    properties = {"grade": Value(integer_value=1), "house": number, "points": number}
    return Entity(key=_message(key), properties=properties)


def _message(key: ndb.Key) -> Key:
    path = [Key.PathElement(kind=kind, name=name) for kind, name in key.pairs()]
    return Key(partition_id={"project_id": PROJECT}, path=path)


if __name__ == "__main__":
    main()
