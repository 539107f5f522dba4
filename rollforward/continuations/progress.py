"""Progress of a run: totals, rate, cost, and the items that failed or were skipped."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from rollforward.continuations.entities import (
    DONE,
    FAILED,
    FINISHED,
    PAGES_KEPT_FOR,
    RETRYING,
    RUNNING,
    SKIPPED,
    WAITING,
    ContinuationPage,
    ContinuationRun,
    pages_of,
    run_key,
)
from rollforward.continuations.errors import UnknownRunError
from rollforward.continuations.pages.seen_pages import (
    ItemIssue,
    PageDots,
    SeenPage,
    SeenRun,
    issues_of,
    seen_run,
)
from rollforward.continuations.pages.totals import RECENT_S, PageSums, slot_totals
from rollforward.datastore.transactions import transact
from rollforward.runtime.channel.rpc import Cost
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.texts import has_unpaired_surrogate

__all__ = [
    "ItemIssue",
    "PageDots",
    "RunProgress",
    "RunTotals",
    "item_issues",
    "progress",
    "run_of",
    "store_totals",
]

MAX_UNTIL_ENDED = 0.99
# A page that is worked on shows signs of life every 50 ms. One without any for so long is waited
# for until its lease ends, and then for its next delivery.
SILENT_S = 1.0
REDELIVERED_S = 3.0


@dataclass(frozen=True)
class RunTotals:
    """Totals of a run's pages, in items unless the name says otherwise."""

    done: int
    skipped: int
    failed: int
    retrying: int
    waiting: int
    in_doubt: int
    pages: int
    cost: Cost

    @classmethod
    def of(cls, pages: Iterable[ContinuationPage], chains: int) -> RunTotals:
        """Add up pages, one at a time: there may be more than fit into memory."""
        sums = PageSums()
        for page in pages:
            sums.add(page.receipts, page.cost, page.in_doubt)
        return cls.of_sums(sums, chains)

    @classmethod
    def of_sums(cls, sums: PageSums, chains: int) -> RunTotals:
        """Return what pages add up to, and their run with its chains."""
        # What follows a page's last commit, at least: a look whether it is closed.
        closing = Cost(reads=sums.pages, round_trips=sums.pages)
        return cls(
            done=sums.letters[DONE],
            skipped=sums.letters[SKIPPED],
            failed=sums.letters[FAILED],
            retrying=sums.letters[RETRYING],
            waiting=sums.letters[WAITING],
            in_doubt=sums.in_doubt,
            pages=sums.pages,
            cost=Cost(writes=1, tasks=chains) + Cost.of(sums.cost) + closing,
        )

    @classmethod
    def kept(cls, run: ContinuationRun) -> RunTotals:
        """Return the totals that an ended run keeps."""
        return cls(**{**run.totals, "cost": Cost.of(run.totals["cost"])})

    @property
    def ended(self) -> int:
        """Items that are done, skipped or failed."""
        return self.done + self.skipped + self.failed

    @property
    def known(self) -> int:
        """All items that the run has met so far."""
        return self.ended + self.retrying + self.waiting


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        pages: In the order of chain and number; `dots` are their receipts.
        max_rate: Items a second at most, if the run has a limit.
        recent_rate: Items a second of the pages that got on lately; None: it is too early to tell.
            Without dots a page counts when its attempt ends, so long pages come in bursts.
        has_grown: Whether this call has read pages that the process will remember.
        held_s: Seconds until the last page continues that waits for a lease or for its retry.
        issues: The items of `pages` that were skipped, refused or deferred, in order.
        requested: Items that its start announced; `expected` follows what was found. None: unknown.
    """

    run_id: str
    state: str
    expected: int
    totals: RunTotals
    elapsed_s: float
    dots: Sequence[str]
    retry_of: str | None = None
    retried_by: str | None = None
    pages: Sequence[PageDots] = ()
    chains: int = 1
    started: datetime.datetime | None = None
    max_rate: float | None = None
    recent_rate: float | None = None
    held_s: float = 0.0
    issues: Sequence[ItemIssue] = ()
    requested: int | None = None
    has_grown: bool = field(default=False, compare=False)

    @property
    def is_partly_shown(self) -> bool:
        """Whether `pages` are some of its pages, and the next call returns more.

        False if the process has no memory left for further pages.
        """
        return self.has_grown and len(self.pages) < self.totals.pages

    @property
    def waiting(self) -> int:
        """Items whose turn has not come, including pages that are not read yet."""
        return self.expected - self.totals.ended - self.totals.retrying

    @property
    def share(self) -> float:
        """The part of the items that has ended, 0 to 1; 1 only when the run has.

        Before, there may be more items than pages have been read.
        """
        if self.state == FINISHED:
            return 1.0
        share = self.totals.ended / self.expected if self.expected else 0.0
        return min(share, MAX_UNTIL_ENDED)

    @property
    def rate(self) -> float:
        """Items a second, over the whole run so far."""
        return self.totals.ended / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to go, at the lower of its rates and not before its last page continues.

        None if that is unknown, as it is where its start has announced no items.
        """
        if self.state != RUNNING or not self.rate or self.requested is None:
            return None
        rates = [self.rate, self.recent_rate or self.rate, self.max_rate or self.rate]
        return max((self.expected - self.totals.ended) / min(rates), self.held_s)


def progress(
    run_id: str,
    *,
    now: datetime.datetime | None = None,
    dots: bool = True,
    clients: Clients | None = None,
) -> RunProgress:
    """Return how far a run has come: from the rows that keep its totals, and its pages.

    Args:
        now: Until when to count the time of a running run.
        dots: Also return each page's receipts, for which its pages must be read. A run that
            finished 30 days ago has no pages any more. Without dots, pages that are worked on
            count as far as their attempts before had come.
        clients: Clients of a process that caches pages, so that a repeated call costs only the
            changes, and each call a bounded number of reads: of a long run the first calls
            return some of the dots, and exact totals. None reads all pages.

    Raises:
        UnknownRunError: the run does not exist.
    """
    run = run_of(run_id)
    at = naive_utc(now) if now is not None else None
    seen = _seen(clients, run, dots=dots)
    totals = RunTotals.kept(run) if run.totals else RunTotals.of_sums(seen.sums, len(run.spans))
    is_over = run.state == FINISHED
    updated_at = max([run.started, *(page.updated_at for page in seen.pages)])
    if seen.slots is not None and seen.slots.updated_at is not None:
        updated_at = max(updated_at, seen.slots.updated_at)
    return RunProgress(
        run_id=run_id,
        state=run.state,
        expected=totals.known if is_over else max(totals.known, run.expected or 0),
        totals=totals,
        elapsed_s=max(0.0, (_end(run, updated_at, at) - run.started).total_seconds()),
        dots=[page.dots.letters for page in seen.pages],
        retry_of=run.retry_of,
        retried_by=run.retried_by,
        pages=[page.dots for page in seen.pages],
        chains=len(run.spans),
        started=run.started,
        max_rate=run.max_rate,
        recent_rate=_recent_rate(run, seen, at),
        held_s=max((_pause_s(page, at) for page in seen.pages if at is not None), default=0.0),
        issues=[issue for page in seen.pages for issue in page.issues],
        requested=run.expected,
        has_grown=seen.has_grown,
    )


def _seen(clients: Clients | None, run: ContinuationRun, *, dots: bool) -> SeenRun:
    if not dots and run.totals:
        return SeenRun()
    if not dots and run.has_slots:
        slots = slot_totals(run.key.id())
        return SeenRun(sums=slots.sums, slots=slots)
    return seen_run(clients, run)


def _recent_rate(
    run: ContinuationRun, seen: SeenRun, now_utc: datetime.datetime | None
) -> float | None:
    if now_utc is None or (now_utc - run.started).total_seconds() < 2 * RECENT_S:
        return None
    since = now_utc - datetime.timedelta(seconds=RECENT_S)
    if seen.slots is not None and not seen.pages:
        return seen.slots.ended_since(since) / RECENT_S
    recent = [page for page in seen.pages if page.progressed_at > since]
    return sum(len(page.dots.letters) - page.open_items for page in recent) / RECENT_S


def _pause_s(page: SeenPage, now_utc: datetime.datetime) -> float:
    """Return the minimum pause of a page from now on."""
    if page.dots.done:
        return 0.0
    if page.retry_at is not None and page.retry_at > now_utc:
        return (page.retry_at - now_utc).total_seconds()
    if (now_utc - page.updated_at).total_seconds() < SILENT_S:
        return 0.0
    expires_at = page.lease_expires_at or now_utc
    return max(0.0, (expires_at - now_utc).total_seconds()) + REDELIVERED_S


def _end(
    run: ContinuationRun, updated_at: datetime.datetime, now_utc: datetime.datetime | None
) -> datetime.datetime:
    """Return until when a run's time counts; a cancelled run has stopped."""
    if run.ended is not None:
        return run.ended  # type: ignore[no-any-return]
    return now_utc if now_utc is not None and run.state == RUNNING else updated_at


def store_totals(run_id: str) -> None:
    """Store the totals of a run that has finished: its pages change no more."""
    totals = asdict(RunTotals.of(pages_of(run_id), len(run_of(run_id).spans)))

    def keep() -> None:
        run = run_of(run_id)
        if run.untold or run.totals != totals:
            run.totals, run.untold = totals, False
            run.pages_until = run.ended + PAGES_KEPT_FOR
            run.put()

    transact(keep)


def item_issues(
    run_id: str, *, limit: int = 1000, clients: Clients | None = None
) -> list[ItemIssue]:
    """Return the items of a run that were skipped, refused or deferred, in order.

    Args:
        clients: Clients of the process that remembers pages; None reads all pages.
    """
    if clients is None or (run := run_key(run_id).get()) is None:
        issues = issues_of(pages_of(run_id))
    else:
        issues = (issue for page in seen_run(clients, run).pages for issue in page.issues)
    return list(itertools.islice(issues, limit))


def run_of(run_id: str) -> ContinuationRun:
    """Return the row of a run.

    Raises:
        UnknownRunError: the run does not exist.
    """
    run = None if has_unpaired_surrogate(run_id) else run_key(run_id).get()
    if run is None:
        raise UnknownRunError(run_id)
    return run  # type: ignore[no-any-return]
