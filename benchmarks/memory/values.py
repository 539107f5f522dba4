"""Keys and property values as tuples in Datastore's sort order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# A key: its namespace, and for each element its kind, whether it has a name, and its id or name.
Path = tuple[Any, ...]
# A value: the rank of its type, and its sort key within the type.
Value = tuple[int, Any]

NULL, INTEGER, TIME, BOOLEAN, BYTES, TEXT, DOUBLE, KEY = range(8)
KEY_PROPERTY = "__key__"


@functools.total_ordering
class Descending:
    """A value that sorts in reverse order."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __lt__(self, other: Descending) -> bool:
        return other.value < self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


def path_of(key: Any) -> Path:
    """Return a key as a tuple."""
    elements = (
        (element.kind, 1, element.name) if element.name else (element.kind, 0, element.id)
        for element in key.path
    )
    return (key.partition_id.namespace_id, *elements)


def kind_of(path: Path) -> tuple[str, str]:
    """Return the namespace and the kind of a key."""
    return path[0], path[-1][0]


def value_of(value: Any) -> Value:
    """Return a property's value as a tuple.

    Raises:
        NotImplementedError: no query of the library compares values of this type.
    """
    match value.WhichOneof("value_type"):
        case "null_value" | None:
            return NULL, 0
        case "integer_value":
            return INTEGER, value.integer_value
        case "timestamp_value":
            return TIME, value.timestamp_value.ToNanoseconds()
        case "boolean_value":
            return BOOLEAN, value.boolean_value
        case "blob_value":
            return BYTES, value.blob_value
        case "string_value":
            return TEXT, value.string_value
        case "double_value":
            return DOUBLE, value.double_value
        case "key_value":
            return KEY, path_of(value.key_value)
        case other:
            raise NotImplementedError(f"a property of type {other} has no order here")


def set_value(message: Any, value: Value) -> None:
    """Write a value of an index into the answer to a projection query."""
    names = {
        INTEGER: "integer_value",
        BOOLEAN: "boolean_value",
        BYTES: "blob_value",
        TEXT: "string_value",
        DOUBLE: "double_value",
    }
    rank, content = value
    if rank == NULL:
        message.null_value = 0
    elif rank == TIME:
        message.timestamp_value.FromNanoseconds(content)
    else:
        setattr(message, names[rank], content)


def indexed_values(entity: Any, name: str) -> Sequence[Value]:
    """Return the indexed values of a property: several for a list, none without an index."""
    if name == KEY_PROPERTY:
        return [(KEY, path_of(entity.key))]
    if name not in entity.properties:
        return []
    value = entity.properties[name]
    if value.WhichOneof("value_type") == "array_value":
        parts = [part for part in value.array_value.values if not part.exclude_from_indexes]
        return sorted({value_of(part) for part in parts})
    return [] if value.exclude_from_indexes else [value_of(value)]


def entries_of(
    entity: Any, path: Path, same: Sequence[str], orders: Sequence[tuple[str, bool]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the index entries of an entity, one for each combination of its values.

    Args:
        same: Properties that a query compares for equality.
        orders: Properties of the sort order, each with whether it is descending.
    """
    parts: list[Iterable[Any]] = [indexed_values(entity, name) for name in same]
    for name, is_down in orders:
        values = indexed_values(entity, name)
        parts.append([Descending(value) for value in values] if is_down else values)
    for values in itertools.product(*parts):
        yield (*values, path)


def plain(entry: Sequence[Any]) -> tuple[Any, ...]:
    """Return an entry without its sort directions, for a cursor."""
    return tuple(part.value if isinstance(part, Descending) else part for part in entry)
