"""One attempt at one page: pin, link, work, close. Design: the package's docstring."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward.app_code import APP_ERRORS, run_app
from rollforward.continuations.entities import (
    FINISHED,
    RUNNING,
    WAITING,
    ContinuationPage,
    ContinuationRun,
    page_key,
    run_key,
)
from rollforward.continuations.jobs import ApplyFunction, ItemError, Job
from rollforward.continuations.pages.closing import close_from, finish, is_closed
from rollforward.continuations.pages.lease import (
    BEATS_PER_LEASE,
    MAX_UNRECEIPTED,
    LeasedError,
    PageLease,
)
from rollforward.continuations.pages.receipts import Receipt, gone, receipt_of, record, unexpected
from rollforward.continuations.pages.turns import turn_of
from rollforward.continuations.sources import Slice, Span, read_page
from rollforward.datastore.transactions import TRANSIENT, is_in_transaction, pending_writes
from rollforward.runtime.channel.rpc import Cost
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Reject, Retry, Unavailable

log = logging.getLogger(__name__)

# Receipts are committed after MAX_UNRECEIPTED items, or as soon as the oldest is so old.
UNRECEIPTED_S = 0.05
# How often an attempt looks whether its run was cancelled.
LOOK_S = 1.0
# The queue's clock may be ahead of ours by so much.
CLOCK_SLACK_S = 1.0
# A task that was created for a time may come so much early, by a clock that is behind: when an
# item was deferred, and for the end of a lease. Beyond that the sweep helps.
EARLY_S = {"again": 30.0, "leased": 3.0}

# Not this item's fault: the whole attempt ends with them. Other errors of Datastore, such as
# an entity that is too large, are the item's, and nothing was written.
PASSED_ON = (Retry, Unavailable, Reject, *TRANSIENT)


@dataclass(frozen=True)
class PageArgs:
    """Arguments of the task of a page: the page, and its start in the source."""

    run_id: Annotated[str, pydantic.Field(min_length=1, max_length=500)]
    chain: Annotated[int, pydantic.Field(ge=0, lt=10**4)]
    number: Annotated[int, pydantic.Field(ge=0, lt=10**8)]
    after: str

    @property
    def task_name(self) -> tuple[str, int, int]:
        """The parts of the page's unique task name: two runs never block each other."""
        return (self.run_id, self.chain, self.number)


class CommitKind(Enum):
    """Kinds of commits of receipts, by their effect on the lease of the attempt."""

    INTERIM = auto()  # More items follow: the lease is renewed.
    LAST = auto()  # Each open item was tried: the lease is given back.
    BROKEN_OFF = auto()  # The attempt ends early: the lease is given back, the rest stays open.


@cache
def page_task(job: Job[Any, Any]) -> Task[PageArgs]:
    """Return the task of a job's pages."""
    path = f"/tasks/continuations/{job.name}"
    return Task(path, job.queue, PageArgs, lambda clients, args: work_page(clients, job, args))


def work_page(clients: Clients, job: Job[Any, Any], args: PageArgs) -> None:
    """Do what one task asks for: pin, link, work, close."""
    spent_before = clients.meter.cost()
    run, page = ndb.get_multi(
        [run_key(args.run_id), page_key(args.run_id, args.chain, args.number)]
    )
    if run is None:
        raise Reject(f"there is no run {args.run_id}")
    if run.job != job.name:
        raise Reject(f"run {args.run_id} is of job {run.job}")
    if run.state == FINISHED and run.totals is None:
        finish(clients, job, run)  # The attempt that ended the run did not get that far.
    if run.state != RUNNING:
        return
    if page is not None and _is_not_due(clients, job, page):
        _schedule(clients, job, args, page.retry_at, "again", page.attempts)
        return
    attempt = _PageAttempt(clients, job, run, args, spent_before)
    if page is not None:
        _link(clients, job, run, args, page)  # Before waiting for a lease: its owner may be dead.
    try:
        with clients.heart.heartbeat(attempt.lease.beat, job.lease_s / BEATS_PER_LEASE):
            attempt.make(page)
    except LeasedError as leased:
        at = leased.expires_at
        _schedule(clients, job, args, at, "leased", at.isoformat())
        return
    close_from(clients, job, run, args.chain, args.number)


def _is_not_due(clients: Clients, job: Job[Any, Any], page: ContinuationPage) -> bool:
    if page.done or page.retry_at is None:
        return False  # A page without open items has only to be closed.
    now_utc = naive_utc(clients.clock.now())
    # A time beyond that is from a clock that was far ahead, and means nothing.
    longest = now_utc + datetime.timedelta(seconds=max(job.retry_delays_s) + CLOCK_SKEW_S)
    return now_utc < page.retry_at <= longest  # type: ignore[no-any-return]


def _schedule(
    clients: Clients,
    job: Job[Any, Any],
    args: PageArgs,
    at: datetime.datetime,
    reason: str,
    which: str | int,
) -> None:
    """Give a page a task for a time, one for each reason.

    Raises:
        Retry: the task exists, and this delivery may be it, come early.
    """
    wait_s = max(0.0, (at - naive_utc(clients.clock.now())).total_seconds())
    name = (*args.task_name, reason, which)
    is_new = page_task(job).enqueue(clients, args, name=name, delay_s=wait_s + CLOCK_SLACK_S)
    if not is_new and wait_s < EARLY_S[reason]:
        raise Retry(f"page {args.number} of run {args.run_id} has its turn in {wait_s:.1f} s")


def _link(
    clients: Clients,
    job: Job[Any, Any],
    run: ContinuationRun,
    args: PageArgs,
    page: ContinuationPage,
) -> None:
    if page.next is not None:
        follower = PageArgs(args.run_id, args.chain, args.number + 1, page.next)
        delay_s = _wait_s(clients, run, follower)
        page_task(job).enqueue(clients, follower, name=follower.task_name, delay_s=delay_s)


def _wait_s(clients: Clients, run: ContinuationRun, args: PageArgs) -> float:
    """Return how long a page that is linked now waits for its turn."""
    now_utc = naive_utc(clients.clock.now())
    turn = turn_of(run, args.chain, args.number, now_utc)
    return max(0.0, (turn - now_utc).total_seconds()) if turn is not None else 0.0


@dataclass
class _PageAttempt:
    """One attempt at one page: its lease, and its receipts that are not committed yet."""

    clients: Clients
    job: Job[Any, Any]
    run: ContinuationRun
    args: PageArgs
    priced: Cost  # What this thread had spent up to the last commit, or before this attempt.
    receipts: dict[int, Receipt] = field(default_factory=dict)
    doubts: int = 0
    commits: int = 0

    def __post_init__(self) -> None:
        self.key = page_key(self.args.run_id, self.args.chain, self.args.number)
        self.lease = PageLease(self.clients, self.job, self.run, self.key)
        self.source = self.job.source_of(self.run)
        self.job_args = self.job.load(self.run.args)
        self.committed = self.looked = self.clients.clock.now()

    def make(self, page: ContinuationPage | None) -> None:
        """Take the page, link the next one, and work on the open items.

        Raises:
            LeasedError: another attempt works on it.
            Retry: the lease was lost.
        """
        is_linked = page is not None
        page, items = self._take(page)
        if not is_linked:
            _link(self.clients, self.job, self.run, self.args, page)
        if not page.done:
            self._work(page, items)

    def _take(self, page: ContinuationPage | None) -> tuple[ContinuationPage, Sequence[Any]]:
        """Return the page, pinned and leased to this attempt, and its items.

        A page that is done already comes back without items.
        """
        items: Sequence[Any] | None = None
        draft = None
        if page is None:
            span = Span(self.args.after, self.run.spans[self.args.chain][1])
            read = read_page(self.source, span, self.run.page_size)
            draft, items = self._new_page(read), read.items
        page, is_draft = self.lease.take(draft)
        if page.done:
            return page, []
        if not is_draft or items is None:
            items = self._open_items(page)
        return page, items

    def _open_items(self, page: ContinuationPage) -> Sequence[Any]:
        """Return the open items of a page at their positions: no others are read again."""
        positions = page.open_positions()
        names = [page.items[position] for position in positions]
        items: list[Any] = [None] * len(page.items)
        for position, item in zip(positions, self.source.load(page.load_from, names), strict=True):
            items[position] = item
        return items

    def _new_page(self, read: Slice[Any]) -> ContinuationPage:
        return ContinuationPage(
            key=self.key,
            after=self.args.after,
            next=read.next,
            load_from=read.load_from,
            items=list(read.names),
            receipts=WAITING * len(read.names),
            done=not read.names,
            progressed_at=naive_utc(self.clients.clock.now()),
        )

    # Work

    def _work(self, page: ContinuationPage, items: Sequence[Any]) -> None:
        """Work on the open items; deferred items get a task for later."""
        try:
            if self.job.apply is not None:
                page = self._apply_all(page, items)
            elif self.job.check is not None:
                page = self._check_all(page, items, self.job.check)
            else:
                page = self._deliver_all(page, items)
        except Exception:
            # Keep the receipts there are and give the lease back; what broke matters more.
            with contextlib.suppress(Exception):
                self._commit(CommitKind.BROKEN_OFF)
            raise
        if not page.done and page.retry_at is not None:
            _schedule(self.clients, self.job, self.args, page.retry_at, "again", page.attempts)

    def _apply_all(self, page: ContinuationPage, items: Sequence[Any]) -> ContinuationPage:
        """Apply all items in one commit; bisect them when one of them breaks it."""
        groups = [page.open_positions()]
        while groups:
            if self._is_cancelled():
                return self._commit(CommitKind.BROKEN_OFF)
            group = groups.pop(0)
            kind = CommitKind.INTERIM if groups else CommitKind.LAST
            try:
                page = self._commit(kind, [(position, items[position]) for position in group])
            except PASSED_ON:
                raise
            except APP_ERRORS as error:
                if not group:
                    raise
                log.exception("job %s could not apply %d items", self.job.name, len(group))
                if len(group) > 1:
                    half = len(group) // 2
                    groups[:0] = [group[:half], group[half:]]
                    continue
                self.receipts[group[0]] = receipt_of(unexpected(error))
                page = self._commit(kind)
            if page.owner is None:
                break
        return page

    def _check_all(
        self, page: ContinuationPage, items: Sequence[Any], check: ApplyFunction[Any, Any]
    ) -> ContinuationPage:
        """Look at all items at once; only the receipts are committed."""
        if self._is_cancelled():
            return self._commit(CommitKind.BROKEN_OFF)
        group = [(position, items[position]) for position in page.open_positions()]
        self.receipts.update(self._answers(group, check))
        return self._commit(CommitKind.LAST)

    def _deliver_all(self, page: ContinuationPage, items: Sequence[Any]) -> ContinuationPage:
        if self.job.side_effect is None:
            raise TypeError(f"job {self.job.name} has none of `side_effect`, `apply` and `check`")
        with self.job.side_effect(self.clients, self.job_args) as deliver:
            for position in page.open_positions():
                if self._is_cancelled():
                    return self._commit(CommitKind.BROKEN_OFF)
                self._check_lease()
                self._deliver_one(deliver, position, items[position])
                if self._is_time_to_commit():
                    page = self._commit()
                    if page.owner is None:
                        return page  # Cancelled.
            # Before the line is closed: that may take long.
            return self._commit(CommitKind.LAST)

    def _deliver_one(self, deliver: Callable[[Any], object], position: int, item: Any) -> None:
        """Deliver one item and note what became of it.

        An item that ends in an error of another kind than ItemError is in doubt: it may have
        been delivered all the same, and it will be delivered again.
        """
        error: ItemError | None = None
        try:
            if item is None:
                error = gone()
            else:
                run_app(deliver, item)
        except ItemError as item_error:
            error = item_error
        except PASSED_ON:
            self.doubts += 1
            raise
        except APP_ERRORS as raised:
            log.exception("an item of job %s could not be delivered", self.job.name)
            self.doubts += 1
            error = unexpected(raised)
        self.receipts[position] = receipt_of(error)

    def _check_lease(self) -> None:
        """Stop an attempt that was delayed until another may have begun."""
        now_utc = naive_utc(self.clients.clock.now())
        if now_utc >= self.lease.deadline:
            raise Retry(f"page {self.key.id()} takes longer than an attempt may")
        # A commit renews the lease, unless another attempt has taken it, or the run was cancelled.
        if not self.lease.is_owned(now_utc) and self._commit().owner is None:
            raise Retry(f"run {self.args.run_id} was cancelled")

    def _is_time_to_commit(self) -> bool:
        waited_s = (self.clients.clock.now() - self.committed).total_seconds()
        return len(self.receipts) >= MAX_UNRECEIPTED or waited_s >= UNRECEIPTED_S

    def _is_cancelled(self) -> bool:
        """Look, once a second, whether the run is running; not in a transaction.

        There every page of the run would read this one row, and one emulator lets such
        transactions fail each other.
        """
        now_utc = self.clients.clock.now()
        if (now_utc - self.looked).total_seconds() >= LOOK_S:
            self.looked = now_utc
            self.run = self.run.key.get() or self.run
        return self.run.state != RUNNING  # type: ignore[no-any-return]

    # Commit

    def _commit(
        self,
        kind: CommitKind = CommitKind.INTERIM,
        applied: Sequence[tuple[int, Any]] = (),
    ) -> ContinuationPage:
        """Commit the receipts, and the effects of `applied`, to the page's row.

        Returns the page. Its lease is renewed or given back as `kind` says; given back, too, when
        the run was cancelled meanwhile or no item is open any more: then `owner` is None.
        """
        self.commits += 1
        proof = f"{self.lease.owner}:{self.commits}"
        is_last = kind is CommitKind.LAST
        is_over = kind is not CommitKind.INTERIM or self._is_cancelled()
        # Read before the transaction, so that it locks no other page, and so perhaps stale. A
        # closed page stays closed, so True holds. False may have become wrong; then `close_from`,
        # which looks again after this commit, closes the page with a commit of its own.
        can_close = is_last and is_closed(self.args.run_id, self.args.chain, self.args.number - 1)

        def change(page: ContinuationPage | None) -> ContinuationPage:
            if page is not None and page.committed_by == proof:
                return page  # Made before; its reply was lost.
            if page is None or page.owner != self.lease.owner:
                raise Retry(f"page {self.key.id()} was taken over")
            receipts = self._found_in(page, applied)
            if receipts and self._was_quick():
                page.takeovers = 0
            self.lease.renew(page)
            if receipts:
                page.progressed_at = page.updated_at
            record(page, self.job, receipts, is_last=is_last)
            page.committed_by = proof
            page.in_doubt += self.doubts
            page.closed = page.done and can_close
            self.lease.finish(page, is_over=is_over)
            page.cost = (Cost.of(page.cost) + self._usage(page)).as_dict()
            return page

        page = self.lease.commit(change, is_alone=not applied)
        self.receipts.clear()
        self.doubts = 0
        self.priced = self.clients.meter.cost()
        self.committed = self.clients.clock.now()
        return page

    def _found_in(
        self, page: ContinuationPage, applied: Sequence[tuple[int, Any]]
    ) -> dict[int, Receipt]:
        """Apply the job to a group, inside the transaction; return all that is to be recorded.

        Only items that are open in the page that the transaction reads are applied and recorded: a
        commit that was made although it seemed to fail leaves nothing to do again.
        """
        still_open = set(page.open_positions())
        receipts = self._applied([pair for pair in applied if pair[0] in still_open])
        return receipts | {i: own for i, own in self.receipts.items() if i in still_open}

    def _applied(self, group: Sequence[tuple[int, Any]]) -> dict[int, Receipt]:
        return self._answers(group, self.job.apply) if self.job.apply is not None else {}

    def _answers(
        self, group: Sequence[tuple[int, Any]], ask: ApplyFunction[Any, Any]
    ) -> dict[int, Receipt]:
        present = [(position, item) for position, item in group if item is not None]
        errors: dict[int, ItemError | None] = {position: gone() for position, _ in group}
        if present:
            answers = run_app(ask, self.clients, self.job_args, [item for _, item in present])
            if answers is None:
                answers = [None] * len(present)
            errors.update(zip([position for position, _ in present], answers, strict=True))
        return {position: receipt_of(error) for position, error in errors.items()}

    def _was_quick(self) -> bool:
        """Return whether an undoubled lease is enough for the work since the last commit."""
        return (self.clients.clock.now() - self.committed).total_seconds() < self.job.lease_s

    def _usage(self, page: ContinuationPage) -> Cost:
        """Return the cost since the last commit, including the commit that stores it."""
        is_counted = self.run.has_slots and page.owner is None
        is_read = is_counted and is_in_transaction()
        # The page itself, perhaps a slot of the totals, which a transaction reads, and the commit.
        writes = pending_writes() + 1 + is_counted
        commit_cost = Cost(reads=int(is_read), writes=writes, round_trips=1 + is_read)
        return self.clients.meter.cost() - self.priced + commit_cost
