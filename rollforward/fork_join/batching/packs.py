"""Packs as a fold has them: listed, read and deleted without ndb's entities.

A future, a tasklet and a conversion for each pack took most of a fold's processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.datastore import bodies, current
from rollforward.datastore.conversion.protobufs import protobuf_of_key
from rollforward.datastore.lookup import lookup_each
from rollforward.fork_join.entities import PackId, WorkPack, epoch_bounds, pack_key
from rollforward.runtime.clients import Clients

_KIND = WorkPack._get_kind()


@dataclass(frozen=True)
class StoredPack:
    """A pack as it is stored; see `WorkPack`."""

    key: Any
    batch_key: str
    items: str
    traceparents: str
    keep_result: bool

    @property
    def id(self) -> str:
        text: str = self.key.id()
        return text

    def delete(self) -> None:
        """Delete it in the transaction that this code runs in."""
        current.delete(self.key)


def list_packs(clients: Clients, queue: str, epoch: str, limit: int) -> list[PackId]:
    """Return the packs of an epoch, in order, up to a limit.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    low, high = epoch_bounds(queue, epoch)
    names = bodies.first_names(clients.datastore, _KIND, low.id(), high.id(), limit)
    return [PackId.parse(name) for name in names]


def read_packs(packs: Sequence[PackId]) -> list[StoredPack | None]:
    """Return packs as the transaction that this code runs in sees them; None: it is gone.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    keys = [pack_key(pack.text) for pack in packs]
    rows = zip(keys, current.read_protobufs(keys), strict=True)
    return [None if row is None else _stored(key, row) for key, row in rows]


def read_pack_versions(clients: Clients, packs: Sequence[PackId]) -> list[tuple[StoredPack, int]]:
    """Return the packs that exist, outside of a transaction, each with its version.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    keys = [pack_key(pack.text) for pack in packs]
    found = lookup_each(clients.datastore, [protobuf_of_key(key) for key in keys])
    rows = zip(keys, found, strict=True)
    return [(_stored(key, row.entity), row.version) for key, row in rows if row is not None]


def _stored(key: Any, row: Any) -> StoredPack:
    stored = row.properties
    return StoredPack(
        key,
        batch_key=stored["batch_key"].string_value,
        items=stored["items"].string_value,
        traceparents=stored["traceparents"].string_value,
        keep_result=stored["keep_result"].boolean_value,
    )
