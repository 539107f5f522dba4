"""How far a run has come: totals, rate, cost, and the items that did not go well."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from models.continuations import (
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
from models.transactions import transact
from pipelines.continuations.errors import UnknownRunError
from pipelines.runtime.clock import naive_utc
from pipelines.runtime.rpc import Cost

OUTCOMES = {FAILED: "failed", SKIPPED: "skipped", RETRYING: "retrying"}

# What follows a page's last commit, at least: a look whether it is closed.
_CLOSING = Cost(reads=1, round_trips=1)


MAX_UNTIL_ENDED = 0.99
# A page that is worked on shows signs of life every 50 ms. One without any for so long is waited
# for until its lease ends, and then for its next delivery.
SILENT_S = 1.0
REDELIVERED_S = 3.0
# The rate of so long ago counts, once the run has lasted twice as long.
RECENT_S = 5.0


@dataclass(frozen=True)
class ItemIssue:
    """An item that was not simply done: "failed", "skipped" or "retrying", and why."""

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Totals:
    """What a run's pages add up to, in items unless the name says otherwise."""

    done: int
    skipped: int
    failed: int
    retrying: int
    waiting: int
    in_doubt: int
    pages: int
    cost: Cost

    @classmethod
    def of(cls, pages: Iterable[ContinuationPage], chains: int) -> Totals:
        """Add up pages, one at a time: there may be more than fit into memory."""
        letters: Counter[str] = Counter()
        cost = Cost(writes=1, tasks=chains)
        in_doubt = count = 0
        for page in pages:
            letters.update(page.receipts)
            cost += Cost.of(page.cost) + _CLOSING
            in_doubt += page.in_doubt
            count += 1
        return cls(
            done=letters[DONE],
            skipped=letters[SKIPPED],
            failed=letters[FAILED],
            retrying=letters[RETRYING],
            waiting=letters[WAITING],
            in_doubt=in_doubt,
            pages=count,
            cost=cost,
        )

    @classmethod
    def kept(cls, run: ContinuationRun) -> Totals:
        """Return the totals that an ended run keeps."""
        return cls(**{**run.totals, "cost": Cost.of(run.totals["cost"])})

    @property
    def ended(self) -> int:
        return self.done + self.skipped + self.failed

    @property
    def known(self) -> int:
        return self.ended + self.retrying + self.waiting


@dataclass(frozen=True)
class PageDots:
    """A page: its place in the run, the receipts of its items, and whether all have ended."""

    chain: int
    number: int
    letters: str
    done: bool


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        pages: In the order of chain and number; `dots` are their receipts.
        max_rate: Items a second at most, if the run has such a limit.
        recent_rate: Items a second of the pages that got on lately; None: it is too early to tell.
        held_s: Seconds until the last page goes on that waits for a lease or for its retry.
    """

    run_id: str
    state: str
    expected: int
    totals: Totals
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

    @property
    def waiting(self) -> int:
        """Items whose turn has not come, those of pages not read yet included."""
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
        """Seconds to go, at the lower of its rates and not before its last page goes on.

        None when that cannot be told.
        """
        if self.state != RUNNING or not self.rate:
            return None
        rates = [self.rate, self.recent_rate or self.rate, self.max_rate or self.rate]
        return max((self.expected - self.totals.ended) / min(rates), self.held_s)


def progress(run_id: str, *, now: datetime.datetime | None = None, dots: bool = True) -> Progress:
    """Return how far a run has come, from its pages; an ended run keeps its totals.

    Args:
        now: Until when to count the time of a run that goes on.
        dots: Also return each page's receipts, for which its pages must be read. A run that
            finished 30 days ago has no pages any more.

    Raises:
        UnknownRunError: there is no such run.
    """
    run = run_of(run_id)
    at = naive_utc(now) if now is not None else None
    seen = _Seen(run.started, at)

    def pages() -> Iterator[ContinuationPage]:
        for page in pages_of(run_id):
            seen.add(page)
            yield page

    if dots or not run.totals:
        totals = Totals.of(pages(), len(run.spans))
    if run.totals:
        totals = Totals.kept(run)
    is_over = run.state == FINISHED
    return Progress(
        run_id=run_id,
        state=run.state,
        expected=totals.known if is_over else max(totals.known, run.expected or 0),
        totals=totals,
        elapsed_s=max(0.0, (_end(run, seen.updated_at, at) - run.started).total_seconds()),
        dots=[page.letters for page in seen.pages],
        retry_of=run.retry_of,
        retried_by=run.retried_by,
        pages=seen.pages,
        chains=len(run.spans),
        started=run.started,
        max_rate=run.max_rate,
        recent_rate=seen.recent_rate(run.started),
        held_s=seen.held_s,
    )


@dataclass
class _Seen:
    """What else a walk over a run's pages finds."""

    updated_at: datetime.datetime
    now: datetime.datetime | None
    pages: list[PageDots] = field(default_factory=list)
    recent: int = 0
    held_s: float = 0.0

    def add(self, page: ContinuationPage) -> None:
        self.pages.append(PageDots(page.chain, page.number, page.receipts, page.done))
        self.updated_at = max(self.updated_at, page.updated_at)
        if self.now is None:
            return
        if (self.now - page.progressed_at).total_seconds() < RECENT_S:
            self.recent += len(page.receipts) - len(page.open_positions())
        if not page.done:
            self.held_s = max(self.held_s, self._held_s(page, self.now))

    def _held_s(self, page: ContinuationPage, now: datetime.datetime) -> float:
        """Return how long an open page stands still from now on, at least."""
        if page.retry_at is not None and page.retry_at > now:
            return (page.retry_at - now).total_seconds()  # type: ignore[no-any-return]
        if (now - page.updated_at).total_seconds() < SILENT_S:
            return 0.0
        expires_at = page.lease_expires_at or now
        return max(0.0, (expires_at - now).total_seconds()) + REDELIVERED_S

    def recent_rate(self, started: datetime.datetime) -> float | None:
        if self.now is None or (self.now - started).total_seconds() < 2 * RECENT_S:
            return None
        return self.recent / RECENT_S


def _end(
    run: ContinuationRun, updated_at: datetime.datetime, now: datetime.datetime | None
) -> datetime.datetime:
    """Return until when a run's time counts; one that was cancelled stands still."""
    if run.ended is not None:
        return run.ended  # type: ignore[no-any-return]
    return now if now is not None and run.state == RUNNING else updated_at


def keep_totals(run_id: str) -> None:
    """Store the totals of a run that has finished: its pages change no more."""
    totals = asdict(Totals.of(pages_of(run_id), len(run_of(run_id).spans)))

    def keep() -> None:
        run = run_of(run_id)
        if run.untold or run.totals != totals:
            run.totals, run.untold = totals, False
            run.pages_until = run.ended + PAGES_KEPT_FOR
            run.put()

    transact(keep)


def item_issues(run_id: str, *, limit: int = 1000) -> list[ItemIssue]:
    """Return the items of a run that were skipped, refused or deferred, in order."""
    return list(itertools.islice(issues_of(pages_of(run_id)), limit))


def issues_of(pages: Iterable[ContinuationPage]) -> Iterator[ItemIssue]:
    """Yield the same of some pages."""
    for page in pages:
        for position in sorted(map(int, page.reasons)):
            outcome = OUTCOMES[page.receipts[position]]
            yield ItemIssue(page.items[position], outcome, page.reasons[str(position)])


def run_of(run_id: str) -> ContinuationRun:
    """Return the row of a run.

    Raises:
        UnknownRunError: there is no such run.
    """
    run = run_key(run_id).get()
    if run is None:
        raise UnknownRunError(run_id)
    return run  # type: ignore[no-any-return]
