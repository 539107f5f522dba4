"""Leftovers that no finished scenario may have: rows that have served, runs that do not add up.

Each play of the explorer ends with this look. A scenario that leaves rows on purpose, and counts
them itself, names parts of their names in `leaves`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

from rollforward.continuations.entities import FINISHED, ContinuationPage, ContinuationRun, pages_of
from rollforward.continuations.pages.totals import slot_totals
from rollforward.continuations.progress import RunTotals, item_issues
from rollforward.fork_join.entities import WorkPack
from rollforward.outbox.entities import OutboxLease, OutboxTask
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.stored.entities import ArgumentsChunk


def remaining_rows(leaves: Collection[str] = ()) -> list[str]:
    """Return the rows that should be gone, read in the open context.

    Each of these rows is unfinished work, or waits for an operator. A run is named, too, if an
    older version of this library has worked on it: that counts no pages in its rows of totals.

    Args:
        leaves: Parts of names: a row whose name has one of them is there on purpose.
    """
    kinds = (OutboxTask, OutboxLease, WorkPack, TaskAttempts, ArgumentsChunk)
    queries = [*(kind.query() for kind in kinds), open_dead_tasks()]
    futures = [query.fetch_async(keys_only=True) for query in queries]
    rows = [str(key) for future in futures for key in future.get_result()]
    return [name for name in (*rows, *_invalid_runs()) if not any(leaf in name for leaf in leaves)]


def _invalid_runs() -> Iterator[str]:
    for run in ContinuationRun.query().fetch():
        if run.state == FINISHED:
            pages = pages_of(run.key.id()).fetch()
            yield from (f"run {run.key.id()}: {problem}" for problem in _run_errors(run, pages))


def _run_errors(run: ContinuationRun, pages: list[ContinuationPage]) -> Iterator[str]:
    """Return the contradictions of a finished run: on its row, its pages, and their sum."""
    if run.untold or run.totals is None:
        yield "its job was not told"
    elif run.totals != asdict(RunTotals.of(pages, len(run.spans))):
        yield f"it keeps {run.totals}, its pages add up to something else"
    elif run.has_slots and not run.pages_gone:
        counted = RunTotals.of_sums(slot_totals(run.key.id()).sums, len(run.spans))
        if run.totals != asdict(counted):
            yield f"it keeps {run.totals}, its slots add up to {asdict(counted)}"
    if sorted(run.chains_ended) != list(range(len(run.spans))):
        yield f"of {len(run.spans)} chains {run.chains_ended} have ended"
    for page in pages:
        yield from (f"page {page.key.id()} {problem}" for problem in _of_page(page))
    item_issues(run.key.id())


def _of_page(page: ContinuationPage) -> Iterator[str]:
    reasons: dict[str, Any] = page.reasons
    unclear = [position for position in reasons if page.receipts[int(position)] in "d."]
    if not (page.done and page.closed) or page.open_positions():
        yield f"is not closed: {page.receipts}"
    if page.items and (page.owner is not None or page.lease_expires_at is not None):
        yield f"is leased to {page.owner}"
    if unclear:
        yield f"has reasons for items that went well: {unclear}"
