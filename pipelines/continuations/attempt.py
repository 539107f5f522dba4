"""One attempt at one page: pin, link, work, close. What and why: the package's docstring."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from google.cloud import ndb
from pydantic import Field

from models.continuations import (
    DONE,
    FAILED,
    FINISHED,
    RETRYING,
    RUNNING,
    SKIPPED,
    WAITING,
    ContinuationHeartbeat,
    ContinuationPage,
    ContinuationRun,
    heartbeat_key,
    page_key,
    run_key,
)
from models.transactions import TRANSIENT, pending_writes, transact
from pipelines.continuations.jobs import (
    Apply,
    DeferredItemError,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from pipelines.continuations.progress import keep_totals
from pipelines.continuations.sources import Slice, Span
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import CLOCK_SKEW_S, naive_utc
from pipelines.runtime.rpc import Cost
from pipelines.tasks.declaration import Task
from pipelines.tasks.errors import Reject, Retry, Unavailable

log = logging.getLogger(__name__)

# How much work may be done before its receipts are committed: what a crash can repeat.
MAX_UNRECEIPTED = 10
UNRECEIPTED_S = 0.05
# How often an attempt looks whether its run was cancelled.
LOOK_S = 1.0
# The queue's clock may be ahead of ours by so much.
CLOCK_SLACK_S = 1.0
# A task that was created for a time may come so much early, by a clock that is behind: when an
# item was deferred, and for the end of a lease. Beyond that the sweep helps.
EARLY_S = {"again": 30.0, "leased": 3.0}
# Of a lease there are this many heartbeats, so that one may fail.
BEATS_PER_LEASE = 3
BEAT_TIMEOUT_S = 2.0
MAX_DOUBLINGS = 10


@dataclass(frozen=True)
class PageArgs:
    """Which page a task is for, and where that page starts."""

    run_id: Annotated[str, Field(min_length=1, max_length=500)]
    chain: Annotated[int, Field(ge=0, lt=10**4)]
    number: Annotated[int, Field(ge=0, lt=10**8)]
    after: str

    @property
    def task_name(self) -> tuple[str, int, int]:
        """What makes the page's task unique: two runs never block each other."""
        return (self.run_id, self.chain, self.number)


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
        _finish(clients, job, run)  # Who ended the run did not get that far.
    if run.state != RUNNING:
        return
    if page is not None and _is_too_early(clients, job, page):
        _come_again(clients, job, args, page.retry_at, "again", page.attempts)
        return
    attempt = _Attempt(clients, job, run, args, spent_before)
    if page is not None:
        _link(clients, job, args, page)  # Before waiting for a lease: its owner may be dead.
    try:
        with clients.heart.beating(attempt.beat, job.lease_s / BEATS_PER_LEASE):
            attempt.make(page)
    except LeasedError as leased:
        _come_again(clients, job, args, leased.ends, "leased", leased.ends.isoformat())
        return
    _close(clients, job, run, args)


def _is_too_early(clients: Clients, job: Job[Any, Any], page: ContinuationPage) -> bool:
    if page.worked or page.retry_at is None:
        return False  # A page without open items has only to be closed.
    now = naive_utc(clients.clock.now())
    # A time beyond that is from a clock that was far ahead, and means nothing.
    longest = now + datetime.timedelta(seconds=max(job.retry_delays_s) + CLOCK_SKEW_S)
    return now < page.retry_at <= longest  # type: ignore[no-any-return]


def _come_again(
    clients: Clients,
    job: Job[Any, Any],
    args: PageArgs,
    at: datetime.datetime,
    why: str,
    which: str | int,
) -> None:
    """See to it that a page has a task for a time, one for each reason, and end this one.

    Raises:
        Wait: there is such a task, and this delivery may be it, come early: it comes once more.
    """
    wait_s = max(0.0, (at - naive_utc(clients.clock.now())).total_seconds())
    name = (*args.task_name, why, which)
    is_new = page_task(job).enqueue(clients, args, name=name, delay_s=wait_s + CLOCK_SLACK_S)
    if not is_new and wait_s < EARLY_S[why]:
        raise Retry(f"page {args.number} of run {args.run_id} has its turn in {wait_s:.1f} s")


def _link(clients: Clients, job: Job[Any, Any], args: PageArgs, page: ContinuationPage) -> None:
    if page.next is not None:
        follower = PageArgs(args.run_id, args.chain, args.number + 1, page.next)
        page_task(job).enqueue(clients, follower, name=follower.task_name)


class LeasedError(Retry):
    """Another attempt works on the page, and has shown that it is alive."""

    def __init__(self, page: str, ends: datetime.datetime) -> None:
        super().__init__(f"page {page} is being worked on")
        self.ends = ends


@dataclass
class _Attempt:
    """One attempt at one page: what it owns, and what it has found out but not committed."""

    clients: Clients
    job: Job[Any, Any]
    run: ContinuationRun
    args: PageArgs
    priced: Cost  # What this thread had spent up to the last commit, or before this attempt.
    found: dict[int, tuple[str, str]] = field(default_factory=dict)
    doubts: int = 0
    commits: int = 0

    def __post_init__(self) -> None:
        self.owner = self.clients.new_id()
        self.key = page_key(self.args.run_id, self.args.chain, self.args.number)
        self.source = self.job.source_of(self.run)
        self.job_args = self.job.load(self.run.args)
        self.committed = self.looked = self.clients.clock.now()
        self.ends = naive_utc(self.committed) + datetime.timedelta(seconds=self.job.deadline_s)
        self.lease_s = self.job.lease_s
        self.lease_expires_at: datetime.datetime | None = None  # By the last commit.
        self.kept_to = naive_utc(self.committed)  # By the last heartbeat.

    def make(self, page: ContinuationPage | None) -> None:
        """Take the page, link the next one, and work on what is open.

        Raises:
            LeasedError: another attempt works on it.
            Wait: the lease was lost.
        """
        is_linked = page is not None
        page, items = self._take(page)
        if not is_linked:
            _link(self.clients, self.job, self.args, page)
        if not page.worked:
            self._work(page, items)

    # Pin and lease

    def _take(self, page: ContinuationPage | None) -> tuple[ContinuationPage, Sequence[Any]]:
        """Return the page, pinned and leased to this attempt, and its items.

        A page that is worked already comes back without items.
        """
        items: Sequence[Any] | None = None
        draft = None
        if page is None:
            span = Span(self.args.after, self.run.spans[self.args.chain][1])
            read = self.source.read(span, self.run.page_size)
            draft, items = self._draft(read), read.items
        taken, is_draft = transact(lambda: self._lease(draft))
        self.lease_expires_at = taken.lease_expires_at
        if taken.worked:
            return taken, []
        if not is_draft or items is None:
            items = self.source.load(taken.origin, taken.items)
        return taken, items

    def _draft(self, read: Slice[Any]) -> ContinuationPage:
        return ContinuationPage(
            key=self.key,
            after=self.args.after,
            next=read.next,
            origin=read.origin,
            items=list(read.names),
            receipts=WAITING * len(read.names),
            worked=not read.names,
            moved=naive_utc(self.clients.clock.now()),
        )

    def _lease(self, draft: ContinuationPage | None) -> tuple[ContinuationPage, bool]:
        """Take the page's lease, in a transaction; a draft is used when there is no row."""
        page = self.key.get()
        is_draft = page is None
        if page is None:
            if draft is None:
                raise Retry(f"page {self.key.id()} has gone")
            page = draft
        if page.worked and not is_draft:
            return page, False
        self._check_free(page)
        self._touch(page)
        page.put()
        return page, is_draft

    def _check_free(self, page: ContinuationPage) -> None:
        """Make sure that nobody works on a page, or take it over from who has gone silent."""
        if page.owner in (None, self.owner):
            return
        if self._is_alive(page, page.lease_expires_at):
            raise LeasedError(self.key.id(), page.lease_expires_at)
        sign = heartbeat_key(self.key.id(), page.owner).get()
        if sign is not None and self._is_alive(page, sign.ends):
            raise LeasedError(self.key.id(), sign.ends)
        page.takeovers += 1
        if self.job.side_effect is not None:
            # Its owner died without a word: what it did last may have no receipt.
            page.in_doubt += min(MAX_UNRECEIPTED, len(page.open_positions()))

    def _is_alive(self, page: ContinuationPage, ends: datetime.datetime | None) -> bool:
        now = naive_utc(self.clients.clock.now())
        # A lease beyond that is from a clock that was far ahead, and means nothing.
        longest = now + datetime.timedelta(seconds=self._length_s(page) + CLOCK_SKEW_S)
        return ends is not None and now < ends <= longest

    def _length_s(self, page: ContinuationPage) -> float:
        """Return how long the lease of a page is.

        Where heartbeats cannot come through, work that lasts would be taken over again and again:
        each time the next one gets twice as long.
        """
        doubled_s: float = self.job.lease_s * 2 ** min(page.takeovers, MAX_DOUBLINGS)
        return max(self.job.lease_s, min(doubled_s, self.job.deadline_s))

    def _touch(self, page: ContinuationPage) -> None:
        now = naive_utc(self.clients.clock.now())
        self.lease_s = self._length_s(page)
        page.owner = self.owner
        page.touched = now
        page.lease_expires_at = now + datetime.timedelta(seconds=self.lease_s)

    def beat(self) -> None:
        """Keep the lease of work that lasts; on the heart's thread.

        A lease that has run out is not kept: a commit, which sees who has it, may renew it.
        """
        now = naive_utc(self.clients.clock.now())
        if not self._has_lease(now) or now >= self.ends:
            return
        ends = now + datetime.timedelta(seconds=self.lease_s)
        with self.clients.context():
            key = heartbeat_key(self.key.id(), self.owner)
            ContinuationHeartbeat(key=key, ends=ends).put(timeout=BEAT_TIMEOUT_S)
        self.kept_to = ends

    def _has_lease(self, now: datetime.datetime) -> bool:
        ends = self.lease_expires_at
        return ends is not None and now < max(ends, self.kept_to)

    # Work

    def _work(self, page: ContinuationPage, items: Sequence[Any]) -> None:
        """Work on what is open; deferred items get a task for later."""
        try:
            if self.job.apply is not None:
                page = self._apply_all(page, items)
            elif self.job.check is not None:
                page = self._check_all(page, items, self.job.check)
            else:
                page = self._deliver_all(page, items)
        except Exception:
            self._commit_quietly()
            raise
        if not page.worked and page.retry_at is not None:
            _come_again(self.clients, self.job, self.args, page.retry_at, "again", page.attempts)

    def _deliver_all(self, page: ContinuationPage, items: Sequence[Any]) -> ContinuationPage:
        if self.job.side_effect is None:
            raise TypeError(f"job {self.job.name} has none of `side_effect`, `apply` and `check`")
        with self.job.side_effect(self.clients, self.job_args) as deliver:
            for position in page.open_positions():
                if self._is_cancelled():
                    return self._commit(is_broken=True)
                self._check_lease()
                self._deliver_one(deliver, position, items[position])
                if self._is_time_to_commit():
                    page = self._commit()
                    if page.owner is None:
                        return page  # Cancelled.
            return self._commit(is_last=True)  # Before the line is closed: that may take long.

    def _check_all(
        self, page: ContinuationPage, items: Sequence[Any], check: Apply[Any, Any]
    ) -> ContinuationPage:
        """Look at all items at once; only what was found is committed."""
        if self._is_cancelled():
            return self._commit(is_broken=True)
        group = [(position, items[position]) for position in page.open_positions()]
        self.found.update(self._answers(group, check))
        return self._commit(is_last=True)

    def _check_lease(self) -> None:
        """Stop an attempt that was held up for so long that another may have begun."""
        now = naive_utc(self.clients.clock.now())
        if now >= self.ends:
            raise Retry(f"page {self.key.id()} takes longer than an attempt may")
        # A commit renews the lease, unless another attempt has taken it, or the run was cancelled.
        if not self._has_lease(now) and self._commit().owner is None:
            raise Retry(f"run {self.args.run_id} was cancelled")

    def _apply_all(self, page: ContinuationPage, items: Sequence[Any]) -> ContinuationPage:
        """Apply all items in one commit; when an item breaks that, find it by halving."""
        groups = [page.open_positions()]
        while groups:
            if self._is_cancelled():
                return self._commit(is_broken=True)
            group = groups.pop(0)
            try:
                page = self._commit(
                    [(position, items[position]) for position in group], is_last=not groups
                )
            except _PASSED_ON:
                raise
            except Exception as error:
                if not group:
                    raise
                log.exception("job %s could not apply %d items", self.job.name, len(group))
                if len(group) == 1:
                    self.found[group[0]] = _receipt(_unexpected(error))
                    page = self._commit(is_last=not groups)
                else:
                    half = len(group) // 2
                    groups[:0] = [group[:half], group[half:]]
            if page.owner is None:
                break
        return page

    def _deliver_one(self, deliver: Callable[[Any], None], position: int, item: Any) -> None:
        """Deliver one item and note what became of it.

        An item that ends in an error of another kind than ItemError is in doubt: it may have
        been delivered all the same, and it will be delivered again.
        """
        error: ItemError | None = None
        try:
            if item is None:
                error = _gone()
            else:
                deliver(item)
        except ItemError as item_error:
            error = item_error
        except _PASSED_ON:
            self.doubts += 1
            raise
        except Exception as unexpected:
            log.exception("an item of job %s could not be delivered", self.job.name)
            self.doubts += 1
            error = _unexpected(unexpected)
        self.found[position] = _receipt(error)

    def _is_time_to_commit(self) -> bool:
        waited_s = (self.clients.clock.now() - self.committed).total_seconds()
        return len(self.found) >= MAX_UNRECEIPTED or waited_s >= UNRECEIPTED_S

    def _commit_quietly(self) -> None:
        """Keep the receipts there are and give the lease back; what broke matters more."""
        with contextlib.suppress(Exception):
            self._commit(is_broken=True)

    def _commit(
        self,
        applied: Sequence[tuple[int, Any]] = (),
        *,
        is_last: bool = False,
        is_broken: bool = False,
    ) -> ContinuationPage:
        """Commit what was found out, and the effects of `applied`, to the page's row.

        The lease is renewed, or given back when this is the attempt's last commit, when it
        is broken off, or when the run was cancelled meanwhile: then `owner` is None.

        Only items that are open in the page that the transaction reads are applied and recorded: a
        commit that was made although it seemed to fail leaves nothing to do again.
        """
        self.commits += 1
        proof = f"{self.owner}:{self.commits}"
        is_over = is_last or is_broken or self._is_cancelled()
        can_close = is_last and _is_closed(self.args.run_id, self.args.chain, self.args.number - 1)

        def body() -> ContinuationPage:
            page = self.key.get()
            if page is not None and page.committed_by == proof:
                return page  # type: ignore[no-any-return]  # Made before; its reply was lost.
            if page is None or page.owner != self.owner:
                raise Retry(f"page {self.key.id()} was taken over")
            there = set(page.open_positions())
            found = self._applied([each for each in applied if each[0] in there])
            found.update({i: what for i, what in self.found.items() if i in there})
            if found and self._was_quick():
                page.takeovers = 0
            self._touch(page)
            if found:
                page.moved = page.touched
            self._record(page, found, is_last=is_last)
            page.committed_by = proof
            page.in_doubt += self.doubts
            page.cost = (Cost(**page.cost) + self._spent()).as_dict()
            page.closed = page.worked and can_close
            if is_over or page.worked:
                page.owner = None
                page.lease_expires_at = None
            page.put()
            return page  # type: ignore[no-any-return]

        page = transact(body)
        self.lease_expires_at = page.lease_expires_at
        self.found.clear()
        self.doubts = 0
        self.priced = self.clients.meter.cost()
        self.committed = self.clients.clock.now()
        return page

    def _was_quick(self) -> bool:
        """Return whether an undoubled lease is enough for what was done since the last commit."""
        return (self.clients.clock.now() - self.committed).total_seconds() < self.job.lease_s

    def _spent(self) -> Cost:
        """Return what was spent since the last commit, in the one at hand, which it is part of."""
        rest = Cost(writes=pending_writes() + 1, round_trips=1)  # The page itself, and the commit.
        return self.clients.meter.cost() - self.priced + rest

    def _is_cancelled(self) -> bool:
        """Look, once a second, whether the run goes on; not in a transaction.

        There every page of the run would read this one row, and one emulator lets such
        transactions fail each other.
        """
        now = self.clients.clock.now()
        if (now - self.looked).total_seconds() >= LOOK_S:
            self.looked = now
            self.run = self.run.key.get() or self.run
        return self.run.state != RUNNING  # type: ignore[no-any-return]

    def _applied(self, group: Sequence[tuple[int, Any]]) -> dict[int, tuple[str, str]]:
        """Apply the job to a group, inside the transaction; return what became of each."""
        return self._answers(group, self.job.apply) if self.job.apply is not None else {}

    def _answers(
        self, group: Sequence[tuple[int, Any]], ask: Apply[Any, Any]
    ) -> dict[int, tuple[str, str]]:
        there = [(position, item) for position, item in group if item is not None]
        errors: dict[int, ItemError | None] = {position: _gone() for position, _ in group}
        if there:
            answers = ask(self.clients, self.job_args, [item for _, item in there])
            errors.update(zip([position for position, _ in there], answers, strict=True))
        return {position: _receipt(error) for position, error in errors.items()}

    def _record(
        self, page: ContinuationPage, found: Mapping[int, tuple[str, str]], *, is_last: bool
    ) -> None:
        receipts = list(page.receipts)
        reasons = dict(page.reasons)
        for position, (letter, reason) in found.items():
            receipts[position] = letter
            reasons.pop(str(position), None)
            if reason:
                reasons[str(position)] = reason
        if is_last and RETRYING in receipts:
            page.attempts += 1
            delays_s = self.job.retry_delays_s
            delay_s = delays_s[min(page.attempts, len(delays_s)) - 1]
            page.retry_at = page.touched + datetime.timedelta(seconds=delay_s)
            if page.attempts >= self.job.max_attempts:
                receipts = [FAILED if letter == RETRYING else letter for letter in receipts]
        page.receipts = "".join(receipts)
        page.reasons = reasons
        page.worked = not page.open_positions()


# Not this item's fault: the whole attempt ends with them. Other errors of Datastore, such as
# an entity that is too large, are the item's, and nothing was written.
_PASSED_ON = (Retry, Unavailable, Reject, *TRANSIENT)


def _unexpected(error: Exception) -> ItemError:
    return DeferredItemError(f"{type(error).__name__}: {error}")


def _gone() -> ItemError:
    return SkippedItemError("gone before its turn")


def _receipt(error: ItemError | None) -> tuple[str, str]:
    """Return an item's letter, and the reason when there is one."""
    reason = str(error or "")
    # A page of 500 reasons must fit into its row, where JSON writes other letters six times as
    # long.
    return _letter(error), reason[:300] if reason.isascii() else reason[:100]


def _letter(error: ItemError | None) -> str:
    match error:
        case None:
            return DONE
        case SkippedItemError():
            return SKIPPED
        case RefusedItemError():
            return FAILED
        case _:
            return RETRYING


def _close(clients: Clients, job: Job[Any, Any], run: ContinuationRun, args: PageArgs) -> None:
    """Close this page if all before it are closed, then those behind it that wait for it."""
    run_id, chain, number = args.run_id, args.chain, args.number
    while page := _close_one(run_id, chain, number):
        if page.next is None:
            if transact(lambda: _end_chain(clients, run_id, chain)):
                _finish(clients, job, run)
            return
        number += 1


def _finish(clients: Clients, job: Job[Any, Any], run: ContinuationRun) -> None:
    """Tell the job, then keep the totals: as long as there are none, it has not been told."""
    if job.on_finished is not None:
        job.on_finished(clients, job.load(run.args))
    keep_totals(run.key.id())


def _close_one(run_id: str, chain: int, number: int) -> ContinuationPage | None:
    """Close a page if it is its turn; return it if it is closed.

    Two attempts may care for one page: the one that worked on it, and the one that closed
    the page before. Each commits its own flag first and looks at the other's afterwards, so
    at least one of them sees both. Flags never go back, so no transaction spans two rows.
    """
    page = page_key(run_id, chain, number).get()
    if page is None or not page.worked:
        return None
    if page.closed:
        return page  # type: ignore[no-any-return]
    if not _is_closed(run_id, chain, number - 1):
        return None

    def close() -> ContinuationPage:
        page = page_key(run_id, chain, number).get()
        page.closed = True
        page.put()
        return page  # type: ignore[no-any-return]

    return transact(close)


def _is_closed(run_id: str, chain: int, number: int) -> bool:
    """Return whether a page is closed; before the first one all are."""
    if number < 0:
        return True
    page = page_key(run_id, chain, number).get()
    return page is not None and page.closed


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
