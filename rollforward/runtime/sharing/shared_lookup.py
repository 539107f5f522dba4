"""Lookups that share a round trip: each of one entity, with its version.

Readers call at the same time, each from its own thread. The keys that come while a lookup is in
progress go together in the next one (`group_commit.py`). It begins after each of its callers has
asked, and no answer is older than the question.

Lost on failure: nothing. An error is the error of all callers of a lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.cloud import ndb

from rollforward.datastore.versions import read_versions
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.conditional_writes import error_of_own
from rollforward.runtime.sharing.group_commit import GroupCommit

MAX_KEYS = 100
# A lookup takes one round trip. A caller that waits for longer than some of them goes alone.
MAX_WAIT_S = 0.3

Stored = tuple[ndb.Model, int] | None


def read_together(clients: Clients, key: Any) -> Stored:
    """Return an entity and its version, by a lookup that callers share; None: it does not exist.

    Callers with one key at one time get entities of their own.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    return _groups(clients)(key)


def _read(clients: Clients, keys: Sequence[Any]) -> Sequence[Stored | Exception]:
    try:
        return read_versions(clients.datastore, keys)
    except Exception as error:
        return [error, *(error_of_own(error) for _ in keys[1:])]


def _groups(clients: Clients) -> GroupCommit[Any, Stored]:
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
