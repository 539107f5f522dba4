"""Sums: the talk's example of a fork-join queue.

Everybody adds to the same few sums, many times a second. A row that each addition writes itself
is a traffic jam; here it is written once for each batch.

A sum has books: what was accepted must be what is folded, waits or is parked, to the item and to
the amount. Forms and the writers of a load note what was accepted exactly. The API notes it in
memory and writes it down once a second, so that an insert costs no write more. What it has not
tallied (its process was killed; its commit came late, or was found out by a repeat) is in the items
themselves: each says that it came by the API, and the fold that adds it counts it. So the books
of an idle sum are exact, and an item that was tallied and is not found is still missing.

Lost on failure: nothing that was accepted.
Cost of an item: 1 write, 1 delete, and its share of the fold; 1 write more with an idempotency key.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from pydantic import Field

from models.demos.sums import (
    Sum,
    SumAddition,
    SumDirectory,
    SumTally,
    addition_key,
    api_tally_key,
    directory_key,
    expired_additions,
    sum_key,
    tally_key,
)
from models.fork_join import PARTITIONS, expiry
from models.transactions import transact
from pipelines.fork_join import Accepted, Batch, ItemStatus, fork_join
from pipelines.runtime import Clients, naive_utc

log = logging.getLogger(__name__)

MAX_AMOUNT = 10**9
MAX_RECENT = 40
# From an addition to the sum that has it; the batches follow from it.
LATENCY_S = 1.5
MAX_SUMS = 50
NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")

TALLY_SHARDS = 4
# Of so many processes a slot knows which notes it has.
PROCESSES_KEPT = 64
NOTED_EVERY_S = 1.0
# Once the process has been told to end.
LAST_NOTES_S = 0.01
# A form that is sent again counts once for so long.
FORMS_FOR = timedelta(days=2)
MAX_FORMS_FORGOTTEN = 100
READINGS = 4


class TooManySumsError(ValueError):
    """There are as many sums as there may be."""


@dataclass(frozen=True)
class Add:
    """An addition to a sum."""

    amount: Annotated[int, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]
    via: Literal["api"] | None = field(default=None, compare=False)  # Nothing that a caller says.


@fork_join("sums", queue="fork-join", period_s=1.0, shards=4, target_latency_s=LATENCY_S)
def add_up(clients: Clients, batch: Batch, items: Sequence[Add]) -> Sequence[int]:
    """Add a batch to its sum; return the sum after each item."""
    now = naive_utc(clients.clock.now())
    row = sum_key(batch.key).get() or Sum(key=sum_key(batch.key), created=now)
    totals = []
    for item in items:
        row.total += item.amount
        totals.append(row.total)
    by_api = _count_of(items, via="api")
    row.items += len(items)
    row.api_items, row.api_amount = row.api_items + by_api.items, row.api_amount + by_api.amount
    row.batches += 1
    folded = {
        "epoch": batch.epoch,
        "items": len(items),
        "opened": batch.opened.isoformat(),
        "folded": now.isoformat(),
    }
    row.recent = [folded, *(row.recent or [])][:MAX_RECENT]
    row.put()
    return totals


# Which sums there are


def create(name: str) -> bool:
    """Make a sum; return False if there is one of this name.

    Raises:
        TooManySumsError: another one would be too many.
    """

    def body() -> bool:
        directory = directory_key().get() or SumDirectory(key=directory_key(), names=[])
        if name in directory.names:
            return False
        if len(directory.names) >= MAX_SUMS:
            raise TooManySumsError(f"there may be {MAX_SUMS} sums")
        directory.names = sorted([*directory.names, name])
        directory.put()
        return True

    return transact(body)


def names() -> list[str]:
    """Return the names of all sums."""
    directory = directory_key().get()
    return list(directory.names) if directory else []


def exists(clients: Clients, name: str) -> bool:
    """Return whether there is a sum of this name. A process asks once: no sum ever goes."""
    known: set[str] = clients.process_state.get_or_create("sums:names", set)
    if name not in known and NAME.fullmatch(name):
        known.update(names())
    return name in known


def listed() -> list[tuple[str, Sum | None]]:
    """Return all sums by name; None: nothing is folded into this one yet."""
    found = names()
    return list(zip(found, ndb.get_multi([sum_key(name) for name in found]), strict=True))


# Additions


def add(
    clients: Clients,
    name: str,
    amount: int,
    *,
    idempotency_key: str | None,
    keep_result: bool = False,
) -> Accepted:
    """Add to a sum, as the API does; errors are those of `insert`."""
    scoped_key = None
    if idempotency_key is not None:
        # Hashed: a caller cannot choose the id of another kind of insert.
        scoped_key = f"api.{hashlib.sha256(idempotency_key.encode()).hexdigest()}"
    item = Add(amount, via="api")
    accepted = add_up.insert(
        clients, name, item, idempotency_key=scoped_key, keep_result=keep_result
    )
    if not accepted.is_duplicate:
        tally_buffer(clients).note(name, amount)
    return accepted


def outcome(
    clients: Clients, accepted: Accepted, timeout_s: float, name: str
) -> tuple[ItemStatus, int | None]:
    """Wait until an addition is folded; return what became of it, and the sum's total then.

    An item that was first inserted by somebody who did not ask has no result of its own: then the
    total is the one of now.
    """
    known = add_up.outcome(accepted)
    if not known.is_folded:
        # Until its batch is due there is nothing to see, and each look costs four reads.
        policy = add_up.policy(clients, name)
        period_s = policy.period_s if policy else add_up.settings.period_s
        early_s = period_s - (naive_utc(clients.clock.now()) - accepted.opened).total_seconds()
        pause_s = min(timeout_s, max(0.0, early_s))
        clients.clock.sleep(pause_s)
        known = add_up.wait(clients, accepted, timeout_s - pause_s)
    if not known.is_folded or known.result is not None:
        return known, known.result
    row = sum_key(name).get()
    return known, row.total if row else None


def add_once(clients: Clients, name: str, form: str, amount: int) -> bool:
    """Add to a sum, once for each form; return False if it was sent before, within two days.

    The item commits with its note in the books.
    """
    slot = clients.random.randrange(TALLY_SHARDS)
    expires = expiry(form, naive_utc(clients.clock.now()) + FORMS_FOR)
    tried: list[bool] = []

    def body() -> bool:
        sent, tally = ndb.get_multi([addition_key(name, form), tally_key(name, slot)])
        if sent is not None:
            return bool(tried)  # Perhaps by a try of ours whose reply was lost.
        tried.append(True)
        SumAddition(key=addition_key(name, form), amount=amount, expires=expires).put()
        row = tally or SumTally(key=tally_key(name, slot))
        row.items, row.amount = row.items + 1, row.amount + amount
        row.put()
        add_up.insert_in_transaction(clients, name, Add(amount))
        return True

    is_added = transact(body)
    if is_added:
        _forget_forms(clients)
    return is_added


def _forget_forms(clients: Clients) -> None:
    """Delete some of what proves that a form was sent, after its time."""
    partition = clients.random.choice(PARTITIONS)
    before = expiry(partition, naive_utc(clients.clock.now()))
    try:
        found = expired_additions(partition, before).fetch(MAX_FORMS_FORGOTTEN, keys_only=True)
        ndb.delete_multi(found)
    except rpc_errors.GoogleAPIError as error:
        log.warning("forms of sums are forgotten later: %s", error)


@dataclass(frozen=True)
class _TallyDelta:
    """What has to be counted, once: its process writes its notes in the order of their numbers."""

    name: str
    slot: int
    process: str
    number: int
    items: int
    amount: int


class TallyBuffer:
    """What this process has accepted for the API and not written down yet."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._process = clients.new_id()[:12]
        self._slot = clients.random.randrange(TALLY_SHARDS)
        self._numbers = itertools.count(1)
        self._open: dict[str, tuple[int, int]] = {}
        self._again: list[_TallyDelta] = []
        self._is_awake = False
        self._has_ended = threading.Event()
        clients.process_state.on_shutdown("sums:notes", self.end)

    def note(self, name: str, amount: int) -> None:
        """Note an item. It is written down within a second, with all that come meanwhile."""
        with self._lock:
            items, so_far = self._open.get(name, (0, 0))
            self._open[name] = items + 1, so_far + amount
            if self._is_awake:
                return
            self._is_awake = True
        # It ends when there is nothing left to do: an idle process has no such thread.
        threading.Thread(target=self._watch, name="sums-notes", daemon=True).start()

    def write(self) -> None:
        """Write everything down. What Datastore does not take stays for the next time."""
        with self._writing:
            for note in self._take():
                transact(partial(_write, note))
                with self._lock:
                    self._again.remove(note)

    def _take(self) -> list[_TallyDelta]:
        """Give what is tallied its numbers; they stay until they are written."""
        with self._lock:
            self._again += [
                _TallyDelta(name, self._slot, self._process, next(self._numbers), items, amount)
                for name, (items, amount) in self._open.items()
            ]
            self._open = {}
            return list(self._again)

    def _watch(self) -> None:
        while True:
            if self._has_ended.wait(NOTED_EVERY_S):
                time.sleep(LAST_NOTES_S)
            try:
                with self._clients.context():
                    self.write()
            except rpc_errors.GoogleAPICallError as error:
                log.warning("notes of sums are written later: %s", error)
            except Exception:
                log.exception("notes of sums are written later")
            with self._lock:
                if not (self._open or self._again):
                    self._is_awake = False
                    return

    def end(self) -> None:
        """Write everything down before the process ends."""
        self._has_ended.set()
        with self._clients.context():
            self.write()


def _write(note: _TallyDelta) -> None:
    """Count a note in its slot of the API's tally, once, in a transaction."""
    key = api_tally_key(note.name, note.slot)
    row = key.get() or SumTally(key=key)
    last: dict[str, int] = dict(row.tallied or [])
    if last.pop(note.process, 0) >= note.number:
        return
    row.items, row.amount = row.items + note.items, row.amount + note.amount
    row.tallied = [(note.process, note.number), *last.items()][:PROCESSES_KEPT]
    row.put()


def tally_buffer(clients: Clients) -> TallyBuffer:
    """Return what this process has not written down yet."""
    return clients.process_state.get_or_create("sums:notes", lambda: TallyBuffer(clients))


# Books


@dataclass(frozen=True)
class Count:
    """Items, and what they add up to."""

    items: int = 0
    amount: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.items + other.items, self.amount + other.amount)


@dataclass(frozen=True)
class SumStatus:
    """A sum as it stands: what is folded, what waits, what is parked.

    `by_api` is what is folded or parked and came by the API.
    """

    folded: Count
    batches: int
    recent: Sequence[Mapping[str, Any]]
    waiting: int
    parked: Count
    by_api: Count
    is_truncated: bool = False  # More waits than was counted.


def status(name: str) -> SumStatus:
    """Return how a sum stands.

    Read again when a batch was folded meanwhile: no item may stand in two places.
    """
    row = sum_key(name).get() or Sum()
    for _ in range(READINGS):
        depth = add_up.depth(name)
        before, row = row, sum_key(name).get() or Sum()
        if row.batches == before.batches:
            break
    return SumStatus(
        folded=Count(row.items, row.total),
        batches=row.batches,
        recent=row.recent or [],
        waiting=depth.waiting,
        parked=_count_of(depth.parked),
        by_api=Count(row.api_items, row.api_amount) + _count_of(depth.parked, via="api"),
        is_truncated=depth.is_truncated,
    )


def _count_of(items: Sequence[Add], via: str | None = None) -> Count:
    amounts = [item.amount for item in items if via in (None, item.via)]
    return Count(len(amounts), sum(amounts))


@dataclass(frozen=True)
class Noted:
    """What was tallied of inserts that were accepted, as far as it is written down."""

    forms: Count
    api: Count

    def accepted(self, standing: SumStatus) -> Count:
        """Return what forms and the API have accepted: the API also what it has not tallied."""
        is_behind = standing.by_api.items > self.api.items
        return self.forms + (standing.by_api if is_behind else self.api)


def tallied(name: str) -> Noted:
    """Return what was tallied of forms and of the API; read it before how the sum stands."""
    slots = range(TALLY_SHARDS)
    keys = [make(name, slot) for make in (tally_key, api_tally_key) for slot in slots]
    counts = [Count(row.items, row.amount) if row else Count() for row in ndb.get_multi(keys)]
    return Noted(
        sum(counts[:TALLY_SHARDS], start=Count()),
        sum(counts[TALLY_SHARDS:], start=Count()),
    )
