"""Conditional writes that share a commit: each a compare-and-set by the versions of its rows.

Writers of different rows call at the same time, each from its own thread. The calls that come while
a commit is in progress go together in the next one (`group_commit.py`), which takes effect as a
whole or not at all:

    the commit             the callers of the group
    succeeded              get the new versions of their rows
    refused for one of     go in halves, until the one that has lost its race, or whose data is
    them                   refused, is alone with the error; the others are written
    left open by a lost    all get the error: each reads its rows to know
    reply or a time-out
    refused otherwise      all get the error

So a caller sees what it would see alone. Two that write the same row are in no group together.

Lost on failure: nothing. A leader whose thread is ended leaves its followers with an unknown
outcome.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit
from rollforward.datastore.versions import commit_of_puts
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.group_commit import GroupCommit

MAX_CALLERS = 100
# The limits of a commit: the emulators take 4 MiB.
MAX_MUTATIONS = 500
MAX_BYTES = 3_900_000
# A group takes one round trip. Whoever waits for longer than some of them goes alone.
MAX_WAIT_S = 0.3
# One of the callers is at fault, and nothing was written.
_ONE_REFUSED = (
    rpc_errors.Aborted,
    rpc_errors.AlreadyExists,
    rpc_errors.FailedPrecondition,
    rpc_errors.InvalidArgument,
    rpc_errors.NotFound,
    rpc_errors.OutOfRange,
)


def apply_together(clients: Clients, commit: Commit) -> Sequence[int]:
    """Apply a commit, together with those of other callers; return the new versions of its rows.

    Raises: as `Commit.apply`.
    """
    return _groups(clients)(_Call(commit))


def insert_together(clients: Clients, entity: ndb.Model) -> int:
    """Insert an entity in a commit that callers share; return its version.

    Raises: as `Commit.apply`.
    """
    return apply_together(clients, commit_of_puts(clients.datastore, [(entity, None)]))[0]


class _Call:
    """A caller's commit."""

    def __init__(self, commit: Commit) -> None:
        self.commit = commit

    @cached_property
    def rows(self) -> frozenset[bytes]:
        return frozenset(self.commit.keys())

    @cached_property
    def size(self) -> int:
        """Its share of a commit, in bytes; many mutations are as much as many bytes."""
        return max(self.commit.size, len(self.rows) * (MAX_BYTES // MAX_MUTATIONS))


def _groups(clients: Clients) -> GroupCommit[_Call, Sequence[int]]:
    return clients.process_state.get_or_create(
        "conditional-writes",
        lambda: GroupCommit(
            lambda calls: _apply(clients.datastore, calls),
            max_calls=MAX_CALLERS,
            max_bytes=MAX_BYTES,
            size=lambda call: call.size,
            max_wait_s=MAX_WAIT_S,
            rows=lambda call: call.rows,
        ),
    )


def _apply(client: ndb.Client, calls: Sequence[_Call]) -> list[Sequence[int] | Exception]:
    """Apply the commits of some callers; return the versions of each, or its error."""
    try:
        versions = iter([result.version for result in _merged(client, calls).apply()])
    except _ONE_REFUSED as error:
        if len(calls) == 1:
            return [error]
        middle = len(calls) // 2
        return [*_apply(client, calls[:middle]), *_apply(client, calls[middle:])]
    except Exception as error:
        return [error, *(_error_of_own(error) for _ in calls[1:])]
    return [[next(versions) for _ in range(len(call.commit))] for call in calls]


def _error_of_own(error: Exception) -> Exception:
    """Return an error of one caller's own: raised in its thread, it gets a context there."""
    own = copy.copy(error)
    own.__cause__ = error
    return own


def _merged(client: ndb.Client, calls: Sequence[_Call]) -> Commit:
    if len(calls) == 1:
        return calls[0].commit
    merged = Commit(client)
    for call in calls:
        merged.take(call.commit)
    return merged
