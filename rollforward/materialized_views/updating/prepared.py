"""The part of a save that depends on its sources alone, done before its transaction.

So the code of views runs by the thread of its caller, and holds up no other caller of a transaction
that is shared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.ndb import model

from rollforward.datastore.conversion.keys import key_kind
from rollforward.datastore.conversion.protobufs import protobuf_of
from rollforward.datastore.transactions import (
    TRANSIENT,
    first_cause,
    is_last_attempt,
    pause_before_retry,
)
from rollforward.materialized_views.definitions import ViewDefinitions
from rollforward.materialized_views.rows import Value
from rollforward.materialized_views.view import View

# A source's key, and the source; None: it is deleted.
Write = tuple[Any, Any]
# A source's contributions to a view by row, as stored, or the error of the view.
Outcome = dict[str, dict[str, Value]] | Exception

STRUCTURED = (ndb.StructuredProperty, ndb.LocalStructuredProperty)
# What a kind may override of ndb.
_HOOKS = (
    *("_pre_put_hook", "_post_put_hook", "_pre_delete_hook", "_post_delete_hook"),
    *("put", "put_async", "_put", "_put_async"),
)


@dataclass(frozen=True)
class PreparedSave:
    """The sources of a save, converted, and what the views have said of them.

    Attributes:
        outcomes: By the key of a source, and the name of a view.
        sources: The sources to put, as protobuf, by key.
    """

    outcomes: Mapping[tuple[Any, str], Outcome]
    sources: Mapping[Any, Any]

    @classmethod
    def of(cls, definitions: ViewDefinitions, writes: Sequence[Write]) -> PreparedSave:
        """Ask the views for the contributions of sources, and convert the sources.

        Raises:
            google.api_core.exceptions.GoogleAPIError: a view reads, and the service fails.
        """
        for _, source in writes:
            if source is not None:
                source._prepare_for_put()
        outcomes = {
            (key, view.name): _outcome(definitions, view, key, source)
            for key, source in stored(writes)
            for view in definitions.by_kind[key_kind(key)]
        }
        sources = {key: protobuf_of(source) for key, source in writes if source is not None}
        return cls(outcomes, sources)

    def rows_for(self, view: type[View], key: Any) -> dict[str, dict[str, Value]]:
        """Return the contributions of a source to a view, as stored.

        Raises:
            Exception: the view's error.
        """
        outcome = self.outcomes[key, view.name]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _outcome(definitions: ViewDefinitions, view: type[View], key: Any, source: Any) -> Outcome:
    """Ask a view, again after an error of the service, as in a transaction of its own.

    Raises:
        google.api_core.exceptions.GoogleAPIError: the service's error, after the last attempt.
    """
    handled = sys.exc_info()[1]
    began_s, attempts = time.monotonic(), 0
    while True:
        attempts += 1
        try:
            return definitions.rows_for(view, key_kind(key), source)
        except TRANSIENT as error:
            cause = first_cause(error, handled)
            if cause is None:
                raise
            if is_last_attempt(attempts, began_s):
                raise cause from None
        except Exception as error:
            return error
        pause_before_retry(attempts)


def before_put(source: ndb.Model) -> None:
    """Do what ndb does before a put, so that views see the source as it is stored."""
    source._pre_put_hook()
    source._prepare_for_put()


def stored(writes: Sequence[Write]) -> list[Write]:
    """Return sources as a read returns them, for the views: a rebuild asks them of these.

    JSON makes texts of the keys of a dict, and a time has its property's zone.
    """
    return [(key, None if source is None else _as_stored(source)) for key, source in writes]


def _as_stored(source: ndb.Model) -> ndb.Model:
    kind: Any = type(source)
    if not _is_read_otherwise(kind):
        return source
    message = helpers.entity_from_protobuf(protobuf_of(source))
    return model._entity_from_ds_entity(message)


@lru_cache(maxsize=256)
def _is_read_otherwise(kind: Any) -> bool:
    """Return whether a value of a property of a kind may be another one once it is read."""
    return any(
        isinstance(column, ndb.JsonProperty)
        or getattr(column, "_tzinfo", None) is not None
        or (isinstance(column, STRUCTURED) and _is_read_otherwise(column._model_class))
        for column in kind._properties.values()
    )


def put_as_seen(source: ndb.Model) -> None:
    """Put a source after `before_put`, which is not done again: another time would be stored."""
    done = dict.fromkeys(("_pre_put_hook", "_prepare_for_put"), lambda: None)
    vars(source).update(done)
    try:
        source.put()
    finally:
        for name in done:
            delattr(source, name)


def have_hooks(writes: Sequence[Write]) -> bool:
    """Return whether the kind of a source changes what ndb does with it.

    Its hooks may read, write and ask for calls after the commit, so they need a transaction of ndb.
    """
    return any(_has_hooks(key, source) for key, source in writes)


def _has_hooks(key: Any, source: Any) -> bool:
    kind = type(source) if source is not None else ndb.Model._kind_map.get(key_kind(key), ndb.Model)
    own = [cls for cls in kind.__mro__ if cls not in ndb.Model.__mro__]
    return any(hook in vars(cls) for cls in own for hook in _HOOKS)
