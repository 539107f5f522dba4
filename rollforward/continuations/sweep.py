"""The sweep of continuations: it wakes pages that wait too long, and deletes expired rows.

Its cost follows the open work, not the finished work: of each chain it reads the pages after
the closed ones, and of a run a bounded number at once. Runs take turns: each sweep continues
after the last run that the one before has looked at. A run that cannot be woken is logged, and
holds up no other.

Lost on failure: nothing. A sweep that breaks off is done again a minute later.
"""

from __future__ import annotations

import datetime
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from google.cloud import ndb

from rollforward.continuations.entities import (
    FINISHED,
    PAGES_KEPT_FOR,
    ContinuationPage,
    ContinuationRun,
    ContinuationSweep,
    expired_runs,
    heartbeats_of,
    pages_of,
    pages_of_chain,
    run_key,
    running_runs,
    sweep_key,
    totals_keys,
    untold_runs,
)
from rollforward.continuations.jobs import Jobs
from rollforward.continuations.pages.attempt import PageArgs, page_task
from rollforward.continuations.pages.slots import count_missed
from rollforward.continuations.pages.totals import is_missed
from rollforward.continuations.pages.turns import turn_of
from rollforward.continuations.upload_entities import expired_chunks
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.run_all import run_all

log = logging.getLogger(__name__)

# A page that has not got on for so long is woken, then after twice that, and so on.
STALE_S = 45.0
SWEPT_RUNS = 50
# Of one run in one sweep: some 10 MiB.
SWEPT_PAGES = 1_000
# The sweep notes how far a run's pages are closed when it has come so much further.
NOTED_EVERY = 50
# So many runs that fail one after another say that a service is unavailable, not the runs.
MAX_FAILED_IN_A_ROW = 3
# Pages of an older version that a sweep counts of one run, each by a transaction.
MAX_COUNTED = 100
MAX_DELETED = 500
MAX_RUNS_DELETED = 10


# Waking


def sweep(clients: Clients, jobs: Jobs, *, stale_s: float = STALE_S) -> int:
    """Wake the pages that have waited too long; return how many tasks that took.

    Args:
        stale_s: How long a page has not got on, at least. A worker that starts may look for what
            the one before has left with a shorter time.
    """
    running = _resume_runs(running_runs, "running", lambda run: _wake(clients, jobs, run, stale_s))
    untold = _resume_runs(untold_runs, "untold", lambda run: _wake(clients, jobs, run, stale_s))
    return running + untold


def _resume_runs(
    runs_after: Callable[..., Any], name: str, wake: Callable[[ContinuationRun], int]
) -> int:
    """Wake up to SWEPT_RUNS runs of a query, behind the last one that was looked at."""
    mark = sweep_key(name).get()
    position = mark.after if mark is not None else ""
    runs = runs_after(start_after=position).fetch(SWEPT_RUNS)
    if position and len(runs) < SWEPT_RUNS:
        seen = {run.key for run in runs}
        from_start = runs_after().fetch(SWEPT_RUNS - len(runs))
        runs += [run for run in from_start if run.key not in seen]
    results = run_all(
        [(f"run {run.key.id()} could not be woken", partial(wake, run)) for run in runs],
        max_unavailable=MAX_FAILED_IN_A_ROW,
    )
    if results.is_cut_short or len(runs) == SWEPT_RUNS:
        last_run = runs[results.attempted - 1].key.id()
        ContinuationSweep(key=sweep_key(name), after=last_run).put()
    return sum(results.returned)


def _wake(clients: Clients, jobs: Jobs, run: ContinuationRun, stale_s: float) -> int:
    """Wake a run's stalled pages: each when it is stale, when twice as old, and so on.

    The step is part of the task's name, so a paused queue is not flooded.
    """
    job = jobs.get(run.job)
    if job is None:
        log.error("run %s is of job %s, which is not known here", run.key.id(), run.job)
        return 0
    now_utc = naive_utc(clients.clock.now())
    pages: list[PageArgs] = []
    names: list[tuple[str | int, ...]] = []
    open_pages = OpenPages.at(run, max_pages=SWEPT_PAGES)
    for args, progressed_at in open_pages.stalled:
        turn = open_pages.turns.get(args, progressed_at)
        if progressed_at <= now_utc < turn:
            continue  # Its task waits for that.
        # Ahead of us: from a clock that was wrong.
        age_s = abs((now_utc - max(progressed_at, turn)).total_seconds())
        step = int(age_s / stale_s).bit_length()
        if step:
            pages.append(args)
            hour = int(age_s / 3600)  # From the second on, a wake an hour.
            if run.state == FINISHED and hour >= 24:
                hour -= hour % 24  # Its job fails whenever it is told: one wake a day.
            wake = (progressed_at.isoformat(), int(stale_s), min(step, 7), hour)
            names.append(("wake", *args.task_name, *wake))
    woken = sum(page_task(job).enqueue_many(clients, pages, names=names)) if pages else 0
    open_pages.count_missed(clients)
    open_pages.save()
    return woken


def head(run: ContinuationRun, chain: int) -> PageArgs:
    """Return the first page of a chain."""
    return PageArgs(run.key.id(), chain, 0, run.spans[chain][0])


@dataclass
class OpenPages:
    """The open pages of a run, as one look finds them, and when each got on last."""

    run: ContinuationRun
    budget: int  # How many pages may still be read.
    stalled: list[tuple[PageArgs, datetime.datetime]] = field(default_factory=list)
    # When the pages that do not exist have their turns, in a run that has a rate.
    turns: dict[PageArgs, datetime.datetime] = field(default_factory=dict)
    goes_on_at: list[int] | None = None
    closed: dict[str, int] = field(default_factory=dict)
    forgotten: list[ContinuationPage] = field(default_factory=list)  # No slot has all of them.

    @classmethod
    def at(cls, run: ContinuationRun, *, max_pages: int | None = None) -> OpenPages:
        """Look at a run: at all open pages, or at `max_pages` of them, from its last position."""
        open_pages = cls(run, max_pages or 10**9, closed=dict(run.closed or {}))
        if run.state == FINISHED:
            # Its first page's task finds that its job was not told, and tells it.
            open_pages.stalled = [(head(run, 0), run.ended)] if run.untold else []
            return open_pages
        chain, number = (run.swept_to if max_pages else None) or (0, None)
        for current in range(chain, len(run.spans)):
            if current not in run.chains_ended:
                open_pages._chain(current, number if current == chain else None)
            if open_pages.goes_on_at is not None:
                break
        return open_pages

    def _chain(self, chain: int, first_number: int | None) -> None:
        start = self.closed.get(str(chain), 0) if first_number is None else first_number
        if self.budget < 2:
            self.goes_on_at = [chain, start]
            return
        pages = pages_of_chain(self.run.key.id(), chain, start).fetch(self.budget + 1)
        if len(pages) > self.budget:
            # The last two are the first of the next look: what is done needs the one before.
            self.goes_on_at = [chain, pages[-2].number]
        if not pages and start == 0:
            self._await(head(self.run, chain), self.run.started)
        self.budget -= len(pages)
        previous: ContinuationPage | None = None
        for page, follower in itertools.pairwise([*pages, None]):
            is_cut = follower is None and self.goes_on_at is not None
            if not is_cut:
                self._page(page, previous, follower)
            previous = page

    def _page(
        self,
        page: ContinuationPage,
        previous: ContinuationPage | None,
        follower: ContinuationPage | None,
    ) -> None:
        run_id = self.run.key.id()
        if self.run.has_slots and is_missed(page):
            self.forgotten.append(page)
        if self._has_work(page, previous):
            args = PageArgs(run_id, page.chain, page.number, page.after)
            self.stalled.append((args, page.progressed_at))
        if page.next is not None and (follower is None or follower.number != page.number + 1):
            args = PageArgs(run_id, page.chain, page.number + 1, page.next)
            self._await(args, page.progressed_at)
        if page.closed and page.number == self.closed.get(str(page.chain), -1) + 1:
            self.closed[str(page.chain)] = page.number

    def _await(self, args: PageArgs, since: datetime.datetime) -> None:
        """Note a page that does not exist: its task may be lost, or wait for its turn."""
        self.stalled.append((args, since))
        turn = turn_of(self.run, args.chain, args.number, since)
        if turn is not None:
            self.turns[args] = turn

    def _has_work(self, page: ContinuationPage, previous: ContinuationPage | None) -> bool:
        if not page.done:
            return True
        if not page.closed:
            return page.number == 0 or (previous is not None and previous.closed)
        return page.next is None and page.chain not in self.run.chains_ended

    def count_missed(self, clients: Clients) -> None:
        """Count some of the pages that no slot has; the next look begins with the others."""
        keys = [page.key for page in self.forgotten]
        left = count_missed(clients, self.run.key.id(), keys[:MAX_COUNTED])
        uncounted = {*left, *keys[MAX_COUNTED:]}
        for page in self.forgotten:
            chain = str(page.chain)
            if page.key in uncounted and chain in self.closed:
                self.closed[chain] = min(self.closed[chain], page.number)

    def save(self) -> None:
        """Keep with the run where the next look may begin, when that saves enough."""
        run = self.run
        further = sum(self.closed.values()) - sum((run.closed or {}).values())
        if further < NOTED_EVERY and self.goes_on_at == run.swept_to:
            return

        def body() -> None:
            run = self.run.key.get()
            run.closed, run.swept_to = self.closed, self.goes_on_at
            run.put()

        transact(body)


# Deleting


def delete_expired(clients: Clients) -> int:
    """Delete receipts and other proofs, after 30 days; return how many rows went.

    Pages of runs that have finished, with their heartbeats, and uploaded files. A bounded number
    each time.
    """
    now_utc = naive_utc(clients.clock.now())
    chunks = expired_chunks(now_utc).fetch(MAX_DELETED, keys_only=True)
    ndb.delete_multi(chunks)
    deleted = len(chunks)
    for run in expired_runs(now_utc).fetch(MAX_RUNS_DELETED):
        if deleted >= MAX_DELETED:
            break
        deleted += _delete_pages(run.key.id(), now_utc, MAX_DELETED - deleted)
    return deleted


def _delete_pages(run_id: str, now_utc: datetime.datetime, limit: int) -> int:
    """Delete a run's pages, and note when none is left. Its totals stay."""
    run = run_key(run_id).get()
    if run.pages_until is None or run.pages_until > now_utc:
        return 0  # Retried meanwhile.
    retry = run_key(run.retried_by).get() if run.retried_by else None
    if retry is not None and retry.state != FINISHED:
        _keep_pages(run_id, until=now_utc + PAGES_KEPT_FOR)  # It reads them to know what failed.
        return 0
    keys: list[Any] = []
    for query in (heartbeats_of(run_id), pages_of(run_id)):
        if len(keys) < limit:
            keys += query.fetch(limit - len(keys), keys_only=True)
    ndb.delete_multi(keys)
    if len(keys) < limit:
        ndb.delete_multi(totals_keys(run_id))
        _keep_pages(run_id, until=None)
    return len(keys)


def _keep_pages(run_id: str, *, until: datetime.datetime | None) -> None:
    """Note until when a run's pages are kept; None: they are gone."""

    def body() -> None:
        run = run_key(run_id).get()
        run.pages_until, run.pages_gone = until, until is None
        run.put()

    transact(body)
