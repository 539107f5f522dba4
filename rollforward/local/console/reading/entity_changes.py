"""One property of one entity changed by hand, and the entities of a kind as JSON lines.

For the emulator of this machine alone: the console knows no other Datastore.
"""

import contextlib
import hashlib
import json
import math
from typing import Any

from google.cloud import datastore

from rollforward.local.console.reading.datastore_reader import (
    CALL_OPTIONS,
    SCAN_OPTIONS,
    DatastoreReader,
)
from rollforward.local.console.reading.entities import BadKeyError, EntityView, Query, view_of
from rollforward.look import words

MAX_EXPORTED = 1_000
MAX_VALUE_CHARS = 100_000
_TYPES: dict[str, type | tuple[type, ...]] = {
    "yes or no": bool,
    "integer": int,
    "number": (int, float),
    "text": str,
}


class ChangedMeanwhileError(Exception):
    """The entity is another one than the page has shown."""


class BadPropertyError(ValueError):
    """This property cannot have this value; the text begins with the name of the field."""


def editable(shown: EntityView) -> list[str]:
    """Return the names of the properties that a form can change."""
    return [each.name for each in shown.properties if each.type in _TYPES]


def state_of(shown: EntityView) -> str:
    """Return a digest of an entity as it is shown."""
    return hashlib.sha256(shown.json.encode(errors="replace")).hexdigest()


class EntityChanges:
    """Changes entities, and exports them."""

    def __init__(self, reader: DatastoreReader) -> None:
        """Work through this connection."""
        self._reader = reader

    def set_property(
        self, address: str, path: list[str | int], namespace: str, name: str, text: str, state: str
    ) -> None:
        """Give one property another value of its type, if the entity is still as shown.

        Raises:
            BadKeyError: the entity does not exist.
            BadPropertyError: the property or the value cannot be; nothing was changed.
            ChangedMeanwhileError: the entity is not as shown; nothing was changed.
        """
        client = self._reader.client(address)
        with client.transaction():
            entity = client.get(client.key(*path, namespace=namespace or None), **CALL_OPTIONS)
            if entity is None:
                raise BadKeyError("This entity was deleted.")
            shown = view_of(entity)
            if state_of(shown) != state:
                raise ChangedMeanwhileError
            entity[name] = _value(shown, name, text)
            client.put(entity)

    def lines(self, address: str, asked: Query) -> list[str]:
        """Return entities of a kind as lines of JSON, by key, at most MAX_EXPORTED."""
        client = self._reader.client(address)
        query = client.query(kind=asked.kind, namespace=asked.namespace or None)
        rows = query.fetch(limit=MAX_EXPORTED, **SCAN_OPTIONS)
        return [_line(entity) for entity in rows]


def _line(entity: datastore.Entity) -> str:
    key = {"key": [*entity.key.flat_path], "properties": json.loads(view_of(entity).json)}
    return json.dumps(key, ensure_ascii=False)


def _value(shown: EntityView, name: str, text: str) -> Any:
    """Return the value that was typed for a property.

    Raises:
        BadPropertyError: it is none of the property's type.
    """
    types = {each.name: each.type for each in shown.properties}
    kind = types.get(name, "")
    if kind not in _TYPES:
        raise BadPropertyError(f"property: one of {', '.join(editable(shown))}, not “{name}”.")
    if len(text) > MAX_VALUE_CHARS:
        raise BadPropertyError(f"value: at most {words.number(MAX_VALUE_CHARS)} characters.")
    try:
        value = text if kind == "text" else json.loads(text)
    except (ValueError, RecursionError):
        raise BadPropertyError(f"value: JSON of the type {kind} is needed.") from None
    is_of_type = isinstance(value, _TYPES[kind]) and (kind == "yes or no") == isinstance(
        value, bool
    )
    if not is_of_type or (kind == "integer" and not -(2**63) <= value < 2**63):
        raise BadPropertyError(f"value: a value of the type {kind} is needed.")
    if kind != "number":
        return value
    with contextlib.suppress(OverflowError):
        if math.isfinite(number := float(value)):
            return number
    raise BadPropertyError("value: a finite number is needed.")
