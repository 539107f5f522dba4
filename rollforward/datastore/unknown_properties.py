"""Properties that this version of the code does not know, kept when it writes an entity back.

While a deployment lasts two versions serve at once. ndb drops what its class does not declare, so
the old version would erase what the new one has written to an entity that both read, change and
put. Here an entity remembers, from when it is read to when it is put, each property that its class
lacks: the value as it was stored, whether it is indexed, and its meaning to Datastore.

What is put without having been read is written as the code at hand knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import model

_KEPT = "_properties_of_another_version"


@dataclass(frozen=True)
class _Kept:
    name: str
    value: Any
    is_unindexed: bool
    meaning: Any


def keep_unknown_properties() -> None:
    """Have ndb keep them, in this process, for all kinds; once is enough."""
    # ndb has no place for it: Expando forgets what was indexed. tests/rollforward/datastore/
    # notices if these go.
    if not hasattr(model._entity_from_ds_entity, _KEPT):
        model._entity_from_ds_entity = _marked(_reading(model._entity_from_ds_entity))
        model._entity_to_ds_entity = _marked(_writing(model._entity_to_ds_entity))


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, _KEPT, True)
    return function


def _reading(convert: Callable[..., Any]) -> Callable[..., Any]:
    def from_datastore(stored: Any, model_class: Any = None) -> Any:
        entity = convert(stored, model_class)
        known = entity._properties
        if not stored.keys() <= known.keys() and not isinstance(entity, ndb.Expando):
            kept = [_kept(stored, name) for name in stored if not _is_known(name, known)]
            setattr(entity, _KEPT, kept)
        return entity

    return from_datastore


def _writing(convert: Callable[..., Any]) -> Callable[..., Any]:
    def to_datastore(entity: Any, set_key: bool = True) -> Any:
        stored = convert(entity, set_key)
        for kept in getattr(entity, _KEPT, ()):
            stored[kept.name] = kept.value
            if kept.is_unindexed:
                stored.exclude_from_indexes.add(kept.name)
            if kept.meaning is not None:
                stored._meanings[kept.name] = kept.meaning
        return stored

    return to_datastore


def _kept(stored: Any, name: str) -> _Kept:
    is_unindexed = name in stored.exclude_from_indexes
    return _Kept(name, stored[name], is_unindexed, stored._meanings.get(name))


def _is_known(name: str, known: Any) -> bool:
    """Return whether a class has a property; "a.b" is how ndb once stored a part of `a`."""
    return name in known or name.partition(".")[0] in known
