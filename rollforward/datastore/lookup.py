"""The one lookup loop: 1,000 keys a call, and the keys that an answer defers in the next one.

With snapshots, all parts of an answer are of the moment of the first. ndb follows its own lookups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.cloud import ndb
from google.cloud.datastore_v1.types import LookupRequest, LookupResponse

from rollforward.datastore.stub import call_stub

MAX_KEYS = 1000


class Lookup(NamedTuple):
    """The entities that exist, and the moment at which they were read.

    `moment` is None where the service has no snapshots (the Datastore emulator).
    """

    results: list[Any]
    moment: Any
    is_one_moment: bool


def lookup(
    client: ndb.Client, keys: Sequence[Any], *, at: Any = None, transaction: bytes | None = None
) -> Lookup:
    """Look up distinct keys, all of them, in any order.

    Args:
        keys: As protobuf.
        at: A moment that an earlier lookup returned.
        transaction: The transaction that the lookup belongs to.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    results, moment, calls, pending = [], at, 0, list(keys)
    while pending:
        request = LookupRequest.pb()(
            project_id=client.project, database_id=client.database or "", keys=pending[:MAX_KEYS]
        )
        if transaction is not None:
            request.read_options.transaction = transaction
        elif moment is not None:
            request.read_options.read_time.CopyFrom(moment)
        response = LookupResponse.pb(call_stub(client.stub.lookup, request))
        results += response.found
        if moment is None and response.HasField("read_time"):
            moment = response.read_time
        pending, calls = [*response.deferred, *pending[MAX_KEYS:]], calls + 1
    return Lookup(results, moment, moment is not None or calls <= 1)


def lookup_each(
    client: ndb.Client, keys: Sequence[Any], *, transaction: bytes | None = None
) -> list[Any]:
    """Return the result of each of some distinct keys, in order; None: it has no entity.

    Args, Raises: as of `lookup`.
    """
    results = lookup(client, keys, transaction=transaction).results
    found = {_identity(result.entity.key): result for result in results}
    return [found.get(_identity(key)) for key in keys]


def _identity(key: Any) -> tuple[Any, ...]:
    """Return the parts of a key that differ from key to key of a database."""
    path = [(element.kind, element.name, element.id) for element in key.path]
    return (key.partition_id.namespace_id, *path)
