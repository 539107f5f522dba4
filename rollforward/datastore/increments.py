"""Server-side increments: a number grows by a commit that reads nothing.

`insert_and_increment` inserts some entities and adds to numbers of others, all or nothing, in one
round trip: a single-use transaction with property transforms. The numbers are not indexed. An
entity must exist to be incremented, so a deleted one takes no increment with it.

ndb and google-cloud-datastore have no call for it; datastore_v1 does. The Datastore emulator
ignores transforms silently, and an update with an empty mask empties its entity there. So
`supports_increments` tries it on a row of its own before a process relies on it.

IncrementProbe
    Key: "probe-<0 to 63>". Each commit of a probe leaves the same row. A row takes about one write
    a second, and a deployment starts many processes together, so each draws its row. Queries:
    none. Growth: 64 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit
from rollforward.datastore.conversion.protobufs import protobuf_of, protobuf_of_key

# Numbers that no service makes up by itself.
_INITIAL, _AMOUNT = 1, 41
PROBES = 64


class IncrementProbe(ndb.Model):
    """A number that a starting process increments, to see whether the service does."""

    number = ndb.IntegerProperty(indexed=False, default=0)


class Increment(NamedTuple):
    """An amount that is added to a number of an entity."""

    key: Any
    name: str  # Of the property.
    amount: int


def insert_and_increment(
    client: ndb.Client, entities: Sequence[ndb.Model], increments: Sequence[Increment]
) -> None:
    """Insert entities, and add to numbers of others, which must exist: all of it, or nothing.

    Raises: as `Commit.apply`.
    """
    commit = Commit(client)
    for entity in entities:
        commit.insert(protobuf_of(entity))
    for key, name, amount in increments:
        commit.increment(protobuf_of_key(key), name, amount)
    commit.apply()


def supports_increments(client: ndb.Client, probe_number: int) -> bool:
    """Return whether the service applies increments.

    Args:
        probe_number: The number of the row to write, below `PROBES`.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: it did not answer; that says nothing.
    """
    commit = Commit(client)
    probe = IncrementProbe(id=f"probe-{probe_number}", number=_INITIAL)
    commit.upsert(protobuf_of(probe))
    commit.increment(protobuf_of_key(probe.key), "number", _AMOUNT)
    try:
        sums = commit.apply()[-1].transform_results
    except (rpc_errors.InvalidArgument, rpc_errors.MethodNotImplemented):
        return False
    return [result.integer_value for result in sums] == [_INITIAL + _AMOUNT]
