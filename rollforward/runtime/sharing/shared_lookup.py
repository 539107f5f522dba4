"""Lookups that share a round trip: each of one entity, with its version.

Readers call at the same time, each from its own thread. The keys that come while a lookup is in
progress go together in the next one (`group_commit.py`). It begins after each of its callers has
asked, and no answer is older than the question.

A lookup may fail by one of its keys, by one row that cannot be read, by the size of all rows
together, or with the thread that made it. Then each of its callers looks up its own key, by its own
thread, and gets the answer or the error that it would get alone. Only that the service is away or
has too much to do is the answer to all at once.

Lost on failure: nothing.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.versions import read_versions
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.group_commit import GroupCommit

log = logging.getLogger(__name__)

MAX_KEYS = 100
OVERLOADED = (rpc_errors.ServiceUnavailable, rpc_errors.ResourceExhausted)
# A lookup takes one round trip. A caller that waits for longer than some of them goes alone.
MAX_WAIT_S = 0.3

Stored = tuple[ndb.Model, int] | None


class _Single(enum.Enum):
    """The answer to a caller that is to look up its own key."""

    ALONE = enum.auto()


def read_together(clients: Clients, key: Any) -> Stored:
    """Return an entity and its version, by a lookup that callers share; None: it does not exist.

    Callers with one key at one time get entities of their own.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    answer = _groups(clients)(key)
    if answer is _Single.ALONE:
        [answer] = read_versions(clients.datastore, [key])
    return answer


def _read(clients: Clients, keys: Sequence[Any]) -> Sequence[Stored | _Single | BaseException]:
    """Return the answer to each caller; the first one is the leader, whose thread this is."""
    try:
        return read_versions(clients.datastore, keys)
    except OVERLOADED as error:  # No key's fault, and more lookups would not help.
        return [error for _ in keys]
    except BaseException as error:
        others = [_Single.ALONE for _ in keys[1:]]
        if not others or not isinstance(error, Exception):
            return [error, *others]
        log.info("a lookup of %d keys failed, and is made for each: %s", len(keys), error)
        return [_Single.ALONE, *others]


def _groups(clients: Clients) -> GroupCommit[Any, Stored | _Single]:
    return clients.process_state.get_or_create(
        "shared-lookups",
        lambda: GroupCommit(
            lambda keys: _read(clients, keys),
            max_calls=MAX_KEYS,
            max_bytes=MAX_KEYS,
            size=lambda key: 1,
            max_wait_s=MAX_WAIT_S,
            rows=lambda key: (key,),  # Two callers of one key would get one entity.
        ),
    )
