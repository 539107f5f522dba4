"""Folds by guarded commits in every interleaving: others come between their reads and commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from google.cloud import ndb

from rollforward.datastore import versions
from rollforward.fork_join import Batch, fork_join
from rollforward.fork_join import fold as fork_join_fold
from rollforward.runtime import Clients
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.model_checking.model_checker import (
    CRASH,
    DUPLICATE,
    FLUSH,
    REPLY_LOST,
    TIME_OUT,
    UNHEARD,
)
from tests.infra.model_checking.stepwise import stepwise
from tests.rollforward.fork_join.searches.test_fork_join_exhaustively import (
    NONE,
    Heap,
    heap,
    searched,
    take_mutex_away,
    walk,
    writers_of,
)
from tests.rollforward.fork_join.tally_queue import Mark


def heap_guarded(clients: Clients, batch: Batch, items: Sequence[Mark]) -> list[Any]:
    """Return what `heap` would write."""
    key = ndb.Key(Heap, batch.key)
    [stored] = versions.read_versions(clients.datastore, [key])
    row, version = stored or (Heap(key=key), None)
    row.labels = sorted([*row.labels, *(item.label for item in items)])
    row.epochs = sorted({*row.epochs, batch.epoch})
    return [(row, version)]


GUARDED = fork_join("heaps-guarded", queue="fork-join", period_s=1.0, guarded=heap_guarded)(heap)
# A call that fails brings second tries, and with two writers too many states.
GUARDED_BY = [(NONE, "ab"), (CRASH, "ab"), (DUPLICATE, "a"), (UNHEARD, "a"), (REPLY_LOST, "a")]
if IS_EXHAUSTIVE:
    GUARDED_BY += [(fault, "ab") for fault in (DUPLICATE, TIME_OUT, FLUSH)]


@pytest.fixture(autouse=True)
def in_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    take_mutex_away(monkeypatch)
    with stepwise():
        yield


@pytest.mark.parametrize(("fault", "labels"), GUARDED_BY)
def test_every_interleaving_folds_each_item_once_by_guarded_commits(
    fault: str, labels: str
) -> None:
    """D1, D2, D3, D4, D5: with what others do between a fold's reads and its commit, too."""
    search = searched(GUARDED, fault, writers=writers_of(labels, GUARDED))

    walk(search, GUARDED, at_least=3_000 if labels == "ab" else 50)


def test_the_search_finds_a_commit_that_is_not_guarded() -> None:
    """D4 fails if a fold's one commit does not ask whether its packs are still there."""

    def unguarded(client: Any, *, puts: Any, deletes: Any) -> None:
        for row, _ in puts:
            row.put()
        for key, _ in deletes:
            key.delete()

    # Not by `monkeypatch`: it would put the search's own commit back after the search has gone.
    planted = mock.patch.object(fork_join_fold, "commit_if_current", unguarded)
    with planted, pytest.raises(AssertionError, match="Counter"):
        walk(searched(GUARDED, DUPLICATE, writers=writers_of("a", GUARDED)), GUARDED, at_least=0)
