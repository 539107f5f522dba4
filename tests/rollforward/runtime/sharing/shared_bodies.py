"""Bodies for the tests of shared transactions, and groups of them without threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from google.cloud import ndb

from rollforward.datastore import current
from rollforward.runtime.sharing import shared_transaction
from rollforward.runtime.sharing.shared_transaction import SharedBody, _Caller
from tests.infra.world import World

SHARED = ["BeginTransaction", "Lookup", "Commit"]


class RunningSum(ndb.Model):
    """A number that a caller adds to."""

    total = ndb.IntegerProperty(indexed=False, default=0)


class Proof(ndb.Model):
    """The proof that a caller's body was committed."""


def keys_of(name: str) -> list[Any]:
    return [ndb.Key(Proof, name), ndb.Key(RunningSum, name)]


def add_once(name: str, then: Callable[[], object] = lambda: None) -> SharedBody[str]:
    """Return a body that adds one to a caller's sum, with a proof; it ends with `then`."""

    def run(keys: Sequence[Any]) -> str:
        proof, row = current.get_multi(keys_of(name))
        if proof is not None:
            return f"{name}, again"
        row = row or RunningSum(id=name)
        row.total += 1
        current.put(row)
        current.put(Proof(id=name))
        then()
        return name

    return SharedBody(run, reads=lambda draw: keys_of(name), rows=frozenset([name]), writes=2)


def together(clients: Any, bodies: Sequence[SharedBody[Any]]) -> list[Any]:
    """Run bodies as one group; return the result of each, or its error."""
    callers = [_Caller(body, "") for body in bodies]
    shared_transaction._try_together(clients, callers)
    return [end(clients, caller) for caller in callers]


def end(clients: Any, caller: _Caller[Any]) -> Any:
    """Go on as the caller's own thread does; return its result, or its error."""
    if caller.is_open:
        shared_transaction._try_single(clients, caller)
    try:
        return caller.end()
    except Exception as error:
        return error


def totals(*names: str) -> list[int]:
    """Return the sums of callers, 0 for one that has none."""
    rows = ndb.get_multi([ndb.Key(RunningSum, name) for name in names])
    return [row.total if row is not None else 0 for row in rows]


def calls_of(world: World) -> list[str]:
    """Return the calls; a lookup whose answer leaves keys for the next one counts as one."""
    return [name for name, _ in itertools.groupby(world.plan.calls)]


def fail(error: Exception) -> None:
    raise error


class Full(ndb.Model):
    """An entity that is larger than Datastore takes."""

    text = ndb.TextProperty()


class Hook:
    """A hook that notes its calls, and their threads."""

    def __init__(self, calls: list[tuple[str, int]]) -> None:
        self.calls = calls

    def on_retry(self, cause: Exception) -> None:
        self.calls.append((type(cause).__name__, 0))

    def on_commit(self) -> None:
        self.calls.append(("committed", threading.get_ident()))

    def on_outcome_unknown(self) -> None:
        self.calls.append(("given up", threading.get_ident()))
