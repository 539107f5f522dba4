"""Closing: a page that is done is closed once all before it are; the last one ends its chain.

Two attempts may care for one page: the one that worked on it, and the one that closed the page
before. Each commits its own flag first and looks at the other's afterwards, so at least one of them
sees both. Flags never go back, so no transaction spans two rows.
"""

from __future__ import annotations

from typing import Any

from rollforward.app_code import run_app
from rollforward.continuations.entities import (
    FINISHED,
    ContinuationPage,
    ContinuationRun,
    page_key,
    run_key,
)
from rollforward.continuations.jobs import Job
from rollforward.continuations.progress import store_totals
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc


def close_from(
    clients: Clients, job: Job[Any, Any], run: ContinuationRun, chain: int, number: int
) -> None:
    """Close a page if all before it are closed, then the pages after it that wait for it."""
    run_id = run.key.id()
    while page := _close_one(run_id, chain, number):
        if page.next is None:
            if transact(lambda: _end_chain(clients, run_id, chain)):
                finish(clients, job, run)
            return
        number += 1


def finish(clients: Clients, job: Job[Any, Any], run: ContinuationRun) -> None:
    """Call the job's `on_finished`, then keep the totals: without totals it was not called."""
    if job.on_finished is not None:
        run_app(job.on_finished, clients, job.load(run.args))
    store_totals(run.key.id())


def is_closed(run_id: str, chain: int, number: int) -> bool:
    """Return whether a page is closed; before the first one all are."""
    if number < 0:
        return True
    page = page_key(run_id, chain, number).get()
    return page is not None and page.closed


def _close_one(run_id: str, chain: int, number: int) -> ContinuationPage | None:
    """Close a page if all before it are closed; return it if it is closed now."""
    page = page_key(run_id, chain, number).get()
    if page is None or not page.done:
        return None
    if page.closed:
        return page  # type: ignore[no-any-return]
    if not is_closed(run_id, chain, number - 1):
        return None

    def close() -> ContinuationPage:
        page = page_key(run_id, chain, number).get()
        page.closed = True
        page.put()
        return page  # type: ignore[no-any-return]

    return transact(close)


def _end_chain(clients: Clients, run_id: str, chain: int) -> bool:
    """Note in a transaction that a chain has ended; True when the run has, with it."""
    run = run_key(run_id).get()
    if chain not in run.chains_ended:
        run.chains_ended = [*run.chains_ended, chain]
        if len(run.chains_ended) == len(run.spans):
            run.state, run.untold = FINISHED, True
            run.ended = naive_utc(clients.clock.now())
        run.put()
    return run.state == FINISHED and run.totals is None
