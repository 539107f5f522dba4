"""Server-side increments: a number grows by a commit that reads nothing.

`insert_and_increment` inserts some entities and adds to numbers of others, all or nothing, in one
round trip: a single-use transaction with property transforms. The numbers are of no index. What it
adds to must exist, so an entity that was deleted takes no increment with it.

ndb and google-cloud-datastore reach none of this; datastore_v1 does. The Datastore emulator ignores
transforms without a word, and an update with an empty mask empties its entity there. So
`supports_increments` tries it on a row of its own before a process relies on it.

IncrementProbe
    Key: "probe". What the probe writes: each commit of it leaves the same row, however many
    processes start together. Queries: none. Growth: one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    Entity,
    Mutation,
    PropertyMask,
    PropertyTransform,
    Value,
)

from rollforward.datastore.commits import commit, protobuf_of

# Numbers that no service makes up by itself.
_BEGIN, _ADDED = 1, 41


class IncrementProbe(ndb.Model):
    """What a process that starts adds to, to see whether it grows."""

    number = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Increment:
    """How much a number of an entity grows."""

    key: Any
    name: str  # Of the property.
    amount: int

    @property
    def mutation(self) -> Mutation:
        """Return it as a part of a commit. The empty mask leaves all other properties alone.

        A sum that is not excluded from indexes is indexed, whatever the number was before.
        """
        amount = Value(integer_value=self.amount, exclude_from_indexes=True)
        grown = PropertyTransform(property=self.name, increment=amount)
        return Mutation(
            update=Entity(key=self.key._key.to_protobuf()),
            property_mask=PropertyMask(),
            property_transforms=[grown],
        )


def insert_and_increment(
    client: ndb.Client, entities: Sequence[ndb.Model], increments: Sequence[Increment]
) -> None:
    """Insert entities, and add to numbers of others, which must exist: all of it, or nothing.

    Raises:
        google.api_core.exceptions.AlreadyExists: an entity exists; nothing was written.
        google.api_core.exceptions.NotFound: what was to grow does not exist; nothing was written.
        google.api_core.exceptions.Aborted: a race was lost; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: what the service said. It may have been
            written all the same.
    """
    inserts = [Mutation(insert=protobuf_of(entity)) for entity in entities]
    commit(client, [*inserts, *(increment.mutation for increment in increments)])


def supports_increments(client: ndb.Client) -> bool:
    """Return whether this service adds to a number when it is told to.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: it did not answer; that says nothing.
    """
    key = ndb.Key(IncrementProbe, "probe")
    begin = Mutation(upsert=protobuf_of(IncrementProbe(key=key, number=_BEGIN)))
    try:
        response = commit(client, [begin, Increment(key, "number", _ADDED).mutation])
    except (rpc_errors.InvalidArgument, rpc_errors.MethodNotImplemented):
        return False
    results = list(response.mutation_results[-1].transform_results)
    return [result.integer_value for result in results] == [_BEGIN + _ADDED]
