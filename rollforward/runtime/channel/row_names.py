"""Names of rows that a call of Datastore reads or writes, to tell which transactions collide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.cloud.datastore_v1.types import Key, PropertyFilter

from rollforward.datastore.commit import key_of
from rollforward.runtime.channel.rpc import message_of

# Begins the name of a kind. A row's name is its key, which begins otherwise.
_KIND = b"\0"


def names_read(rpc: str, request: Any, *, by_kind: bool) -> dict[bytes, bytes]:
    """Return the names of a call's reads, each with the name that a write there has.

    A query reads rows, and the places where new ones would be. Transactions that ask the same have
    read the same: the rows below an ancestor, or of a kind with a filter.

    Args:
        by_kind: Whether all queries of a kind have one name, in all namespaces.
    """
    message = message_of(request)
    if rpc == "Lookup":
        return {name: name for name in map(_name_of, message.keys)}
    is_aggregation = rpc == "RunAggregationQuery"
    query = message.aggregation_query.nested_query if is_aggregation else message.query
    namespace = "" if by_kind else message.partition_id.namespace_id
    kinds = {_name_of_kind(kind.name, namespace) for kind in query.kind}
    if by_kind and kinds:
        return {kind: kind for kind in kinds}
    if (ancestor := _ancestor(query.filter)) is not None:
        name = _name_of(ancestor)
        return {name: name}
    filter_ = query.filter.SerializeToString(deterministic=True)
    return {kind + filter_: kind for kind in kinds}


def names_written(mutations: Iterable[Any], *, by_kind: bool) -> set[bytes]:
    """Return the names of rows that a commit writes, of their ancestors, and of their kinds."""
    names = set()
    for key in map(key_of, mutations):
        above = type(key)()
        above.CopyFrom(key)
        namespace = "" if by_kind else key.partition_id.namespace_id
        names.add(_name_of_kind(key.path[-1].kind, namespace))
        while above.path:
            names.add(_name_of(above))
            del above.path[-1]
    return names


def shown(name: bytes) -> str:
    """Return the kinds and ids of a key, as ndb shows them, or the kind of queries."""
    if name.startswith(_KIND):
        return f"queries of {name[1:].partition(_KIND)[0].decode()}"
    path = Key.deserialize(name).path
    return "/".join(f"{part.kind} {part.name or part.id}" for part in path)


def _ancestor(filter_: Any) -> Any:
    if filter_.HasField("composite_filter"):
        found = map(_ancestor, filter_.composite_filter.filters)
        return next((key for key in found if key is not None), None)
    if filter_.property_filter.op == PropertyFilter.Operator.HAS_ANCESTOR:
        return filter_.property_filter.value.key_value
    return None


def _name_of(key: Any) -> bytes:
    return message_of(key).SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def _name_of_kind(kind: str, namespace: str) -> bytes:
    return _KIND.join((b"", kind.encode(), namespace.encode(), b""))
