"""A Datastore in a dictionary, for searches too wide for an emulator.

It runs the real code of the views, one whole transaction after the other, as a serializable
store does. `test_memory.py` plays one history in it and on both emulators, and
compares every row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb

from rollforward.datastore import transactions
from rollforward.datastore.transactions import Transaction
from rollforward.fork_join.batching.packs import StoredPack
from rollforward.fork_join.entities import PackId, WorkPack, pack_key, packs_of_epoch
from rollforward.materialized_views import Apply, ViewGroup
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime.sharing.shared_transaction import SharedBody

# Of each key its kind, its values, and those as text, by which states are compared.
Facts = dict[Any, tuple[type[ndb.Model], dict[str, Any], str]]


class Memory:
    """Entities by key. Each get makes an entity anew; values are shared, the code replaces them."""

    current: ClassVar[Memory]

    def __init__(self, facts: Facts | None = None, transactions: int = 0) -> None:
        self.facts: Facts = dict(facts or {})
        self.transactions = transactions

    def branch(self) -> Memory:
        """Return a memory that goes its own way from here."""
        return Memory(self.facts, self.transactions)

    def get(self, key: Any) -> Any:
        found = self.facts.get(key)
        if found is None:
            return None
        kind, values, _ = found
        return kind(key=key, **values)

    def put(self, entity: Any) -> Any:
        names = [found._code_name for found in entity._properties.values()]
        values = {name: getattr(entity, name) for name in names}
        # What a source's marker has sent is for tokens alone, and no two histories share it.
        told = {name: value for name, value in values.items() if name != "sent"}
        self.facts[entity.key] = (type(entity), values, repr(told))
        return entity.key

    def delete(self, key: Any) -> None:
        self.facts.pop(key, None)

    def transact(self, body: Callable[[], Any]) -> Any:
        """Run a body; its transaction has the same id wherever the history is the same."""
        self.transactions += 1
        with transactions.inside(Transaction(id=f"{self.transactions:024x}")):
            return body()

    def tasks(self, views: ViewGroup) -> list[Apply]:
        """Return the updates that have been committed and not applied."""
        rows = {key: values for key, (kind, values, _) in self.facts.items() if kind is OutboxTask}
        return [_read(views, rows[key]["body"]) for key in sorted(rows)]

    def state(self) -> frozenset[Any]:
        """Return everything that is stored, as something that can be compared."""
        return frozenset((key, text) for key, (_, _, text) in self.facts.items())

    def __enter__(self) -> Memory:
        """Let ndb read and write here, inside of `offline`."""
        Memory.current = self
        return self

    def __exit__(self, *error: object) -> None:
        del Memory.current


@functools.cache
def _read(views: ViewGroup, body: str) -> Apply:
    return views.task.read(body.encode())


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let calls for several entities be ndb's for each, and `get_by_id` that of its key."""

    def get_by_id(kind: type[ndb.Model], id_: Any) -> Any:
        return ndb.Key(kind, id_).get()

    with (
        mock.patch.object(ndb, "put_multi", lambda rows: [row.put() for row in rows]),
        mock.patch.object(ndb, "delete_multi", lambda keys: [key.delete() for key in keys]),
        mock.patch.object(ndb.Model, "get_by_id", classmethod(get_by_id)),
        mock.patch("rollforward.fork_join.fold.list_packs", _list_packs),
        mock.patch("rollforward.fork_join.fold.read_packs", _read_packs),
    ):
        yield


def _list_packs(clients: Any, queue: str, epoch: str, limit: int) -> list[PackId]:
    keys = packs_of_epoch(queue, epoch).fetch(limit, keys_only=True)
    return [PackId.parse(key.id()) for key in keys]


def _read_packs(packs: Sequence[PackId]) -> list[StoredPack | None]:
    rows = ndb.get_multi([pack_key(pack.text) for pack in packs])
    return [None if row is None else stored_pack(row) for row in rows]


def versions_of_packs(read: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Any:
    """Let packs be read with their versions by what reads entities so."""

    def read_pack_versions(
        clients: Any, packs: Sequence[PackId]
    ) -> Sequence[tuple[StoredPack, Any]]:
        found = read(None, [pack_key(pack.text) for pack in packs])
        return [(stored_pack(row[0]), row[1]) for row in found if row is not None]

    return mock.patch("rollforward.fork_join.fold.read_pack_versions", read_pack_versions)


def stored_pack(row: WorkPack) -> StoredPack:
    """Return a pack as a fold reads it."""
    return StoredPack(
        row.key, row.batch_key, row.items, row.traceparents or "", bool(row.keep_result)
    )


@contextmanager
def offline() -> Iterator[None]:
    """Open an ndb context that reaches nothing but the current memory."""

    def get_multi(keys: Sequence[Any]) -> list[Any]:
        return [Memory.current.get(key) for key in keys]

    def transact(body: Callable[[], Any]) -> Any:
        return Memory.current.transact(body)

    def transact_shared(clients: Any, body: SharedBody[Any]) -> Any:
        return Memory.current.transact(lambda: body.run(body.reads(0)))

    client = ndb.Client(project="demo-memory", credentials=AnonymousCredentials())
    with (
        client.context(cache_policy=False, global_cache=None, legacy_data=False),
        mock.patch.object(ndb, "get_multi", get_multi),
        one_by_one(),
        mock.patch.object(ndb.Key, "get", lambda key: Memory.current.get(key)),
        mock.patch.object(ndb.Key, "delete", lambda key: Memory.current.delete(key)),
        mock.patch.object(ndb.Model, "put", lambda entity: Memory.current.put(entity)),
        mock.patch("rollforward.materialized_views.group.transact_shared", transact_shared),
        mock.patch("rollforward.materialized_views.group.transact", transact),
        mock.patch("rollforward.materialized_views.updating.apply.transact", transact),
        mock.patch(
            "rollforward.materialized_views.updating.apply.transact_declared", transact_shared
        ),
    ):
        yield
