"""Runs: started, cancelled, resumed, and their failed items tried again."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import Any, TypeVar

from google.cloud import ndb

from rollforward import outbox
from rollforward.continuations.entities import (
    CANCELLED,
    FINISHED,
    PAGES_KEPT_FOR,
    RUNNING,
    ContinuationRun,
    run_key,
)
from rollforward.continuations.errors import NotEndedError, OtherJobError, PagesGoneError
from rollforward.continuations.jobs import Job, Jobs, check_page_size, check_rate
from rollforward.continuations.pages.attempt import PageArgs, page_task
from rollforward.continuations.pages.turns import turn_of
from rollforward.continuations.progress import progress, run_of
from rollforward.continuations.sweep import OpenPages, head
from rollforward.datastore.transactions import (
    TransactionHook,
    current_transaction,
    is_in_transaction,
    transact,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.process.optional_clients import function_with_optional_clients
from rollforward.tasks.cloud_tasks import UNANSWERED
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.errors import Unavailable

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.

MAX_CHAINS = 8
# Fewer pages than this are not worth a chain of their own.
PAGES_PER_CHAIN = 4
MAX_RUN_ID_BYTES = 500
# Names of keys that Datastore keeps for itself.
_RESERVED = re.compile("__.*__")


@function_with_optional_clients
def new_run(
    clients: Clients,
    job: Job[A, I],
    args: A | None = None,
    *,
    run_id: str,
    expected: int | None = None,
    retry_of: str | None = None,
    page_size: int | None = None,
    chains: int | None = None,
    max_rate: float | None = None,
) -> ContinuationRun:
    """Return the row of a run, not stored: put it in a transaction of yours, then `launch`.

    Args:
        args: None: of a job that has none, or none without a default.
        run_id: Chosen so that the same intent has the same id. At most 500 bytes in UTF-8, of
            characters that can be printed, without colon or semicolon, and not "__...__".
        expected: How many items there will be, if known: decides the number of chains.
        max_rate: Items a second, at most; None is as fast as possible. Pages are spread over time.

    Raises:
        ValueError: there can be no run of this id, page size, rate or number of chains.
        BadArgumentsError, UnknownTaskError: no task of it could be delivered.
    """
    page_task(job).check_registered(clients)
    size = job.page_size if page_size is None else page_size
    check_page_size(size)
    if chains is None:
        chains = min(MAX_CHAINS, max(1, (expected or 0) // (size * PAGES_PER_CHAIN)))
    if chains < 1:
        raise ValueError(f"chains must be at least 1, got {chains}")
    if max_rate is not None:
        check_rate(max_rate, size)
    _check_id(run_id)
    run = ContinuationRun(
        key=run_key(run_id),
        job=job.name,
        args=job.dump(job.arguments_of(args)),
        page_size=size,
        expected=expected,
        max_rate=max_rate,
        retry_of=retry_of,
        started=naive_utc(clients.clock.now()),
        has_slots=True,
    )
    run.spans = [[span.after, span.until] for span in job.source_of(run).split(chains)]
    return run


def _check_id(run_id: str) -> None:
    """Refuse an id that pages and tasks could not be named by, before anything is stored."""
    is_text = isinstance(run_id, str) and run_id.isprintable()
    if not is_text or not run_id or set(run_id) & set(":;"):
        raise ValueError(f"run_id must be a text, not empty, without : and ;, got {run_id!r:.100}")
    if _RESERVED.fullmatch(run_id):
        raise ValueError(f"run_id must not begin and end with __, got {run_id!r:.100}")
    if len(run_id.encode()) > MAX_RUN_ID_BYTES:
        raise ValueError(f"run_id must have at most {MAX_RUN_ID_BYTES} bytes, got {run_id!r:.100}")


@function_with_optional_clients
def launch(clients: Clients, job: Job[Any, Any], run_id: str) -> None:
    """Create the first task of each chain of a stored run; doing it again does nothing.

    The stored row says where the chains start: the draft of another caller may be cut otherwise.
    In a run that has a rate they wait for their turns, as all other pages do.
    When Cloud Tasks does not answer, this process creates the tasks once it does.

    Raises:
        OtherJobError: the run is of another job.
        rollforward.tasks.errors.Unavailable, google.api_core.exceptions.GoogleAPICallError: Cloud
            Tasks does not answer; the run begins later.
    """
    run = run_of(run_id)
    check_job(run, job)
    page, delays_s = page_task(job), _delays_s(clients, run)
    at_once = [args for args, delay_s in delays_s.items() if not delay_s]
    try:
        page.enqueue_many(clients, at_once, names=[args.task_name for args in at_once])
        for args, delay_s in delays_s.items():
            if delay_s:
                page.enqueue(clients, args, name=args.task_name, delay_s=delay_s)
    except (*UNANSWERED, Unavailable):
        # The sweep creates the others at their turns.
        tasks = [page.message(args, name=args.task_name) for args in at_once]
        outbox.create_later(clients, tasks)
        raise


def check_job(run: ContinuationRun, job: Job[Any, Any]) -> None:
    """Check that a run is of a job.

    Raises:
        OtherJobError: it is not.
    """
    if run.job != job.name:
        raise OtherJobError(f"run {run.key.id()} is of job {run.job}, not {job.name}")


def _delays_s(clients: Clients, run: ContinuationRun) -> dict[PageArgs, float]:
    """Return the first pages of a run's chains, and the seconds until their turns."""
    now_utc = naive_utc(clients.clock.now())
    delays_s: dict[PageArgs, float] = {}
    for chain in range(len(run.spans)):
        turn = turn_of(run, chain, 0, run.started)
        delays_s[head(run, chain)] = max(0.0, (turn - now_utc).total_seconds()) if turn else 0.0
    return delays_s


@function_with_optional_clients
def start(
    clients: Clients,
    job: Job[A, I],
    args: A | None = None,
    *,
    run_id: str,
    expected: int | None = None,
    page_size: int | None = None,
    chains: int | None = None,
    max_rate: float | None = None,
) -> bool:
    """Start a run, once per run_id; True if this call made it and knows so.

    In a transaction the run starts with its commit, or not at all.

    Args: as of `new_run`.

    Raises:
        ValueError: an argument is invalid.
        BadArgumentsError, UnknownTaskError: no task of it could be delivered; nothing was stored.
        OtherJobError: the run of this id is of another job.
    """

    def draft_run() -> ContinuationRun:
        return new_run(
            *(clients, job, args),
            run_id=run_id,
            expected=expected,
            page_size=page_size,
            chains=chains,
            max_rate=max_rate,
        )

    # It may look for the ends of chains, which no commit depends on.
    draft: ContinuationRun = ndb.non_transactional(allow_existing=True)(draft_run)()

    def put_once() -> bool:
        existing = draft.key.get()
        if existing is not None:
            check_job(existing, job)
            return False
        draft.put()
        return True

    if is_in_transaction():
        current_transaction().hook(f"run {run_id}", lambda: _LaunchHook(clients, job, run_id))
        return put_once()
    is_new = transact(put_once)
    launch(clients, job, run_id)
    return is_new


class _LaunchHook(TransactionHook):
    """Launches a run once it is committed. If that fails, the sweep does it."""

    def __init__(self, clients: Clients, job: Job[Any, Any], run_id: str) -> None:
        self._launch = partial(launch, clients, job, run_id)

    def on_retry(self, cause: Exception) -> None:
        """Keep the run: the next attempt puts it, too."""

    def on_commit(self) -> None:
        with contextlib.suppress(*UNANSWERED, Unavailable):  # This process does it once it is back.
            self._launch()

    def on_outcome_unknown(self) -> None:
        """Leave the run to the sweep, if it is there."""


def cancel(run_id: str) -> None:
    """Stop a run: finished items stay, the others wait. It can be resumed."""
    _transition(run_id, RUNNING, CANCELLED)


@function_with_optional_clients
def resume(clients: Clients, jobs: Jobs, run_id: str) -> None:
    """Go on with a cancelled run, or give a running one a push."""
    run = _transition(run_id, CANCELLED, RUNNING)
    look, now_utc = OpenPages.at(run), naive_utc(clients.clock.now())
    page = page_task(jobs[run.job])
    stalled = [args for args, _ in look.stalled if look.turns.get(args, now_utc) <= now_utc]
    if stalled:
        page.enqueue_many(clients, stalled)
    for args, turn in look.turns.items():  # One of each chain.
        if turn > now_utc:
            page.enqueue(clients, args, delay_s=(turn - now_utc).total_seconds())


@function_with_optional_clients
def retry_failed(clients: Clients, jobs: Jobs, run_id: str) -> str:
    """Run the failed items of a finished run again, as a run of its own, at the same rate.

    Returns:
        The new run's id: the same however often this is called.

    Raises:
        NotEndedError: the run has not finished: it is running, or may be resumed.
        PagesGoneError: it finished more than 30 days ago.
    """
    parent = run_of(run_id)
    if parent.state != FINISHED:
        raise NotEndedError(f"run {run_id} is {parent.state}")
    now_utc = naive_utc(clients.clock.now())
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
        expected=progress(run_id, dots=False).totals.failed,
        max_rate=parent.max_rate,
    )

    def put_once() -> None:
        run, existing = ndb.get_multi([run_key(run_id), run_key(child_id)])
        if existing is not None:
            return
        if run.pages_gone or (run.pages_until is not None and run.pages_until <= now_utc):
            raise PagesGoneError(f"run {run_id} ended at {run.ended:%Y-%m-%d}")
        run.retried_by = child_id
        run.pages_until = now_utc + PAGES_KEPT_FOR  # The retry reads them to know what failed.
        ndb.put_multi([run, child])

    transact(put_once)
    launch(clients, job, child_id)
    return child_id


def _transition(run_id: str, expected: str, target: str) -> ContinuationRun:
    def body() -> ContinuationRun:
        run = run_of(run_id)
        if run.state == expected:
            run.state = target
            run.put()
        return run

    return transact(body)
