"""Bugs that are planted in the app or in the library, and the faults by which each shows.

Each takes away a guard by which a promise holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest import mock

from google.cloud import ndb

from rollforward.batches import completion, policy
from rollforward.batches.entities import DONE
from rollforward.counters import Counter
from rollforward.fork_join import fold as folding
from rollforward.outbox import pattern
from rollforward.outbox import relay as relaying
from tests.simulation.shop import app


class Plant(NamedTuple):
    """A bug, and the fault by which it shows.

    Attributes:
        fault: Its kind.
        call: A part of the trace of the calls at which it may show, at one at least.
    """

    plant: Callable[[], AbstractContextManager[Any]]
    fault: str
    call: str


def _unguarded_order() -> Any:
    return mock.patch.object(app, "is_placed", return_value=False)


def _early_callback() -> Any:
    return mock.patch.object(policy, "is_over", lambda state: state.sealed and state.waiting <= 1)


def _end_counted_twice() -> Any:
    def count(state: Any, page: Any, end: Any) -> bool:
        page.end(end.position, DONE, state.generation)
        state.done += 1
        return True

    return mock.patch.object(completion, "count", count)


def _row_deleted_first() -> Any:
    relay = relaying.relay

    def delete_and_relay(clients: Any, rows: Sequence[Any]) -> Any:
        ndb.delete_multi([row.key for row in rows])
        return relay(clients, rows)

    return mock.patch.object(relaying, "relay", delete_and_relay)


def _increment_without_key() -> Any:
    increment = Counter.increment

    def unkeyed(counter: Counter, clients: Any, key: str, **options: Any) -> Any:
        options.pop("idempotency_key", None)
        return increment(counter, clients, key, **options)

    return mock.patch.object(Counter, "increment", unkeyed)


def _fold_outside_of_a_transaction() -> Any:
    return mock.patch.object(folding, "transact", lambda body: body())


def _no_sweep_of_the_outbox() -> Any:
    return mock.patch.object(pattern, "sweep")


PLANTS: Mapping[str, Plant] = {
    "unguarded-order": Plant(_unguarded_order, "crash-after", "visitor: datastore Commit"),
    "early-callback": Plant(_early_callback, "pause-before:100", "pack-order: datastore Commit"),
    "end-counted-twice": Plant(_end_counted_twice, "double:0", "pack-order: datastore Commit"),
    "row-deleted-first": Plant(_row_deleted_first, "error:UNAVAILABLE", "tasks BatchCreateTasks"),
    "increment-without-key": Plant(
        _increment_without_key, "double:0", "mail-order: datastore Commit"
    ),
    "fold-outside-of-a-transaction": Plant(
        _fold_outside_of_a_transaction, "crash-after", "revenue/join: datastore Commit"
    ),
    "no-sweep-of-the-outbox": Plant(
        _no_sweep_of_the_outbox, "crash-before", "visitor: tasks CreateTask"
    ),
}
