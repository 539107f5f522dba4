"""Reading of batches: their progress, and the results and errors of their members."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.batches.completion import state_of
from rollforward.batches.entities import (
    DONE,
    HAS_FAILED,
    RUNNING,
    BatchPage,
    BatchState,
    batches_in,
    first_page_of,
    is_counted,
    pages_within,
    results_within,
    work_key,
)

PAGES_AT_A_TIME = 20
MAX_NESTED = 1_000


@dataclass(frozen=True)
class BatchProgress:
    """Progress of a batch. `outcome` is None while it runs. Times are in UTC, naive."""

    name: str
    batch_id: str
    members: int
    done: int
    failed: int
    cancelled: int
    waiting: int
    is_sealed: bool
    is_complete: bool
    generation: int
    outcome: str | None
    created: datetime.datetime
    completed: datetime.datetime | None


@dataclass(frozen=True)
class MemberResult:
    """Outcome of a member: "done" with a result, "failed" with an error, "waiting" or
    "cancelled". `ordinal` is its place in the call that added it.
    """

    id: str
    ordinal: int
    outcome: str
    result: Any = None
    error: str = ""


def progress(batch: str) -> BatchProgress:
    """Return how far a batch is: one read.

    Raises:
        UnknownBatchError: the batch does not exist.
    """
    return _progress(state_of(batch))


def nested(batch: str) -> list[BatchProgress]:
    """Return how far those batches are that are members of a batch, up to 1,000 of them."""
    return [_progress(state) for state in batches_in(batch).fetch(MAX_NESTED)]


def results(batch: str) -> Iterator[MemberResult]:
    """Yield what became of each member, page by page.

    Raises:
        UnknownBatchError: the batch does not exist.
    """
    state, start_after = state_of(batch), ""
    while pages := pages_within(batch, start_after=start_after).fetch(PAGES_AT_A_TIME):
        works = _works(pages)
        for page in pages:
            name = page.key.id()
            if is_counted(works[name], works[first_page_of(name)]):
                yield from _results_of(state, page, works[name].first)
        start_after = pages[-1].key.id()


def failures(batch: str) -> Iterator[MemberResult]:
    """Yield the members that have failed.

    Raises:
        UnknownBatchError: the batch does not exist.
    """
    return (member for member in results(batch) if member.outcome == "failed")


def _progress(state: BatchState) -> BatchProgress:
    name, _, batch_id = state.key.id().partition(":")
    return BatchProgress(
        name,
        batch_id,
        state.members,
        state.done,
        state.failed,
        state.cancelled,
        state.waiting,
        is_sealed=state.sealed,
        is_complete=state.state != RUNNING,
        generation=state.generation,
        outcome=state.outcome,
        created=state.created,
        completed=state.completed,
    )


def _works(pages: Sequence[BatchPage]) -> dict[str, Any]:
    names = [page.key.id() for page in pages]
    page_ids = list(dict.fromkeys([*names, *map(first_page_of, names)]))
    return dict(zip(page_ids, ndb.get_multi(list(map(work_key, page_ids))), strict=True))


def _results_of(state: BatchState, page: BatchPage, first_ordinal: int) -> Iterator[MemberResult]:
    name, outcomes = page.key.id(), dict[tuple[int, bool], Any]()
    if page.results:
        for row in results_within(name).fetch():
            outcomes.update(
                {(position, is_done): value for position, _, is_done, value in row.results}
            )
    for i, letter in enumerate(page.letters):
        id_, ordinal = f"{name}:{i}", first_ordinal + i
        if letter == DONE:
            yield MemberResult(id_, ordinal, "done", result=outcomes.get((i, True)))
        elif letter == HAS_FAILED and not page.is_open(i, state.generation):
            yield MemberResult(id_, ordinal, "failed", error=outcomes.get((i, False), ""))
        elif state.state == RUNNING:
            yield MemberResult(id_, ordinal, "waiting")
        else:
            yield MemberResult(id_, ordinal, "cancelled")
