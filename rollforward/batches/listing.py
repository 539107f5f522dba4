"""Batches as an operator sees them: listed, looked at, cancelled, run again."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from google.cloud import ndb

from rollforward.batches import completion, policy
from rollforward.batches.adding import populate
from rollforward.batches.adding.creation import member_name
from rollforward.batches.entities import (
    CANCELLED,
    DONE,
    HAS_FAILED,
    REMOVED,
    RUNNING,
    WAITING,
    BatchPage,
    BatchState,
    BatchWork,
    batches_created_at,
    first_page_of,
    latest_batches,
    pages_within,
    results_key,
    state_key,
    work_key,
)
from rollforward.batches.tree import tree_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.attempt_entities import TaskAttempts, attempts_key
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.runs import (
    Run,
    RunDetails,
    RunIssue,
    RunLink,
    RunList,
    RunPart,
    RunQuery,
    RunRefusedError,
    RunState,
    RunVerb,
    UnknownRunError,
    latest_rows,
    readable,
)

PATTERN = "batches"
# Of the members and of their errors, on the page of a batch.
MAX_PAGES = 20
MAX_RESULTS = 20
MAX_ISSUES = 200
# Of the members that have not ended, those whose attempts are read, and their pages.
MAX_LOOKED_AT = 10
MAX_WORK = 2
_OUTCOME_LETTERS = {DONE: "d", HAS_FAILED: "f", WAITING: "."}


def list_runs(names: Sequence[str], query: RunQuery) -> RunList:
    """Return batches, the newest first: about `limit`, of the rows that were read."""
    shown, next_before = latest_rows(
        query,
        latest_batches,
        batches_created_at,
        lambda row: row.created,
        partial(_matches, query),
    )
    return RunList([_to_run(names, row) for row in shown], next_before)


def run_details(names: Sequence[str], batch: str) -> RunDetails:
    """Return a batch with its members, as many as can be shown.

    Raises:
        UnknownRunError: it does not exist, or no more.
    """
    row = _row(batch)
    pages: list[BatchPage] = pages_within(batch).fetch(MAX_PAGES + 1)
    counted = _counted(pages[:MAX_PAGES])
    retrying = _retrying(row, counted) if row.state == RUNNING else {}
    failed = _issues(counted) if row.failed else []
    return RunDetails(
        run=_with_retrying(_run(names, row), len(retrying)),
        parts=[_part(row, number, page, retrying) for number, page in enumerate(counted)],
        issues=[*(_retry_issue(at, row) for at, row in retrying.items()), *failed],
        numbers={
            "generation": row.generation,
            "sealed": "yes" if row.sealed else "no",
            "outcome": row.outcome or "none yet",
            "callback": row.callback_path or "none",
            "parent": RunLink(PATTERN, row.parent) if row.parent else "none",
            "wakes": row.wakes,
        },
        tree=tree_of(row, partial(_to_run, names)),
        has_all_parts=len(pages) <= MAX_PAGES,
    )


def control(clients: Clients, names: Sequence[str], batch: str, verb: RunVerb) -> str:
    """Cancel a batch, or run its failed and cancelled members again; return its id.

    Raises:
        UnknownRunError: it does not exist, or no more.
        RunRefusedError: not as it is now; the text says why.
    """
    row = _row(batch)
    if verb not in _actions(names, row):
        raise RunRefusedError(_reason(names, row, verb))
    if verb == "cancel":
        completion.cancel(clients, batch)
    else:
        populate.run_again(clients, batch)
    return batch


def _row(batch: str) -> BatchState:
    row: BatchState | None = state_key(batch).get()
    if row is None or row.state == REMOVED:
        raise UnknownRunError(f"there is no batch {batch}, or no more")
    return row


def _to_run(names: Sequence[str], row: BatchState) -> Run:
    batch, created = row.key.id(), row.created.replace(tzinfo=datetime.UTC)
    return readable(PATTERN, batch, _name(row), created, partial(_run, names, row))


def _run(names: Sequence[str], row: BatchState) -> Run:
    return Run(
        pattern=PATTERN,
        id=row.key.id(),
        name=_name(row),
        state=_state(row),
        args="",
        started=row.created.replace(tzinfo=datetime.UTC),
        ended=aware_utc(row.completed),
        counts={
            "done": row.done,
            "skipped": row.cancelled,
            "failed": row.failed,
            "waiting": row.waiting,
        },
        expected=row.members,
        verbs=_actions(names, row),
        part_of=RunLink(PATTERN, row.parent) if row.parent else None,
    )


def _state(row: BatchState) -> RunState:
    if row.state == RUNNING:
        return "running"
    return "cancelled" if row.outcome == CANCELLED else "finished"


def _actions(names: Sequence[str], row: BatchState) -> Sequence[RunVerb]:
    if row.state == RUNNING:
        return ("cancel",)
    is_known = _name(row) in names and not row.parent
    return ("retry",) if is_known and policy.can_run_again(row) else ()


def _reason(names: Sequence[str], row: BatchState, verb: RunVerb) -> str:
    if verb not in ("cancel", "retry"):
        return "it is a batch"
    if verb == "cancel":
        return "it is complete"
    if row.parent:
        return f"it is a member of {row.parent}: tell that"
    if row.state == RUNNING:
        return "it is running"
    if _name(row) not in names:
        return f"this app declares no batch {_name(row)}"
    return "no member failed or was cancelled"


def _counted(pages: Sequence[BatchPage]) -> list[BatchPage]:
    """Leave out the pages of additions that broke off before their commit.

    The commit stores the first page of an addition, whose digest ends the ids of all further pages.
    """
    leads = {page.key.id(): first_page_of(page.key.id()) for page in pages}
    asked = list(dict.fromkeys(lead for id_, lead in leads.items() if id_ != lead))
    works = zip(asked, ndb.get_multi(list(map(work_key, asked))), strict=True)
    ends = {lead: f"-{work.digest}" for lead, work in works if work is not None}
    return [page for page in pages if _is_counted(page.key.id(), leads, ends)]


def _is_counted(page: str, leads: Mapping[str, str], ends: Mapping[str, str]) -> bool:
    lead = leads[page]
    return page == lead or (lead in ends and page.endswith(ends[lead]))


def _part(
    row: BatchState, number: int, page: BatchPage, retrying: Mapping[tuple[str, int], TaskAttempts]
) -> RunPart:
    page_name = page.key.id()
    letters = "".join(
        "r" if (page_name, position) in retrying else _OUTCOME_LETTERS.get(letter, letter)
        for position, letter in enumerate(page.letters)
    )
    if row.state != RUNNING:  # A member that is waiting in a complete batch was cancelled.
        letters = letters.replace(".", "s")
    at = row.completed or row.created
    return RunPart(f"members page {number}", letters, 1, at.replace(tzinfo=datetime.UTC))


def _retrying(
    batch: BatchState, pages: Sequence[BatchPage]
) -> Mapping[tuple[str, int], TaskAttempts]:
    """Return the attempts of the first members that have failed and are tried again, by place.

    Members in lanes are not among them: the rows of their keys have their failures.
    """
    members = [
        (page.key.id(), position)
        for page in [page for page in pages if WAITING in page.letters][:MAX_WORK]
        for position, letter in enumerate(page.letters)
        if letter == WAITING
    ][:MAX_LOOKED_AT]
    page_names = list(dict.fromkeys(page for page, _ in members))
    stored = ndb.get_multi([work_key(page) for page in page_names])
    work = {page: row for page, row in zip(page_names, stored, strict=True) if row is not None}
    wakes = dict.fromkeys((0, batch.wakes))  # The task of the creation, and that of the last sweep.
    keys = {
        _attempts_key(work[page], page, position, batch.generation, wake): (page, position)
        for page, position in members
        if page in work
        for wake in wakes
    }
    attempts = filter(None, ndb.get_multi(list(keys)))
    # The later task's error is the newer one.
    by_time = sorted((row for row in attempts if row.failures), key=lambda row: row.expires)
    return {keys[row.key]: row for row in by_time}


def _attempts_key(work: BatchWork, page: str, position: int, generation: int, wake: int) -> ndb.Key:
    path, queue, *_ = work.tasks[work.members[position][0]]
    name = hashed_name(path, *member_name(page, position, generation, wake))
    return attempts_key(hashed_name(queue, name))


def _with_retrying(run: Run, count: int) -> Run:
    if not count:
        return run
    counts = {**run.counts, "waiting": run.counts["waiting"] - count, "retrying": count}
    return replace(run, counts=counts)


def _retry_issue(place: tuple[str, int], attempts: TaskAttempts) -> RunIssue:
    page, position = place
    times = f"{attempts.failures} failure{'s' if attempts.failures != 1 else ''}"
    reason = f"{times}: {attempts.error}" if attempts.error else times
    return RunIssue(f"{page}:{position}", "retrying", reason)


def _issues(pages: Sequence[BatchPage]) -> list[RunIssue]:
    """Return the last error of each failed member, of the newest results of each page."""
    with_errors = [page for page in pages if HAS_FAILED in page.letters]
    keys = [
        results_key(page.key.id(), page.results - 1 - age)
        for age in range(MAX_RESULTS)
        for page in with_errors
        if age < page.results
    ]
    errors: dict[str, str] = {}
    for row in filter(None, ndb.get_multi(keys[:MAX_RESULTS])):
        page = row.key.id().rpartition(":")[0]
        for position, _, is_done, error in reversed(row.results):
            if not is_done:
                errors.setdefault(f"{page}:{position}", str(error))
    failed = [
        f"{page.key.id()}:{position}"
        for page in with_errors
        for position, letter in enumerate(page.letters)
        if letter == HAS_FAILED
    ]
    return [RunIssue(id_, "failed", errors[id_]) for id_ in failed if id_ in errors][:MAX_ISSUES]


def _matches(query: RunQuery, row: BatchState) -> bool:
    is_shown = row.state != REMOVED
    return is_shown and query.state in ("", _state(row)) and query.name in ("", _name(row))


def _name(row: BatchState) -> str:
    return str(row.key.id()).partition(":")[0]
