"""Runs of all jobs, as an operator sees them: listed, looked at, controlled."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rollforward.continuations import runs
from rollforward.continuations.entities import (
    CANCELLED,
    FINISHED,
    RUNNING,
    TOTALS_SLOTS,
    ContinuationPage,
    ContinuationRun,
    latest_runs,
    pages_of,
    runs_started_at,
)
from rollforward.continuations.errors import NotEndedError, PagesGoneError
from rollforward.continuations.jobs import Job
from rollforward.continuations.pages.seen_pages import issues_of
from rollforward.continuations.pages.totals import (
    SlotTotals,
    slot_totals,
    slot_totals_of,
    uncounted,
)
from rollforward.continuations.progress import RunTotals, run_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.errors import OtherVersionError
from rollforward.tasks.runs import (
    Run,
    RunDetails,
    RunIssue,
    RunList,
    RunPart,
    RunQuery,
    RunRefusedError,
    RunVerb,
    latest_rows,
    readable,
    scanned,
)

PATTERN = "continuations"
# Of each unfinished run without totals a list counts so many pages, and its own page so many.
MAX_PAGES_IN_LIST = 50
MAX_PAGES = 500
MAX_ISSUES = 200

Jobs = Mapping[str, Job[Any, Any]]


def list_runs(jobs: Jobs, query: RunQuery) -> RunList:
    """Return runs, the newest first: about `limit`, of the rows that were read."""
    shown, next_before = latest_rows(
        query,
        lambda before: latest_runs(started_before=before),
        runs_started_at,
        lambda row: row.started,
        partial(_matches, query),
    )
    unended = sum(not row.totals and not row.has_slots for row in shown)
    slots = slot_totals_of([row.key.id() for row in shown if row.has_slots and not row.totals])
    pages = MAX_PAGES_IN_LIST
    if query.max_reads:
        page_reads = query.max_reads - scanned(query) - TOTALS_SLOTS * len(slots)
        pages = max(1, page_reads // max(1, unended) - 1)
    runs = [
        readable(
            *(PATTERN, row.key.id(), row.job or "", row.started.replace(tzinfo=datetime.UTC)),
            partial(_to_run, jobs, row, slots.get(row.key.id()), pages),
        )
        for row in shown
    ]
    return RunList(runs, next_before)


def run_details(jobs: Jobs, run_id: str) -> RunDetails:
    """Return a run with its pages, as many as can be shown.

    Raises:
        UnknownRunError: the run does not exist.
    """
    row = run_of(run_id)
    # Before the pages: so none is counted twice.
    slots = slot_totals(run_id) if row.has_slots and not row.totals else None
    pages = pages_of(run_id).fetch(MAX_PAGES + 1)
    if slots is not None:
        sums = slots.sums
        for page in pages:
            sums += uncounted(page)
    totals, is_partial = _totals(row, slots, pages, MAX_PAGES)
    return RunDetails(
        run=_run(jobs, row, totals, is_partial=is_partial),
        parts=[_part(page) for page in pages[:MAX_PAGES]],
        issues=[
            RunIssue(issue.name, issue.outcome, issue.reason)
            for issue in itertools.islice(issues_of(pages), MAX_ISSUES)
        ],
        cost=asdict(totals.cost),
        has_all_parts=len(pages) <= MAX_PAGES and not row.pages_gone,
    )


def control(clients: Clients, jobs: Jobs, run_id: str, verb: RunVerb) -> str:
    """Cancel, resume or retry a run; return the id of the run to look at.

    Raises:
        UnknownRunError: the run does not exist.
        RunRefusedError: not as it is now; the text says why.
    """
    row = run_of(run_id)
    if verb not in _actions(jobs, row):
        raise RunRefusedError(_reason(jobs, row, verb))
    if verb == "cancel":
        runs.cancel(run_id)
    elif verb == "resume":
        runs.resume(clients, jobs, run_id)
    else:
        try:
            return runs.retry_failed(clients, jobs, run_id)
        except (NotEndedError, PagesGoneError, OtherVersionError) as error:
            raise RunRefusedError(str(error)) from error
    return run_id


def _matches(query: RunQuery, row: ContinuationRun) -> bool:
    return query.state in ("", row.state) and query.name in ("", row.job)


def _to_run(jobs: Jobs, row: ContinuationRun, slots: SlotTotals | None, max_pages: int) -> Run:
    """Return a run for a list: its totals cost a few reads for any size."""
    is_read = not row.totals and slots is None
    pages = pages_of(row.key.id()).fetch(max_pages + 1) if is_read else []
    totals, is_partial = _totals(row, slots, pages, max_pages)
    return _run(jobs, row, totals, is_partial=is_partial)


def _totals(
    row: ContinuationRun, slots: SlotTotals | None, pages: Sequence[ContinuationPage], limit: int
) -> tuple[RunTotals, bool]:
    """Return the totals of a run, of `limit` of its pages if it keeps none, and if that is less."""
    if row.totals:
        return RunTotals.kept(row), False
    if slots is not None:
        return RunTotals.of_sums(slots.sums, len(row.spans)), False
    return RunTotals.of(pages[:limit], len(row.spans)), len(pages) > limit


def _run(jobs: Jobs, row: ContinuationRun, totals: RunTotals, *, is_partial: bool = False) -> Run:
    is_over = row.state == FINISHED
    expected = totals.known if is_over else max(totals.known, row.expected or 0)
    may_find_more = not is_over and row.expected is None
    return Run(
        pattern=PATTERN,
        id=row.key.id(),
        name=row.job,
        state=row.state,
        args=row.args,
        started=row.started.replace(tzinfo=datetime.UTC),
        ended=aware_utc(row.ended),
        counts={
            "done": totals.done,
            "skipped": totals.skipped,
            "failed": totals.failed,
            "retrying": totals.retrying,
            "waiting": expected - totals.ended - totals.retrying,
        },
        expected=expected,
        is_partial=is_partial or may_find_more,
        retry_of=row.retry_of,
        retried_by=row.retried_by,
        verbs=_actions(jobs, row),
    )


def _actions(jobs: Jobs, row: ContinuationRun) -> Sequence[RunVerb]:
    if row.state == RUNNING:
        return ("cancel",)
    if row.job not in jobs:
        return ()
    if row.state == CANCELLED:
        return ("resume",)
    has_failed = row.totals is not None and RunTotals.kept(row).failed > 0
    can_retry = has_failed and not row.retried_by and not row.pages_gone
    return ("retry",) if can_retry else ()


def _reason(jobs: Jobs, row: ContinuationRun, verb: RunVerb) -> str:
    if row.job not in jobs and row.state != RUNNING:
        return f"no job of this app is called {row.job}"
    if verb == "retry" and row.state == FINISHED:
        if row.retried_by:
            return f"it was retried already, as {row.retried_by}"
        return "its items are kept no more" if row.pages_gone else "none of its items failed"
    return f"it is {row.state}"


def _part(page: ContinuationPage) -> RunPart:
    return RunPart(
        label=f"chain {page.chain}, page {page.number}",
        items=page.receipts,
        attempts=page.attempts,
        progressed=page.progressed_at.replace(tzinfo=datetime.UTC),
    )
