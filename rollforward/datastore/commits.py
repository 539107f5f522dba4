"""Commits in one round trip: no begin, no read.

A transaction that reads nothing needs neither. `insert_all` writes entities that must not exist
yet, all or none; that they are new is checked by the same commit, so it is its own proof.
`put_unchanged` writes an entity that nobody else has written since its version was learned: a
compare-and-set. A writer that owns an entity for a while learns each version from its own last
commit, and so reads nothing in between. `commit_unchanged` does so for several entities, all or
none, and inserts what must not exist yet in the same commit; `read_versions` reads entities with
their versions. Without snapshots a lookup that leaves some of its keys for the next one is of
several moments: `look_up` says so.

ndb has no such calls, so this uses its conversion of entities, and the client's own stub. Its
conversion is looked up for each call, and not imported by name:
`rollforward/datastore/unknown_properties.py` replaces it when the app opens its client.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.datastore_v1.types import (
    CommitRequest,
    CommitResponse,
    Mutation,
    TransactionOptions,
)
from google.cloud.ndb import model

from rollforward.datastore import calls

# What `put_unchanged` raises when the entity was written or deleted since.
CHANGED = (rpc_errors.FailedPrecondition, rpc_errors.NotFound)

_READ_WRITE = TransactionOptions.pb(TransactionOptions(read_write=TransactionOptions.ReadWrite()))


def insert_all(client: ndb.Client, entities: Sequence[ndb.Model]) -> list[int]:
    """Write entities with keys of their own, all of them or none; return their versions.

    Raises:
        google.api_core.exceptions.AlreadyExists: one of them exists; nothing was written.
        google.api_core.exceptions.Aborted: a race was lost; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: what the service said. It may have been
            written all the same.
    """
    inserts = [Mutation(insert=protobuf_of(entity)) for entity in entities]
    return _versions(commit(client, inserts))


def put_unchanged(client: ndb.Client, entity: ndb.Model, version: int) -> int:
    """Write an entity that is still as a commit left it; return its new version.

    Args:
        version: What that commit returned.

    Raises: as `commit_unchanged`.
    """
    return commit_unchanged(client, puts=[(entity, version)])[0]


def commit_unchanged(
    client: ndb.Client,
    *,
    puts: Sequence[tuple[ndb.Model, int | None]] = (),
    deletes: Sequence[tuple[Any, int]] = (),
) -> list[int]:
    """Write and delete entities that all have the versions given, or none; return new versions.

    Args:
        puts: Entities, each with the version that it has in Datastore; None: there is none yet.
        deletes: Keys, likewise.

    Raises:
        google.api_core.exceptions.FailedPrecondition: one was written since; nothing was written.
        google.api_core.exceptions.NotFound: one was deleted since; nothing was written.
        google.api_core.exceptions.AlreadyExists: one was made since; nothing was written.
        google.api_core.exceptions.Aborted: a race was lost; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: what the service said. It may have been
            written all the same.
    """
    # By default a conflict drops its mutation, and the commit succeeds.
    guarded = partial(
        Mutation, conflict_resolution_strategy=Mutation.ConflictResolutionStrategy.FAIL
    )
    mutations = [
        Mutation(insert=protobuf_of(entity))
        if at is None
        else guarded(update=protobuf_of(entity), base_version=at)
        for entity, at in puts
    ]
    mutations += [guarded(delete=key._key.to_protobuf(), base_version=at) for key, at in deletes]
    return _versions(commit(client, mutations))


def read_versions(client: ndb.Client, keys: Sequence[Any]) -> list[tuple[ndb.Model, int] | None]:
    """Read entities by key, each with its version; None: there is none.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    return look_up(client, keys)[0]


def look_up(
    client: ndb.Client, keys: Sequence[Any]
) -> tuple[list[tuple[ndb.Model, int] | None], bool]:
    """Return the same, and whether all of it is of one moment.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    found: dict[Any, tuple[ndb.Model, int]] = {}
    asked = [key._key.to_protobuf()._pb for key in dict.fromkeys(keys)]
    answer = calls.look_up(client, asked)
    for result in answer.results:
        entity = model._entity_from_ds_entity(helpers.entity_from_protobuf(result.entity))
        found[entity.key] = (entity, result.version)
    return [found.get(key) for key in keys], answer.is_one_moment


def commit(client: ndb.Client, mutations: Sequence[Mutation]) -> CommitResponse:
    """Apply mutations, all of them or none, in a transaction that reads nothing.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    request = commit_request(client)
    request.mutations.extend(map(Mutation.pb, mutations))
    return calls.call_stub(client.stub.commit, request)


def commit_request(client: ndb.Client) -> Any:
    """Return a commit of no mutations yet, in a transaction that reads nothing, as protobuf."""
    return CommitRequest.pb()(
        project_id=client.project,
        database_id=client.database or "",
        mode=CommitRequest.Mode.TRANSACTIONAL,
        single_use_transaction=_READ_WRITE,
    )


def protobuf_of(entity: ndb.Model) -> Any:
    """Return an entity as the service takes it."""
    return helpers.entity_to_protobuf(model._entity_to_ds_entity(entity))


def _versions(response: CommitResponse) -> list[int]:
    return [result.version for result in response.mutation_results]
