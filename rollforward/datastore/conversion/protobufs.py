"""Entities and keys as protobufs, without the client library's copies.

ndb converts each value by a chain of calls, the client copies each key four times and wraps each
message: of a compare-and-set that was the greater part. So a kind of plain properties is converted
here, property by property. All others go by the library: a kind with a property of another class,
a value of an unexpected type, an entity with properties that only another version knows.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.datastore_v1.types import Entity, Key
from google.cloud.ndb import model

from rollforward.datastore.conversion.unknown_properties import has_unknown_properties

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_EPOCH_NAIVE = _EPOCH.replace(tzinfo=None)  # Times that ndb makes have no zone.
_SECOND = datetime.timedelta(seconds=1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_Entity, _Key = Entity.pb(), Key.pb()  # Asked for each time, they cost as much as a property.
# Longer ones may have more than the 1,500 bytes of an indexed text.
_LONG_CHARS = 375
_JSON = json.JSONEncoder(separators=(",", ":"))  # As ndb writes it; made once.


def protobuf_of(entity: ndb.Model) -> Any:
    """Return an entity as protobuf.

    Raises:
        google.cloud.ndb.exceptions.BadValueError: a required property has no value.
    """
    kind: Any = type(entity)
    plan = _plan(kind)
    if plan is not None and not has_unknown_properties(entity) and not entity._projection:
        message = _Entity(key=protobuf_of_key(entity._key))  # `key` may be a property's name.
        if all(column.write(entity, message) for column in plan):
            return message
    return helpers.entity_to_protobuf(model._entity_to_ds_entity(entity))._pb


class Converter:
    """Converts one entity again and again, and of it only the properties that have changed.

    A property has changed if its value is another object. So lists and dicts must not be changed
    in place.
    """

    def __init__(self) -> None:
        self._entity: ndb.Model | None = None
        self._values: dict[str, Any] = {}  # As they were converted last.
        self._message: Any = None

    def protobuf_of(self, entity: ndb.Model) -> Any:
        """Return an entity as protobuf, which is the caller's until the next call.

        Raises: as `protobuf_of`.
        """
        if entity is not self._entity or not self._update(entity):
            self._message = protobuf_of(entity)
        self._entity, self._values = entity, dict(entity._values)
        return self._message

    def _update(self, entity: Any) -> bool:
        """Set what has changed in the message; return whether that can be done here."""
        kind: Any = type(entity)
        plan = _plan(kind)
        if plan is None or has_unknown_properties(entity):
            return False
        values, last = entity._values, self._values
        for column in plan:
            if values.get(column.name) is not last.get(column.name):
                self._message.properties[column.name].Clear()
                if not column.write(entity, self._message):
                    return False
        return True


def protobuf_of_key(key: Any) -> Any:
    """Return ndb's key as protobuf."""
    stored = key._key
    message = _Key()
    message.partition_id.project_id = stored.project
    if stored.database:
        message.partition_id.database_id = stored.database
    if stored.namespace:
        message.partition_id.namespace_id = stored.namespace
    path = stored.flat_path
    for kind, id_ in itertools.zip_longest(path[::2], path[1::2]):
        element = message.path.add(kind=kind)
        if isinstance(id_, str):
            element.name = id_
        elif id_ is not None:
            element.id = id_
    return message


# The field of a message that holds a value of a property, and the one type that it may have.
_FIELDS: dict[type, tuple[str, type]] = {
    ndb.BlobProperty: ("blob_value", bytes),
    ndb.BooleanProperty: ("boolean_value", bool),
    ndb.DateTimeProperty: ("timestamp_value", datetime.datetime),
    ndb.FloatProperty: ("double_value", float),
    ndb.IntegerProperty: ("integer_value", int),
    ndb.JsonProperty: ("blob_value", bytes),
    ndb.StringProperty: ("string_value", str),
    ndb.TextProperty: ("string_value", str),
}


def _set_time(message: Any, value: datetime.datetime) -> None:
    since = value - (_EPOCH_NAIVE if value.tzinfo is None else _EPOCH)
    seconds, rest = divmod(since, _SECOND)
    message.timestamp_value.seconds = seconds
    message.timestamp_value.nanos = rest // _MICROSECOND * 1_000


class _Column:
    """A property that is converted here."""

    def __init__(self, declared: Any) -> None:
        self.name = declared._name
        self._field, self._type = _FIELDS[type(declared)]
        self._default = declared._default
        self._is_required = declared._required
        self._is_repeated = declared._repeated
        self._is_excluded = not declared._indexed
        self._is_json = type(declared) is ndb.JsonProperty

    def write(self, entity: Any, message: Any) -> bool:
        """Set the value in an entity's message; return whether that can be done here."""
        value = entity._values.get(self.name, self._default)
        target = message.properties[self.name]
        if self._is_repeated:
            target.array_value.SetInParent()
            values = target.array_value.values
            return all(self._write_part(values.add(), part) for part in value or ())
        return self._write(target, value)

    def _write_part(self, target: Any, value: Any) -> bool:
        """Set a value of a list; ndb checks one that came by a change of the list in place."""
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            return False
        if isinstance(value, str) and len(value) > _LONG_CHARS and not self._is_excluded:
            return False
        return self._write(target, value)

    def _write(self, target: Any, value: Any) -> bool:
        if type(value) is model._BaseValue:
            value = value.b_val
        elif self._is_json and value is not None:
            value = _JSON.encode(value).encode("ascii")
        if self._is_excluded:
            target.exclude_from_indexes = True
        if value is None:
            target.null_value = 0
            return not self._is_required and not self._is_repeated
        if self._type is datetime.datetime and isinstance(value, self._type):
            _set_time(target, value)  # One that was read has a type of the client's own.
        elif type(value) is self._type:
            setattr(target, self._field, value)
        else:
            return False
        return True


@lru_cache(maxsize=1_000)
def _plan(kind: type[ndb.Model]) -> tuple[_Column, ...] | None:
    """Return the properties of a kind; None: the library converts it."""
    declared = _declared(kind)
    if issubclass(kind, ndb.Expando) or not all(map(_is_plain, declared)):
        return None
    return tuple(map(_Column, declared))


def _declared(kind: type[ndb.Model]) -> Collection[Any]:
    """Return the properties of a kind as ndb finds them, also where a subclass hides one."""
    by_name: dict[str, Any] = {}
    for level in kind.mro():
        for declared in getattr(level, "_properties", {}).values():
            if not isinstance(declared, model.ModelKey):
                by_name.setdefault(declared._name, declared)
    return by_name.values()


def _is_plain(declared: Any) -> bool:
    """Return whether a property is of a class of ndb's own, without code of the user's in it."""
    return (
        type(declared) in _FIELDS
        and declared._validator is None
        and not getattr(declared, "_compressed", False)
        and getattr(declared, "_json_type", None) is None
        and getattr(declared, "_tzinfo", None) is None
    )
