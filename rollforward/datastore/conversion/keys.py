"""Keys of entities, without the copies of the client library.

It copies a key's path, element by element, whenever it is asked for a part of it: twice for the
id, three times to make a key below another, and twice by ndb to give a new entity its key. A save
of a view asked 21 times.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.cloud import ndb

M = TypeVar("M", bound=ndb.Model)


def key_kind(key: Any) -> str:
    """Return the kind of a key, which may lack an id."""
    path: tuple[str, ...] = key._key.flat_path
    return path[-2] if len(path) % 2 == 0 else path[-1]


def key_id(key: Any) -> str | int | None:
    """Return the id of a key; None: it has none yet."""
    path: tuple[Any, ...] = key._key.flat_path
    return path[-1] if len(path) % 2 == 0 else None


def child_key(parent: Any, kind: type[ndb.Model], id_: str) -> Any:
    """Return the key of a kind and an id below another key, which is complete."""
    above = parent._key
    return ndb.Key(
        *above.flat_path,
        kind._get_kind(),
        id_,
        project=above.project,
        database=above.database,
        namespace=above.namespace,
    )


def new_entity(kind: type[M], key: Any, /, **values: Any) -> M:
    """Return a new entity of a kind, with a key of that kind, which is not checked here."""
    entity: M = kind(**values)
    entity._entity_key = key
    return entity
