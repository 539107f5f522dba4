"""Pages of a run as its readers see them, and a cache of the finished ones.

A finished page never changes: no attempt takes it, and its closing sets a flag that readers do not
see. So a process reads it once, then reads only open pages and possible new ones after the last.
Repeated reads of a long run then cost as much as its changes.

Lost on failure: the cache, which is read again.
"""

from __future__ import annotations

import datetime
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import ndb

from rollforward.continuations.entities import (
    FAILED,
    RETRYING,
    SKIPPED,
    ContinuationPage,
    ContinuationRun,
    page_key,
    pages_of,
    pages_of_chain,
)
from rollforward.runtime.clients import Clients

OUTCOMES = {FAILED: "failed", SKIPPED: "skipped", RETRYING: "retrying"}
# Of a process. A page of a hundred items that all went well takes 1.3 KB.
MAX_REMEMBERED_BYTES = 16 * 1024**2
PAGE_BYTES, ISSUE_BYTES = 1_150, 200
# Behind the last page of a chain one asks for so many, then for twice as many, and so on; beyond
# the last number for all the rest at once.
LOOKED_AHEAD = (2, 4, 8, 16, 32)
# More open pages than this are not asked for by their keys.
MAX_LOOKED_UP = 300


@dataclass(frozen=True)
class ItemIssue:
    """An item that was not simply done: "failed", "skipped" or "retrying", and why."""

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class PageDots:
    """A page: its place in the run, the receipts of its items, and whether all have ended."""

    chain: int
    number: int
    letters: str
    done: bool


@dataclass(frozen=True, slots=True)
class SeenPage:
    """A page without its items, as it was when it was read."""

    dots: PageDots
    is_last: bool  # Of its chain.
    open_items: int
    in_doubt: int
    cost: Mapping[str, int]
    updated_at: datetime.datetime
    progressed_at: datetime.datetime
    retry_at: datetime.datetime | None
    lease_expires_at: datetime.datetime | None
    issues: Sequence[ItemIssue]

    @classmethod
    def of(cls, page: ContinuationPage) -> SeenPage:
        return cls(
            PageDots(page.chain, page.number, page.receipts, page.done),
            page.next is None,
            len(page.open_positions()),
            page.in_doubt,
            dict(page.cost),
            page.updated_at,
            page.progressed_at,
            page.retry_at,
            page.lease_expires_at,
            list(issues_of([page])),
        )

    @property
    def place(self) -> tuple[int, int]:
        return (self.dots.chain, self.dots.number)

    @property
    def weight(self) -> int:
        """About how many bytes it takes to remember."""
        texts = sum(ISSUE_BYTES + len(issue.name) + len(issue.reason) for issue in self.issues)
        return PAGE_BYTES + len(self.dots.letters) + texts


def issues_of(pages: Iterable[ContinuationPage]) -> Iterator[ItemIssue]:
    """Yield the items of some pages that were skipped, refused or deferred, in order."""
    for page in pages:
        for position in sorted(map(int, page.reasons)):
            outcome = OUTCOMES[page.receipts[position]]
            yield ItemIssue(page.items[position], outcome, page.reasons[str(position)])


@dataclass
class PageSums:
    """Totals of pages."""

    letters: Counter[str] = field(default_factory=Counter)
    cost: Counter[str] = field(default_factory=Counter)
    in_doubt: int = 0
    pages: int = 0

    def add(self, letters: str, cost: Mapping[str, int], in_doubt: int) -> None:
        self.letters.update(letters)
        self.cost.update(cost)
        self.in_doubt += in_doubt
        self.pages += 1

    def copy(self) -> PageSums:
        return PageSums(self.letters.copy(), self.cost.copy(), self.in_doubt, self.pages)


@dataclass(frozen=True)
class SeenRun:
    """All pages of a run, in order, and their totals."""

    pages: Sequence[SeenPage] = ()
    sums: PageSums = field(default_factory=PageSums)


@dataclass
class _SeenRun:
    """The pages of a run that are done."""

    pages: dict[tuple[int, int], SeenPage] = field(default_factory=dict)
    sums: PageSums = field(default_factory=PageSums)
    weight: int = 0


class RememberedPages:
    """Cache of runs in a process: finished pages of the runs that were read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[Any, ...], _SeenRun] = {}  # The one asked for last comes last.
        self._weight = 0

    def of(self, run: ContinuationRun) -> tuple[dict[tuple[int, int], SeenPage], PageSums]:
        """Return the pages of a run that are remembered, and their totals."""
        with self._lock:
            seen = self._runs.get(_identity(run)) or _SeenRun()
            return dict(seen.pages), seen.sums.copy()

    def remember(self, run: ContinuationRun, pages: Iterable[SeenPage]) -> None:
        """Remember finished pages; the least recently read runs are forgotten first."""
        with self._lock:
            seen = self._runs.pop(_identity(run), None) or _SeenRun()
            self._runs[_identity(run)] = seen
            for page in pages:
                if page.dots.done and page.place not in seen.pages and self._make_room(page):
                    seen.pages[page.place] = page
                    seen.sums.add(page.dots.letters, page.cost, page.in_doubt)
                    seen.weight += page.weight
                    self._weight += page.weight

    def _make_room(self, page: SeenPage) -> bool:
        while self._weight + page.weight > MAX_REMEMBERED_BYTES and len(self._runs) > 1:
            oldest = next(iter(self._runs))
            self._weight -= self._runs.pop(oldest).weight
        return self._weight + page.weight <= MAX_REMEMBERED_BYTES


def _identity(run: ContinuationRun) -> tuple[Any, ...]:
    """Return what tells a run from another one of its id, in another database or after a reset."""
    return (run.key.namespace(), run.key.id(), run.started)


def seen_run(clients: Clients | None, run: ContinuationRun) -> SeenRun:
    """Return all pages of a run; pages that the process of `clients` remembers are not read."""
    if run.pages_gone:
        return SeenRun()
    memory = (
        RememberedPages()
        if clients is None
        else clients.process_state.get_or_create("continuations", RememberedPages)
    )
    seen, sums = memory.of(run)
    pages = [page for page in _unknown(run, seen) if page.place not in seen]
    memory.remember(run, pages)
    for page in pages:
        sums.add(page.dots.letters, page.cost, page.in_doubt)
    return SeenRun(sorted([*seen.values(), *pages], key=lambda page: page.place), sums)


def _unknown(run: ContinuationRun, seen: Mapping[tuple[int, int], SeenPage]) -> Iterator[SeenPage]:
    """Yield the pages of a run that are not known, and perhaps some that are."""
    run_id = run.key.id()
    if not seen:
        yield from map(SeenPage.of, pages_of(run_id))
        return
    numbers = defaultdict[int, set[int]](set)
    for chain, number in seen:
        numbers[chain].add(number)
    places: list[tuple[int, int]] = []
    ends: dict[int, int] = {}  # Of chains that may go on: the number behind the last one.
    for chain in range(len(run.spans)):
        end = max(numbers[chain], default=-1) + 1
        places += [(chain, number) for number in range(end) if number not in numbers[chain]]
        if end == 0 or not seen[chain, end - 1].is_last:
            ends[chain] = end
    if len(places) > MAX_LOOKED_UP:
        yield from map(SeenPage.of, pages_of(run_id))
        return
    for ahead in LOOKED_AHEAD:
        places += [(chain, end + n) for chain, end in ends.items() for n in range(ahead)]
        if not places:
            return
        pages = _looked_up(run_id, places)
        yield from pages
        latest = {page.place: page for page in pages}
        reached = {chain: latest.get((chain, end + ahead - 1)) for chain, end in ends.items()}
        ends = {
            chain: page.dots.number + 1
            for chain, page in reached.items()
            if page is not None and not page.is_last
        }
        places = []
    for chain, end in ends.items():
        yield from map(SeenPage.of, pages_of_chain(run_id, chain, end))


def _looked_up(run_id: str, places: Sequence[tuple[int, int]]) -> list[SeenPage]:
    pages = ndb.get_multi([page_key(run_id, *place) for place in places])
    return [SeenPage.of(page) for page in pages if page is not None]
