"""Keys of the Datastore client that are read and written without copies which nobody changes.

A test run reads and writes millions of keys. The client copies a key's path in depth each time that
a part of it is asked for, and takes each part of a message through a wrapper of its own: a seventh
of what the tests of services compute.
"""

from __future__ import annotations

from typing import Any

from google.cloud.datastore import helpers
from google.cloud.datastore import key as library
from google.cloud.datastore_v1.types import Key

LIBRARY_PATH = library.Key.path
LIBRARY_TO_PROTOBUF = library.Key.to_protobuf
LIBRARY_FROM_PROTOBUF = helpers.key_from_protobuf


def make_fast() -> None:
    """Let the client use these functions."""
    library.Key.path = property(path)
    library.Key.to_protobuf = to_protobuf
    helpers.key_from_protobuf = from_protobuf


def path(key: Any) -> list[dict[str, Any]]:
    """Return the parts of a key, to be changed by the caller if it likes.

    >>> key = library.Key("A", "x", "B", 7, project="p")
    >>> path(key) == LIBRARY_PATH.fget(key), path(key)[0] is path(key)[0]
    (True, False)
    """
    return [dict(part) for part in key._path]


def to_protobuf(key: Any) -> Any:
    """Return a key as a message.

    >>> same = lambda key: to_protobuf(key) == LIBRARY_TO_PROTOBUF(key)
    >>> same(library.Key("A", "x", "B", 7, project="p", namespace="n", database="d"))
    True
    >>> same(library.Key("A", project="p"))
    True
    """
    message = Key.pb(Key())
    message.partition_id.project_id = key.project
    if key.database:
        message.partition_id.database_id = key.database
    if key.namespace:
        message.partition_id.namespace_id = key.namespace
    for part in key._path:
        message.path.add(**part)
    return Key.wrap(message)


def from_protobuf(message: Any) -> Any:
    """Return the key that a message is, read without its wrapper.

    >>> key = library.Key("A", "x", "B", 7, project="p", namespace="n", database="d")
    >>> from_protobuf(key.to_protobuf()) == LIBRARY_FROM_PROTOBUF(key.to_protobuf()) == key
    True
    """
    return LIBRARY_FROM_PROTOBUF(getattr(message, "_pb", message))
