"""Pages of a run as its readers see them, and a cache of those that a process has read.

A finished page never changes: no attempt takes it, and its closing sets a flag that readers do not
see. So a process reads it once, then reads only open pages and possible new ones after the last.
Repeated reads of a long run then cost as much as its changes.

One look reads at most MAX_READ pages of a run of any length. The next looks read the rest; open
pages take turns, and so do chains that go on. The totals do not wait for that: they are in the
run's slots. A look adds the receipts of the pages that it reads and that no slot has yet.

A look reads the slots first and counts no page twice. A page given back in between is missing from
both. So a look that has seen fewer items end than the look before shows the older totals: shown
progress of one process never goes back.

Lost on failure: the cache, which is read again.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain as chained
from itertools import islice
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
from rollforward.continuations.pages.totals import (
    PageSums,
    SlotTotals,
    is_missed,
    slot_totals,
    uncounted,
)
from rollforward.runtime.clients import Clients

OUTCOMES = {FAILED: "failed", SKIPPED: "skipped", RETRYING: "retrying"}
# Of a process. A page of a hundred items that all went well takes 1.3 KB.
MAX_REMEMBERED_BYTES = 16 * 1024**2
PAGE_BYTES, ISSUE_BYTES = 1_150, 200
# Behind the last page of a chain one asks for so many, then for twice as many, and so on; beyond
# the last number for all the rest at once.
LOOKED_AHEAD = (2, 4, 8, 16, 32)
# More open pages than this are not asked for by their keys, where all pages are read.
MAX_LOOKED_UP = 300
# Pages that one look reads of a run whose slots have its totals.
MAX_READ = 300
# Chains whose next pages one look asks for: half of what it reads.
MAX_CHAINS = MAX_READ // 2 // LOOKED_AHEAD[0]
# The pages of a run that was asked for within this time are not forgotten for another run's.
ASKED_LATELY_S = 60.0


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
    uncounted: PageSums | None = field(default=None, compare=False)  # What no slot has of it.
    is_final: bool = False  # It changes no more, and all of it is counted.

    @classmethod
    def of(cls, page: ContinuationPage, *, has_slots: bool = False) -> SeenPage:
        is_counted = not has_slots or not (page.owner is not None or is_missed(page))
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
            None if is_counted else uncounted(page),
            page.done and is_counted,
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


@dataclass(frozen=True)
class SeenRun:
    """Pages of a run, in order, and the totals of all of them.

    Attributes:
        slots: The part of the totals that is in its slots.
        has_grown: Whether this look has brought pages that the process will remember.
    """

    pages: Sequence[SeenPage] = ()
    sums: PageSums = field(default_factory=PageSums)
    slots: SlotTotals | None = None
    has_grown: bool = False


@dataclass
class _SeenRun:
    """The pages of a run that a process has read: final ones with their totals, and open ones."""

    pages: dict[tuple[int, int], SeenPage] = field(default_factory=dict)
    sums: PageSums = field(default_factory=PageSums)
    open: dict[tuple[int, int], SeenPage] = field(default_factory=dict)  # Read last, listed last.
    weight: int = 0
    shown: PageSums | None = None  # The totals of the last look.
    last_chain: int = -1  # The last one that was asked for its next pages.
    asked_s: float = 0.0


class PageCache:
    """Cache of runs in a process: the pages of the runs that were read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[Any, ...], _SeenRun] = {}  # The one asked for last comes last.
        self._weight = 0

    def of(self, run: ContinuationRun) -> tuple[dict[tuple[int, int], SeenPage], PageSums]:
        """Return the final pages of a run that are remembered, and their totals."""
        with self._lock:
            seen = self._runs.get(_identity(run)) or _SeenRun()
            return dict(seen.pages), seen.sums.copy()

    def open_of(self, run: ContinuationRun) -> dict[tuple[int, int], SeenPage]:
        """Return the other pages as they were, the one read longest ago first."""
        with self._lock:
            seen = self._runs.get(_identity(run)) or _SeenRun()
            return dict(seen.open)

    def remember(
        self, run: ContinuationRun, pages: Iterable[SeenPage], *, with_open: bool = False
    ) -> bool:
        """Remember pages; return whether there is one that is new, or now final.

        The least recently read runs are forgotten first, unless they were asked for lately.

        Args:
            with_open: Remember those that may change, too.
        """
        has_grown = False
        with self._lock:
            seen = self._runs.pop(_identity(run), None) or _SeenRun()
            self._runs[_identity(run)] = seen
            seen.asked_s = time.monotonic()
            for page in pages:
                if page.place not in seen.pages:
                    is_new = not self._forget(seen, page.place) or page.is_final
                    if (page.is_final or with_open) and self._evict(page):
                        self._add(seen, page)
                        has_grown = has_grown or is_new
        return has_grown

    def some_of(self, run: ContinuationRun, ends: Mapping[int, int]) -> dict[int, int]:
        """Return up to MAX_CHAINS of a run's chains that may go on; they take turns."""
        with self._lock:
            seen = self._runs.get(_identity(run)) or _SeenRun()
            in_turn = sorted(ends, key=lambda chain: (chain <= seen.last_chain, chain))[:MAX_CHAINS]
            seen.last_chain = in_turn[-1] if len(in_turn) < len(ends) else -1
        return {chain: ends[chain] for chain in in_turn}

    def furthest(self, run: ContinuationRun, sums: PageSums) -> PageSums:
        """Return these totals of a run, or totals of an earlier look with more ended items."""
        with self._lock:
            seen = self._runs.get(_identity(run)) or _SeenRun()
            shown = seen.shown or sums
            is_behind = (sums.ended, sums.pages) < (shown.ended, shown.pages)
            seen.shown = shown if is_behind else sums
            return seen.shown.copy()

    def _add(self, seen: _SeenRun, page: SeenPage) -> None:
        if page.is_final:
            seen.pages[page.place] = page
            seen.sums.add(page.dots.letters, page.cost, page.in_doubt)
        else:
            seen.open[page.place] = page
        seen.weight += page.weight
        self._weight += page.weight

    def _forget(self, seen: _SeenRun, place: tuple[int, int]) -> bool:
        if (page := seen.open.pop(place, None)) is None:
            return False
        seen.weight -= page.weight
        self._weight -= page.weight
        return True

    def _evict(self, page: SeenPage) -> bool:
        lately_s = time.monotonic() - ASKED_LATELY_S
        while self._weight + page.weight > MAX_REMEMBERED_BYTES and len(self._runs) > 1:
            oldest = next(iter(self._runs))
            if self._runs[oldest].asked_s > lately_s:
                break
            self._weight -= self._runs.pop(oldest).weight
        return self._weight + page.weight <= MAX_REMEMBERED_BYTES


def _identity(run: ContinuationRun) -> tuple[Any, ...]:
    """Return what tells a run from another one of its id, in another database or after a reset."""
    return (run.key.namespace(), run.key.id(), run.started)


def seen_run(clients: Clients | None, run: ContinuationRun) -> SeenRun:
    """Return the pages of a run; pages that the process of `clients` remembers are not read.

    Without clients all pages are read and added up; so they are of a run without slots.
    """
    if run.pages_gone:
        return SeenRun()
    if clients is None:
        return _all_of(PageCache(), run)
    memory = clients.process_state.get_or_create("continuations", PageCache)
    return _some_of(memory, run) if run.has_slots else _all_of(memory, run)


def _all_of(memory: PageCache, run: ContinuationRun) -> SeenRun:
    seen, sums = memory.of(run)
    pages = [page for page in _unknown(run, seen) if page.place not in seen]
    memory.remember(run, pages)
    for page in pages:
        sums.add(page.dots.letters, page.cost, page.in_doubt)
    return SeenRun(sorted([*seen.values(), *pages], key=lambda page: page.place), sums)


def _some_of(memory: PageCache, run: ContinuationRun) -> SeenRun:
    slots = SlotTotals.of([]) if run.totals else slot_totals(run.key.id())
    final, was_open = memory.of(run)[0], memory.open_of(run)
    pages = {page.place: page for page in _changed(memory, run, final, was_open)}
    has_grown = memory.remember(run, pages.values(), with_open=True)
    sums = slots.sums.copy()
    for page in pages.values():
        if page.uncounted is not None:
            sums += page.uncounted
    if not run.totals:
        sums = memory.furthest(run, sums)
    latest = {**was_open, **final, **pages}
    return SeenRun([latest[place] for place in sorted(latest)], sums, slots, has_grown)


def _changed(
    memory: PageCache,
    run: ContinuationRun,
    final: Mapping[tuple[int, int], SeenPage],
    was_open: Mapping[tuple[int, int], SeenPage],
) -> Iterator[SeenPage]:
    """Yield up to MAX_READ pages of a run that may have changed, or have come since."""
    if not final and not was_open:
        for page in pages_of(run.key.id()).fetch(MAX_READ):
            yield SeenPage.of(page, has_slots=True)
        return
    remembered = {**was_open, **final}
    ends = memory.some_of(run, _ends(run, remembered))
    limit = max(0, MAX_READ - LOOKED_AHEAD[0] * len(ends))
    places = list(islice(chained(was_open, _missing(remembered)), limit))
    budget = MAX_READ
    for limit in LOOKED_AHEAD:
        ahead = min(limit, (budget - len(places)) // max(1, len(ends)))
        places += [(chain, end + n) for chain, end in ends.items() for n in range(ahead)]
        if not places:
            return
        budget -= len(places)
        pages = _read_pages(run, places)
        yield from pages
        latest = {page.place: page for page in pages}
        reached = {chain: latest.get((chain, end + ahead - 1)) for chain, end in ends.items()}
        ends = _continues(reached)
        places = []
    for chain, end in ends.items():
        if budget > 0:
            rows = pages_of_chain(run.key.id(), chain, end).fetch(budget)
            budget -= len(rows)
            yield from (SeenPage.of(page, has_slots=True) for page in rows)


def _missing(seen: Mapping[tuple[int, int], SeenPage]) -> Iterator[tuple[int, int]]:
    """Yield the pages before the last known one of each chain that are not known."""
    last: dict[int, int] = {}
    for chain, number in seen:
        last[chain] = max(number, last.get(chain, -1))
    if sum(last.values()) + len(last) == len(seen):
        return
    for chain, end in last.items():
        for number in range(end):
            if (chain, number) not in seen:
                yield (chain, number)


def _ends(run: ContinuationRun, seen: Mapping[tuple[int, int], SeenPage]) -> dict[int, int]:
    """Return the number behind the last page of each chain that may go on."""
    latest: dict[int, int] = {}
    for chain, number in seen:
        latest[chain] = max(number, latest.get(chain, -1))
    return {
        chain: latest.get(chain, -1) + 1
        for chain in range(len(run.spans))
        if chain not in latest or not seen[chain, latest[chain]].is_last
    }


def _continues(reached: Mapping[int, SeenPage | None]) -> dict[int, int]:
    return {
        chain: page.dots.number + 1
        for chain, page in reached.items()
        if page is not None and not page.is_last
    }


def _unknown(run: ContinuationRun, seen: Mapping[tuple[int, int], SeenPage]) -> Iterator[SeenPage]:
    """Yield the pages of a run that are not known, and perhaps some that are."""
    run_id = run.key.id()
    if not seen:
        yield from map(SeenPage.of, pages_of(run_id))
        return
    ends, places = _ends(run, seen), list(islice(_missing(seen), MAX_LOOKED_UP + 1))
    if len(places) > MAX_LOOKED_UP:
        yield from map(SeenPage.of, pages_of(run_id))
        return
    for ahead in LOOKED_AHEAD:
        places += [(chain, end + n) for chain, end in ends.items() for n in range(ahead)]
        if not places:
            return
        pages = _read_pages(run, places)
        yield from pages
        latest = {page.place: page for page in pages}
        ends = _continues(
            {chain: latest.get((chain, end + ahead - 1)) for chain, end in ends.items()}
        )
        places = []
    for chain, end in ends.items():
        yield from map(SeenPage.of, pages_of_chain(run_id, chain, end))


def _read_pages(run: ContinuationRun, places: Sequence[tuple[int, int]]) -> list[SeenPage]:
    pages = ndb.get_multi([page_key(run.key.id(), *place) for place in places])
    has_slots = run.has_slots
    return [SeenPage.of(page, has_slots=has_slots) for page in pages if page is not None]
