"""Continuations: long work in pages, each of which links the next before it does its own.

A run walks a source. One task per page, and page g does, in this order:

1. pin   Its items are read and stored in its row: a retry sees the same page, whatever was
         inserted meanwhile. The same commit takes a lease, so that two deliveries of one
         task do not work side by side; heartbeats keep it while the work lasts.
2. link  Page g+1 gets its task, by a name made of run, chain and number. "Already exists"
         means that it is linked. So failures stay in their page, and pages run in parallel.
3. work  Items are worked on in small groups. What became of each is committed to the page's
         row, one letter an item, under the lease: an attempt that lost it commits nothing.
4. close When a page and all before it are done, it is closed, and passes that on to the page
         behind it. The last page to be closed ends the chain, and the last chain the run.
         Each page costs one commit for that, and no row is hot.

Two kinds of work. `apply` writes to Datastore in the very commit that holds the receipts:
exactly once. `deliver` acts on the outside world first, and the receipts follow within ten
items or 50 ms. A crash in between may repeat those items: the one window that cannot be
closed. Each page counts how many items stood in it (`in_doubt`).

Lost on failure: nothing. A crash costs a lease (6 s) or a sweep (a minute).

Routes: POST /tasks/continuations/<job> for each job; GET /cron/continuations/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Continuation passing (the right way)". Why not its code: docs/adr/0003.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.cloud import ndb

from models.continuations import (
    CANCELLED,
    FINISHED,
    RUNNING,
    ContinuationPage,
    ContinuationRun,
    pages_of,
    run_key,
    running_runs,
)
from models.transactions import transact
from pipelines.clients import Clients
from pipelines.clock import naive
from pipelines.jobs import Job
from pipelines.pages import PageArgs, page_task
from pipelines.progress import progress, run_of
from pipelines.tasks import hashed_name

log = logging.getLogger(__name__)

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.

MOST_CHAINS = 8
# Fewer pages than this are not worth a chain of their own.
PAGES_PER_CHAIN = 4
# A page that has not got on for so long is woken, then after twice that, and so on.
STALE_S = 45.0
SWEPT_RUNS = 50

Jobs = Mapping[str, Job[Any, Any]]


class NotEndedError(Exception):
    """The run has not finished."""


def new_run(
    clients: Clients,
    job: Job[A, I],
    args: A,
    *,
    run_id: str,
    expected: int | None = None,
    retry_of: str | None = None,
    page_size: int | None = None,
    chains: int | None = None,
) -> ContinuationRun:
    """Return the row of a run, not stored: put it in a transaction of yours, then `launch`.

    Args:
        run_id: Chosen so that the same intent has the same id.
        expected: How many items there will be, if known: decides the number of chains.
    """
    size = page_size or job.page_size
    if size < 1:
        raise ValueError(f"page_size must be at least 1, not {size}")
    if not run_id or set(run_id) & set(":;"):
        raise ValueError(f"a run's id is not empty and has no colon or semicolon: {run_id!r}")
    run = ContinuationRun(
        key=run_key(run_id),
        job=job.name,
        args=job.dump(args),
        page_size=size,
        expected=expected,
        retry_of=retry_of,
        started=naive(clients.clock.now()),
    )
    chains = chains or min(MOST_CHAINS, max(1, (expected or 0) // (size * PAGES_PER_CHAIN)))
    run.spans = [[span.after, span.until] for span in job.source_of(run).split(chains)]
    return run


def launch(clients: Clients, job: Job[Any, Any], run_id: str) -> None:
    """Create the first task of each chain of a stored run; doing it again does nothing.

    The stored row says where the chains start: somebody else's draft may be cut otherwise.
    """
    run = run_of(run_id)
    heads = [_head(run, chain) for chain in range(len(run.spans))]
    page_task(job).enqueue_many(clients, heads, names=[head.task_name for head in heads])


def start(
    clients: Clients,
    job: Job[A, I],
    args: A,
    *,
    run_id: str,
    expected: int | None = None,
    page_size: int | None = None,
    chains: int | None = None,
) -> bool:
    """Start a run, once per run_id; True if this call made it."""
    draft = new_run(
        clients, job, args, run_id=run_id, expected=expected, page_size=page_size, chains=chains
    )

    def put_once() -> bool:
        if draft.key.get() is not None:
            return False
        draft.put()
        return True

    is_new = transact(put_once)
    launch(clients, job, run_id)
    return is_new


def cancel(run_id: str) -> None:
    """Stop a run: what was done stays, what was not is left. It can be resumed."""
    _turn(run_id, RUNNING, CANCELLED)


def resume(clients: Clients, jobs: Jobs, run_id: str) -> None:
    """Go on with a cancelled run, or give a running one a push."""
    run = _turn(run_id, CANCELLED, RUNNING)
    stalled = [args for args, _ in _stalled(run, list(pages_of(run_id)))]
    if stalled:
        page_task(jobs[run.job]).enqueue_many(clients, stalled)


def retry_failed(clients: Clients, jobs: Jobs, run_id: str) -> str:
    """Run the failed items of a finished run again, as a run of its own.

    Returns:
        The new run's id: the same however often this is called.

    Raises:
        NotEndedError: the run has not finished: it goes on, or may be resumed.
    """
    parent = run_of(run_id)
    if parent.state != FINISHED:
        raise NotEndedError(f"run {run_id} is {parent.state}")
    job = jobs[parent.job]
    child_id = hashed_name("retry", run_id)
    child = new_run(
        clients,
        job,
        job.load(parent.args),
        run_id=child_id,
        retry_of=run_id,
        page_size=parent.page_size,
        chains=1,
        expected=_unfinished(run_id),
    )

    def put_once() -> None:
        old, existing = ndb.get_multi([run_key(run_id), run_key(child_id)])
        if existing is None:
            old.retried_by = child_id
            ndb.put_multi([old, child])

    transact(put_once)
    launch(clients, job, child_id)
    return child_id


def _unfinished(run_id: str) -> int:
    totals = progress(run_id).totals
    return totals.failed + totals.retrying + totals.waiting


def _turn(run_id: str, before: str, after: str) -> ContinuationRun:
    def body() -> ContinuationRun:
        run = run_of(run_id)
        if run.state == before:
            run.state = after
            run.put()
        return run

    return transact(body)


def _head(run: ContinuationRun, chain: int) -> PageArgs:
    return PageArgs(run.key.id(), chain, 0, run.spans[chain][0])


def sweep(clients: Clients, jobs: Jobs) -> int:
    """Wake the pages that have waited too long; return how many tasks that took.

    Bounded: SWEPT_RUNS running runs, from a random id on and around the end, so that runs
    that never end cannot hide the others for long.
    """
    woken = 0
    start = clients.new_id()
    runs = running_runs(after=start).fetch(SWEPT_RUNS)
    if len(runs) < SWEPT_RUNS:
        seen = {run.key for run in runs}
        first = running_runs().fetch(SWEPT_RUNS - len(runs))
        runs += [run for run in first if run.key not in seen]
    for run in runs:
        job = jobs.get(run.job)
        if job is None:
            log.error("run %s is of job %s, which is not known here", run.key.id(), run.job)
            continue
        woken += _wake(clients, job, run)
    return woken


def _wake(clients: Clients, job: Job[Any, Any], run: ContinuationRun) -> int:
    """Wake a run's stalled pages: each after STALE_S, after twice that, and so on.

    The step stands in the task's name, so a queue that stands still is not flooded.
    """
    now = naive(clients.clock.now())
    pages: list[PageArgs] = []
    names: list[tuple[str | int, ...]] = []
    for args, moved in _stalled(run, list(pages_of(run.key.id()))):
        age_s = (now - moved).total_seconds()
        step = int(age_s / STALE_S).bit_length()
        if step:
            pages.append(args)
            hour = int(age_s / 3600)  # From the second on, a wake an hour.
            names.append(("wake", *args.task_name, moved.isoformat(), min(step, 7), hour))
    return sum(page_task(job).enqueue_many(clients, pages, names=names)) if pages else 0


def _stalled(
    run: ContinuationRun, pages: Sequence[ContinuationPage]
) -> list[tuple[PageArgs, datetime.datetime]]:
    """Return the pages that have something left to do, and when they got on last."""
    run_id = run.key.id()
    rows = {(page.chain, page.number): page for page in pages}
    stalled = [
        (_head(run, chain), run.started)
        for chain in range(len(run.spans))
        if (chain, 0) not in rows
    ]
    for page in pages:
        if _has_work(run, page, rows.get((page.chain, page.number - 1))):
            args = PageArgs(run_id, page.chain, page.number, page.after)
            stalled.append((args, page.moved))
        if page.next is not None and (page.chain, page.number + 1) not in rows:
            args = PageArgs(run_id, page.chain, page.number + 1, page.next)
            stalled.append((args, page.moved))
    return stalled


def _has_work(
    run: ContinuationRun, page: ContinuationPage, before: ContinuationPage | None
) -> bool:
    if not page.worked:
        return True
    if not page.closed:
        return page.number == 0 or (before is not None and before.closed)
    return page.next is None and page.chain not in run.chains_ended
