"""Epochs: the open batch of each key, shared through memcached by a lock in one counter.

A batch is an epoch, a random id under which writers put their work. Its lock is one number:

    bit  ... 17      16     15 ... 0
         items       open   closed, and how many writers are inside

    65,536 and more   open; the excess is the number of writers inside
    32,768 and more   closed: the joiner waits for the writers that are still inside
    less              joined: the joiner has missed a writer that is still inside

The items are the announced ones. So one increment admits a writer and returns how full the batch
is. A writer that was missed learns it when it leaves.

Nothing here is a proof. If memcached forgets or invents values, work is still in Datastore under
some epoch, and the sweep finds all epochs. Without memcached each process makes its own.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Fork-join queue": the lock by counter. Why a random epoch and not a running index: docs/adr/0009.
"""

from __future__ import annotations

import datetime
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollforward.fork_join.entities import EpochId, key_hash_of
from rollforward.runtime.advisory_lock import pauses
from rollforward.runtime.cache import parse_counter
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc

log = logging.getLogger(__name__)

OPEN = 2**16
CLOSED = 2**15
JOINED = 0
ITEM = 2**17
# Writers that hold the lock longer than this are not waited for.
WAIT_FOR_WRITERS_S = 1.0
# An epoch that is older than its period by this has lost its joiner.
FORGOTTEN_AFTER_S = 5.0
# A joiner waits no longer for the fold before: it has to close its epoch while writers know it.
MAX_MUTEX_WAIT_S = FORGOTTEN_AFTER_S - WAIT_FOR_WRITERS_S - 0.5
MAX_TRIES = 4
MAX_REMEMBERED = 10_000


@dataclass(frozen=True)
class LockValue:
    """The parts of a lock's number.

    >>> LockValue.decode(3 * ITEM + OPEN + 2)
    LockValue(items=3, state=65536, writers=2)
    >>> LockValue.decode(CLOSED).is_quiet, LockValue.decode(CLOSED + 1).is_quiet
    (True, False)
    """

    items: int
    state: int  # OPEN, CLOSED or JOINED.
    writers: int  # Inside. Of a joined epoch it means nothing.

    @classmethod
    def decode(cls, count: int) -> LockValue:
        items, low = divmod(count, ITEM)
        state = OPEN if low >= OPEN else CLOSED if low >= CLOSED else JOINED
        return cls(items, state, low - state)

    @property
    def is_quiet(self) -> bool:
        """Whether the joiner of an epoch that is not open has no writer to wait for."""
        return self.state == JOINED or (self.state == CLOSED and not self.writers)


@dataclass(frozen=True)
class Slot:
    """A place for one open epoch at a time: a key of a queue, or one shard of a hot key."""

    queue: str
    key: str
    shard: int = 0

    @property
    def name(self) -> str:
        return f"fork-join:epoch:{self.queue}:{self.shard}:{self.key}"

    @property
    def fold_mutex(self) -> str:
        return f"fork-join:fold-mutex:{self.queue}:{self.key}"

    @property
    def key_hash(self) -> str:
        return key_hash_of(self.queue, self.key)


@dataclass(frozen=True)
class Admission:
    """A writer's stay in an epoch.

    `is_new`: this writer opened it and must create its task. `is_shared`: memcached has its lock.
    `is_full`: this writer's items filled it. `items`: the number that it announced.
    """

    slot: Slot
    epoch: str
    due: datetime.datetime
    is_new: bool = False
    is_shared: bool = True
    is_full: bool = False
    items: int = 0


@dataclass(frozen=True)
class Shape:
    """The period of an epoch, and the number of items that fill it."""

    period_s: float
    max_batch_size: int


@dataclass(frozen=True)
class _CachedEpoch:
    epoch: str
    shape: Shape


class Epochs:
    """The epochs that one process knows of."""

    def __init__(self, period_s: float, shape: Callable[[Clients, str], Shape]) -> None:
        """Remember nothing yet.

        Args:
            period_s: The longest period of an epoch.
            shape: Returns the shape of a key's next epoch; called once an epoch.
        """
        self._period = datetime.timedelta(seconds=period_s)
        self._shape = shape
        self._lock = threading.Lock()
        self._known: OrderedDict[Slot, _CachedEpoch] = OrderedDict()
        self._private_epochs: OrderedDict[Slot, Admission] = OrderedDict()

    # Writers

    def enter(self, clients: Clients, slot: Slot, items: int) -> Admission:
        """Announce items in the open epoch of a slot; open one if there is none."""
        for _ in range(MAX_TRIES):
            epoch = self._cached(clients, slot) or self._published(clients, slot)
            entry = (
                self._step_in(clients, slot, epoch, items)
                if epoch is not None
                else self._open(clients, slot, items)
            )
            if entry is not None:
                return entry
        return self._private(clients, slot)

    def leave(self, clients: Clients, entry: Admission) -> bool:
        """Leave an epoch; return whether its joiner may have gone ahead without this writer."""
        if not entry.is_shared:
            return not entry.is_new and naive_utc(clients.clock.now()) >= entry.due
        inside = clients.cache.incr_existing(_lock(entry.slot, entry.epoch), -1)
        return inside is None or LockValue.decode(inside).state == JOINED

    def can_be_joined(self, clients: Clients, entry: Admission) -> bool:
        """Return whether the joiner of an epoch may have gone ahead of a writer that is inside."""
        if not entry.is_shared:
            return naive_utc(clients.clock.now()) >= entry.due
        word = _read_value(clients, _lock(entry.slot, entry.epoch))
        return word is None or word.state == JOINED

    def discard(self, clients: Clients, slot: Slot, epoch: str) -> None:
        """Remove an epoch from this process's memory and from memcached, so no writer enters it."""
        with self._lock:
            cached = self._known.get(slot)
            if cached is not None and cached.epoch == epoch:
                del self._known[slot]
        unpublish(clients, slot, epoch)

    def _cached(self, clients: Clients, slot: Slot) -> str | None:
        cached = self._known.get(slot)
        if cached is None or not self._is_valid_epoch(clients, slot, cached.epoch):
            return None
        return cached.epoch

    def _published(self, clients: Clients, slot: Slot) -> str | None:
        """Return the open epoch according to memcached, if that is plausible."""
        cached = clients.cache.get(slot.name)
        if cached is None:
            return None
        epoch = cached.decode(errors="replace")
        if self._is_valid_epoch(clients, slot, epoch):
            return epoch
        unpublish(clients, slot, epoch)
        return None

    def _is_valid_epoch(self, clients: Clients, slot: Slot, text: str) -> bool:
        """Return whether a text can be an epoch of this slot that waits for its joiner."""
        try:
            epoch = EpochId.parse(text)
        except ValueError:
            log.warning("memcached holds no epoch under %s", slot.name)
            return False
        at = naive_utc(clients.clock.now())
        longest = self._period + datetime.timedelta(seconds=FORGOTTEN_AFTER_S)
        return epoch.key_hash == slot.key_hash and at - longest < epoch.opened < at + longest

    def _step_in(self, clients: Clients, slot: Slot, epoch: str, items: int) -> Admission | None:
        lock, steps = _lock(slot, epoch), items * ITEM + 1
        count = clients.cache.incr_existing(lock, steps)
        word = _decoded(count)
        # The count includes this writer: a word without writers is not a lock of this code.
        if word is not None and word.state == OPEN and word.writers:
            shape = self._cache(clients, slot, epoch)
            is_full = word.items - items < shape.max_batch_size <= word.items
            return Admission(slot, epoch, _due(epoch, shape), is_full=is_full, items=items)
        if count is not None:
            clients.cache.incr_existing(lock, -steps)
        self.discard(clients, slot, epoch)
        return None

    def _open(self, clients: Clients, slot: Slot, items: int) -> Admission | None:
        """Open an epoch and enter it; None: another process was faster."""
        epoch = self._new(clients, slot)
        lock = _lock(slot, epoch)
        inside = str(OPEN + items * ITEM + 1).encode()
        if not clients.cache.add(lock, inside, self._ttl_s()):
            return self._private(clients, slot)
        is_published = clients.cache.add(slot.name, epoch.encode(), self._ttl_s())
        # A lost answer may have published it, and then no other writer would create its task.
        if not is_published and clients.cache.get(slot.name) != epoch.encode():
            return None
        shape = self._cache(clients, slot, epoch)
        due, is_full = _due(epoch, shape), items >= shape.max_batch_size
        return Admission(slot, epoch, due, is_new=True, is_full=is_full, items=items)

    def _private(self, clients: Clients, slot: Slot) -> Admission:
        """Return a stay in an epoch of this process alone, until its joiner is due."""
        at = naive_utc(clients.clock.now())
        shape = self._shape(clients, slot.key)
        with self._lock:
            private = self._private_epochs.get(slot)
            if private is not None and private.due - self._period <= at < private.due:
                return private
            epoch = self._new(clients, slot)
            private = Admission(slot, epoch, _due(epoch, shape), is_shared=False)
            self._private_epochs[slot] = private
            if len(self._private_epochs) > MAX_REMEMBERED:
                self._private_epochs.popitem(last=False)
        return replace(private, is_new=True)

    def _new(self, clients: Clients, slot: Slot) -> str:
        return EpochId(clients.new_id()[:12], naive_utc(clients.clock.now()), slot.key_hash).text

    def _cache(self, clients: Clients, slot: Slot, epoch: str) -> Shape:
        """Remember an epoch; return its shape, as this process sees it."""
        cached = self._known.get(slot)
        if cached is None or cached.epoch != epoch:
            cached = _CachedEpoch(epoch, self._shape(clients, slot.key))
        with self._lock:
            self._known[slot] = cached
            self._known.move_to_end(slot)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return cached.shape

    def _ttl_s(self) -> int:
        return math.ceil(self._period.total_seconds() + FORGOTTEN_AFTER_S)


def gone_at(epoch: str, period_s: float) -> datetime.datetime:
    """Return when writers stop believing that an epoch is open, even if memcached says so."""
    lasts_s = period_s + FORGOTTEN_AFTER_S
    return EpochId.parse(epoch).opened + datetime.timedelta(seconds=lasts_s)


def _due(epoch: str, shape: Shape) -> datetime.datetime:
    return EpochId.parse(epoch).opened + datetime.timedelta(seconds=shape.period_s)


# Readers


@dataclass(frozen=True)
class OpenEpoch:
    """The open epoch of a slot according to memcached: items announced, writers inside."""

    epoch: str
    items: int
    writers: int


def find_open_epoch(clients: Clients, slot: Slot) -> OpenEpoch | None:
    """Return the open epoch of a slot according to memcached; None: it knows none."""
    cached = clients.cache.get(slot.name)
    epoch = cached.decode(errors="replace") if cached is not None else ""
    word = _read_value(clients, _lock(slot, epoch)) if epoch else None
    if word is None or word.state != OPEN:
        return None
    return OpenEpoch(epoch, word.items, word.writers)


# Joiners


def close(clients: Clients, slot: Slot, epoch: str) -> bool:
    """Close an epoch to writers; wait, not for ever, until the writers inside have left.

    Returns:
        False if memcached did not answer, or has forgotten the lock. Then writers that remember the
        epoch may still come, until it is too old for them.
    """
    unpublish(clients, slot, epoch)
    lock = _lock(slot, epoch)
    word = _read_value(clients, lock)
    # A joiner that is retried, or a second one, must not subtract twice.
    if word is not None and word.state == OPEN:
        word = _decoded(clients.cache.incr_existing(lock, -CLOSED))
    for pause_s in pauses(WAIT_FOR_WRITERS_S):
        if word is None or word.is_quiet:
            break
        clients.clock.sleep(pause_s)
        word = _read_value(clients, lock)
    is_known = word is not None
    return clients.cache.set(lock, b"0", 60) and is_known


def is_joined(clients: Clients, slot: Slot, epoch: str) -> bool:
    """Return whether a joiner has closed an epoch, according to memcached."""
    word = _read_value(clients, _lock(slot, epoch))
    return word is not None and word.state == JOINED


def unpublish(clients: Clients, slot: Slot, epoch: str) -> None:
    """Remove an epoch from memcached, so that no process finds it there."""
    if clients.cache.get(slot.name) == epoch.encode(errors="replace"):
        clients.cache.delete(slot.name)


def _lock(slot: Slot, epoch: str) -> str:
    return f"fork-join:lock:{slot.queue}:{epoch}"


def _read_value(clients: Clients, lock: str) -> LockValue | None:
    return _decoded(parse_counter(clients.cache.get(lock)))


def _decoded(count: int | None) -> LockValue | None:
    return None if count is None else LockValue.decode(count)
