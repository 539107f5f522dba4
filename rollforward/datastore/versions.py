"""Entities with their versions: written and read without a transaction, by compare-and-set.

A writer that owns an entity for a while learns each version from its own last commit, and so reads
nothing in between.

ndb has no calls for it, so this module uses its conversion of entities from protobufs. It is looked
up for each call, and not imported by name, since `unknown_properties.py` replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.ndb import model

from rollforward.datastore import lookup
from rollforward.datastore.commit import Commit
from rollforward.datastore.conversion.protobufs import protobuf_of, protobuf_of_key

# The errors of a compare-and-set whose entity was written or deleted since.
CHANGED = (rpc_errors.FailedPrecondition, rpc_errors.NotFound)


def insert_all(client: ndb.Client, entities: Sequence[ndb.Model]) -> list[int]:
    """Insert entities with keys of their own, all or none; return their versions.

    Raises: as `Commit.apply`.
    """
    return commit_if_current(client, puts=[(entity, None) for entity in entities])


def put_if_current(client: ndb.Client, entity: ndb.Model, version: int) -> int:
    """Write an entity that still has a version; return its new one.

    Raises: as `Commit.apply`.
    """
    return commit_if_current(client, puts=[(entity, version)])[0]


def commit_if_current(
    client: ndb.Client,
    *,
    puts: Sequence[tuple[ndb.Model, int | None]] = (),
    deletes: Sequence[tuple[Any, int]] = (),
) -> list[int]:
    """Write and delete entities that all have the versions given, or none; return new versions.

    Args:
        puts: Entities, each with the version that it has in Datastore; None: it is new.
        deletes: Keys, each with the version of its entity.

    Raises: as `Commit.apply`.
    """
    commit = commit_of_puts(client, puts)
    for key, version in deletes:
        commit.delete(protobuf_of_key(key), version)
    return [result.version for result in commit.apply()]


def commit_of_puts(client: ndb.Client, puts: Sequence[tuple[ndb.Model, int | None]]) -> Commit:
    """Return the commit of entities, each with the version that it has; None: it is new."""
    commit = Commit(client)
    for entity, version in puts:
        if version is None:
            commit.insert(protobuf_of(entity))
        else:
            commit.update(protobuf_of(entity), version)
    return commit


def read_versions(client: ndb.Client, keys: Sequence[Any]) -> list[tuple[ndb.Model, int] | None]:
    """Read entities by key, each with its version; None: it does not exist.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    return lookup_versions(client, keys)[0]


def lookup_versions(
    client: ndb.Client, keys: Sequence[Any]
) -> tuple[list[tuple[ndb.Model, int] | None], bool]:
    """Return what `read_versions` does, and whether all of it is of one moment.

    Without snapshots a lookup that defers some of its keys is of several moments.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    answer = lookup.lookup(client, [protobuf_of_key(key) for key in dict.fromkeys(keys)])
    versions: dict[Any, tuple[ndb.Model, int]] = {}
    for result in answer.results:
        entity = model._entity_from_ds_entity(helpers.entity_from_protobuf(result.entity))
        versions[entity.key] = (entity, result.version)
    return [versions.get(key) for key in keys], answer.is_one_moment
