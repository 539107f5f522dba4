"""The slots of a run: the rows of its totals, and which of them an attempt writes.

An attempt that gives its page back adds the page's receipts to one of the run's slots, less those
that were counted before.

Each process prefers a slot of its own, and remembers its version. Then the commit takes one round
trip, as without totals. A process that finds a slot changed by another one takes the next, and so
does a thread that finds it in use. A process with many threads uses all eight.

A commit with effects of its own is a transaction. It reads a slot last and locks it for a moment
only, and one that counts nothing reads none. The slots of a process take turns there: all eight, or
half as many whenever it loses one to another process, down to one. So processes part soon.

Lost on failure: nothing. An attempt that takes over counts the receipts of one that died.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.continuations.entities import (
    TOTALS_SLOTS,
    ContinuationPage,
    ContinuationTotals,
    totals_keys,
)
from rollforward.continuations.pages.totals import (
    RECENT_S,
    PageSums,
    is_missed,
    second_of,
    uncounted,
)
from rollforward.datastore.transactions import current_transaction, transact
from rollforward.datastore.versions import read_versions
from rollforward.runtime.clients import Clients
from rollforward.runtime.run_all import run_all

# Runs whose slots a process remembers.
MAX_RUNS = 100
# A thread waits so long for a slot of its own; then it counts in a transaction, beside others.
MAX_WAIT_S = 1.0
# So many pages that fail one after another say that the service is unavailable, not the pages.
MAX_FAILED_IN_A_ROW = 3


def _count(page: ContinuationPage, slot: ContinuationTotals) -> bool:
    """Add the sums of a page that no slot has to one; return whether there were any."""
    share = uncounted(page)
    if share.is_zero:
        return False
    sums = PageSums.load(slot.sums)
    sums += share
    slot.sums = sums.dump()
    slot.updated_at = max(slot.updated_at, page.updated_at)
    now = second_of(page.updated_at)
    lately = Counter(dict(slot.lately))
    lately[now] += share.ended
    slot.lately = [pair for pair in sorted(lately.items()) if abs(now - pair[0]) <= 2 * RECENT_S]
    page.counted = PageSums.of(page).dump()
    return True


def _new_slot(key: Any, page: ContinuationPage) -> ContinuationTotals:
    return ContinuationTotals(key=key, sums=PageSums().dump(), updated_at=page.updated_at)


class SlotsBusyError(Exception):
    """Other threads hold all slots of the run, and none became free in time."""


class Slot:
    """A slot that this process uses, and its version, once known; `RunSlots.one` holds it."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self._latest: tuple[ContinuationTotals | None, int | None] | None = None
        self._changed: ContinuationTotals | None = None

    def count(self, clients: Clients, page: ContinuationPage) -> list[tuple[ndb.Model, int | None]]:
        """Count a page; return the row to write with it, and its version; outside transactions."""
        latest, self._latest = self._latest, None
        if latest is None:
            [read] = read_versions(clients.datastore, [self.key])
            latest = read or (None, None)
        row = latest[0] or _new_slot(self.key, page)
        if not _count(page, row):
            return []
        self._changed = row
        return [(row, latest[1])]

    def note_version(self, version: int) -> None:
        """Note the version of the row that `count` returned, once it is committed."""
        self._latest = (self._changed, version)

    def forget(self) -> None:
        """Forget the version: a transaction may change the row. One that is stale does no harm."""
        self._latest = None


class RunSlots:
    """The slots of a run, as a process uses them."""

    def __init__(self, keys: Sequence[Any], first: int) -> None:
        slots = [Slot(key) for key in keys]
        self._preferred = slots[first:] + slots[:first]
        # Transactions take turns with so many of them.
        self._width = len(slots)
        self._turns = itertools.count()
        self._free = set(slots)
        self._freed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[Slot]:
        """Hold a slot that no other thread holds, for one commit: the preferred one, if it is free.

        Raises:
            SlotsBusyError: none became free.
        """
        slot = self._take()
        try:
            yield slot
        finally:
            self._release(slot)

    def _take(self) -> Slot:
        with self._freed:
            if not self._freed.wait_for(lambda: self._free, MAX_WAIT_S):
                raise SlotsBusyError
            slot = next(slot for slot in self._preferred if slot in self._free)
            self._free.remove(slot)
            return slot

    def _release(self, slot: Slot) -> None:
        with self._freed:
            self._free.add(slot)
            self._freed.notify()

    def count_in_transaction(self, page: ContinuationPage) -> list[ndb.Model]:
        """Count a page; return the row to put with it; in a transaction, as its last read.

        No thread waits for another one here: slots take turns, also when the transaction runs
        again. A page with nothing to count reads none.
        """
        if uncounted(page).is_zero:
            return []
        slot = current_transaction().hook(f"slots {id(self)}", lambda: _SlotUse(self)).take()
        slot.forget()
        row = slot.key.get() or _new_slot(slot.key, page)
        _count(page, row)
        return [row]

    def take_turn(self) -> tuple[Slot, bool]:
        """Return the slot whose turn it is, and whether no other thread holds it."""
        with self._freed:
            turn = next(self._turns) % self._width
            turns = self._preferred[: self._width]
            in_order = turns[turn:] + turns[:turn] + self._preferred[self._width :]
            slot = next((slot for slot in in_order if slot in self._free), None)
            if slot is None:
                return in_order[0], False
            self._free.remove(slot)
            return slot, True

    def end_turn(self, slot: Slot, *, is_free: bool, is_lost: bool) -> None:
        """End what `take_turn` began.

        Args:
            is_lost: Another process may have changed the slot meanwhile. They would meet again at
                the next one, where both go, so this one leaves half of the slots to it.
        """
        if is_free:
            self._release(slot)
        if is_lost:
            with self._freed:
                self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        """Take turns with the half of the slots that this one is not among."""
        turns, others = self._preferred[: self._width], self._preferred[self._width :]
        if slot in turns:
            self._width = max(1, self._width // 2)
            if slot in turns[: self._width]:
                self._preferred = turns[self._width :] + others + turns[: self._width]

    def prefer_next(self) -> None:
        """Take the next slot from now on: another process uses this one."""
        with self._freed:
            self._preferred = self._preferred[1:] + self._preferred[:1]


class _SlotUse:
    """A transaction's turn at the slots, which ends with each attempt."""

    def __init__(self, slots: RunSlots) -> None:
        self._slots = slots
        self._taken: list[tuple[Slot, bool]] = []

    def take(self) -> Slot:
        self._taken.append(self._slots.take_turn())
        return self._taken[-1][0]

    def on_retry(self, cause: Exception) -> None:
        self._end(is_lost=isinstance(cause, rpc_errors.Aborted))

    def on_commit(self) -> None:
        self._end(is_lost=False)

    def on_outcome_unknown(self) -> None:
        self._end(is_lost=False)

    def _end(self, *, is_lost: bool) -> None:
        taken, self._taken = self._taken, []
        for slot, is_free in taken:
            self._slots.end_turn(slot, is_free=is_free, is_lost=is_lost)


class ProcessSlots:
    """The slots of the runs that a process has worked on last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Any, RunSlots] = {}  # The one used last comes last.

    def of(self, run_id: str, owner: str) -> RunSlots:
        """Return the slots of a run; the first attempt's owner chooses which is preferred."""
        keys = totals_keys(run_id)
        with self._lock:
            slots = self._runs.pop(keys[0], None)
            if slots is None:
                slots = RunSlots(keys, zlib.crc32(owner.encode()) % TOTALS_SLOTS)
            self._runs[keys[0]] = slots
            if len(self._runs) > MAX_RUNS:
                self._runs.pop(next(iter(self._runs)))
            return slots


def slots_of(clients: Clients, run_id: str, owner: str) -> RunSlots:
    """Return the slots of a run, as this process uses them."""
    state = clients.process_state.get_or_create("continuation slots", ProcessSlots)
    return state.of(run_id, owner)


def count_missed(clients: Clients, run_id: str, keys: Sequence[Any]) -> list[Any]:
    """Count pages that another version of the code has given back, by their keys.

    Returns the keys of those that could not be counted now; why is logged.
    """
    slots = slots_of(clients, run_id, clients.new_owner())
    uncounted_keys = dict.fromkeys(keys)

    def count(key: Any) -> None:
        transact(lambda: _count_missed(slots, key))
        del uncounted_keys[key]

    actions = [(f"page {key.id()} could not be counted", partial(count, key)) for key in keys]
    run_all(actions, max_unavailable=MAX_FAILED_IN_A_ROW)
    return list(uncounted_keys)


def _count_missed(slots: RunSlots, key: Any) -> None:
    page = key.get()
    if page is not None and is_missed(page):
        ndb.put_multi([page, *slots.count_in_transaction(page)])
