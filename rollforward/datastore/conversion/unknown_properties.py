"""Properties that this version of the code does not know, kept when it writes an entity back.

During a rolling deployment two versions serve at once. ndb drops properties that its class does not
declare, so the old version would erase properties of the new one when it changes an entity. Here an
entity that was read remembers each property that its class lacks, until it is put: the stored
value, whether it is indexed, and its meaning to Datastore.

An entity that is put without having been read has the properties of this version only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import model

_KEPT = "_properties_of_another_version"


@dataclass(frozen=True)
class _Unknown:
    name: str
    value: Any
    is_unindexed: bool
    meaning: Any


def keep_unknown_properties() -> None:
    """Make ndb keep them, in this process, for all kinds; call it once."""
    # ndb has no place for it: Expando forgets what was indexed. tests/rollforward/datastore/
    # notices if these go.
    if not hasattr(model._entity_from_ds_entity, _KEPT):
        model._entity_from_ds_entity = _mark(_reading(model._entity_from_ds_entity))
        model._entity_to_ds_entity = _mark(_writing(model._entity_to_ds_entity))


def has_unknown_properties(entity: ndb.Model) -> bool:
    """Return whether an entity was read with properties that its class lacks."""
    return bool(getattr(entity, _KEPT, ()))


def _mark(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, _KEPT, True)
    return function


def _reading(convert: Callable[..., Any]) -> Callable[..., Any]:
    def from_datastore(stored: Any, model_class: Any = None) -> Any:
        entity = convert(stored, model_class)
        properties = entity._properties
        if not stored.keys() <= properties.keys() and not isinstance(entity, ndb.Expando):
            unknown = [_unknown(stored, name) for name in stored if not _is_known(name, properties)]
            setattr(entity, _KEPT, unknown)
        return entity

    return from_datastore


def _writing(convert: Callable[..., Any]) -> Callable[..., Any]:
    def to_datastore(entity: Any, set_key: bool = True) -> Any:
        stored = convert(entity, set_key)
        for unknown in getattr(entity, _KEPT, ()):
            stored[unknown.name] = unknown.value
            if unknown.is_unindexed:
                stored.exclude_from_indexes.add(unknown.name)
            if unknown.meaning is not None:
                stored._meanings[unknown.name] = unknown.meaning
        return stored

    return to_datastore


def _unknown(stored: Any, name: str) -> _Unknown:
    is_unindexed = name in stored.exclude_from_indexes
    return _Unknown(name, stored[name], is_unindexed, stored._meanings.get(name))


def _is_known(name: str, properties: Any) -> bool:
    """Return whether a class has a property; "a.b" is how ndb once stored a part of `a`."""
    return name in properties or name.partition(".")[0] in properties
