"""How far a run has come: totals, rate, cost, and the items that did not go well."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from models.continuations import (
    DONE,
    FAILED,
    FINISHED,
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
from pipelines.clock import naive
from pipelines.rpc import Cost


class UnknownRunError(LookupError):
    """There is no run of this id."""


OUTCOMES = {FAILED: "failed", SKIPPED: "skipped", RETRYING: "retrying"}

# What follows a page's last commit, at least: a look whether it is closed.
_CLOSING = Cost(reads=1, round_trips=1)


@dataclass(frozen=True)
class Mishap:
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
    def of(cls, pages: Sequence[ContinuationPage], chains: int) -> Totals:
        """Add up pages."""
        letters = "".join(page.receipts for page in pages)
        cost = Cost(writes=1, tasks=chains)
        for page in pages:
            cost += Cost(**page.cost) + _CLOSING
        return cls(
            done=letters.count(DONE),
            skipped=letters.count(SKIPPED),
            failed=letters.count(FAILED),
            retrying=letters.count(RETRYING),
            waiting=letters.count(WAITING),
            in_doubt=sum(page.in_doubt for page in pages),
            pages=len(pages),
            cost=cost,
        )

    @property
    def ended(self) -> int:
        return self.done + self.skipped + self.failed

    @property
    def known(self) -> int:
        return self.ended + self.retrying + self.waiting


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    run_id: str
    state: str
    expected: int
    totals: Totals
    elapsed_s: float
    dots: Sequence[str]
    retry_of: str | None = None
    retried_by: str | None = None

    @property
    def waiting(self) -> int:
        """Items whose turn has not come, those of pages not read yet included."""
        return self.expected - self.totals.ended - self.totals.retrying

    @property
    def share(self) -> float:
        """The part of the items that has ended, 0 to 1."""
        return self.totals.ended / self.expected if self.expected else 1.0

    @property
    def rate(self) -> float:
        """Items a second, over the whole run so far."""
        return self.totals.ended / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to go at this rate; None when that cannot be told."""
        if self.state != RUNNING or not self.rate:
            return None
        return (self.expected - self.totals.ended) / self.rate


def progress(run_id: str, *, now: datetime.datetime | None = None, dots: bool = True) -> Progress:
    """Return how far a run has come, from its pages; an ended run keeps its totals.

    Args:
        now: Until when to count the time of a run that goes on.
        dots: Also return each page's receipts, for which its pages must be read.

    Raises:
        UnknownRunError: there is no such run.
    """
    run = run_of(run_id)
    pages: list[ContinuationPage] = []
    if run.totals and not dots:
        totals = Totals(**{**run.totals, "cost": Cost(**run.totals["cost"])})
    else:
        pages = list(pages_of(run_id))
        totals = Totals.of(pages, len(run.spans))
    is_over = run.state == FINISHED
    return Progress(
        run_id=run_id,
        state=run.state,
        expected=totals.known if is_over else max(totals.known, run.expected or 0),
        totals=totals,
        elapsed_s=max(0.0, (_end(run, pages, now) - run.started).total_seconds()),
        dots=[page.receipts for page in pages],
        retry_of=run.retry_of,
        retried_by=run.retried_by,
    )


def _end(
    run: ContinuationRun, pages: Sequence[ContinuationPage], now: datetime.datetime | None
) -> datetime.datetime:
    end: datetime.datetime
    if run.ended is not None:
        end = run.ended
    elif now is not None and run.state == RUNNING:
        end = naive(now)
    else:
        end = max([page.touched for page in pages], default=run.started)
    return end


def keep_totals(run_id: str) -> None:
    """Store the totals of a run that has finished: its pages change no more."""
    totals = asdict(Totals.of(list(pages_of(run_id)), len(run_of(run_id).spans)))

    def keep() -> None:
        run = run_of(run_id)
        if run.totals != totals:
            run.totals = totals
            run.put()

    transact(keep)


def mishaps(run_id: str, *, most: int = 1000) -> list[Mishap]:
    """Return the items of a run that were skipped, refused or deferred, in order."""
    listed: list[Mishap] = []
    for page in pages_of(run_id):
        for position in sorted(map(int, page.reasons)):
            outcome = OUTCOMES[page.receipts[position]]
            listed.append(Mishap(page.items[position], outcome, page.reasons[str(position)]))
            if len(listed) == most:
                return listed
    return listed


def run_of(run_id: str) -> ContinuationRun:
    """Return the row of a run.

    Raises:
        UnknownRunError: there is no such run.
    """
    run = run_key(run_id).get()
    if run is None:
        raise UnknownRunError(run_id)
    return run  # type: ignore[no-any-return]
