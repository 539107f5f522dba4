"""Lease of an interval, fenced by the row version that every write of its worker names.

A worker that does not know the outcome of its commit reads its interval. If the interval is still
its own, it continues from the stored state with empty caches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.streams.exchange.forwarding import MAX_FORWARDED, forwarded, ready, scan_retired
from rollforward.streams.exchange.sent import with_sent
from rollforward.streams.exchange.wakeups import WakeupBatcher, wake, wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.dedup import KnownIds
from rollforward.streams.storage.layout import RetiredInbox, retired_within
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    CreateTasks,
    Key,
    OutcomeUnknownError,
    Pause,
    Read,
    Scan,
    Steps,
    StoredRow,
    TooLargeError,
)
from rollforward.streams.storage.schema import CHUNK, Head, Interval
from rollforward.streams.storage.state_store import StateStore

ID_BYTES = 100  # In memory.
# After this many crashes in a row an interval is processed record by record.
CAREFUL_AFTER = 2
# Pauses before the attempts to release a lease after an error; then the lease expires by itself.
RELEASE_PAUSES_S = (0.0, 0.1, 0.4, 1.5)

log = logging.getLogger(__name__)


class LostLeaseError(Exception):
    """Another worker has the interval."""


class GoneError(Exception):
    """The interval does not exist: it was deleted."""


@dataclass
class CachedInterval:
    """State and ids of an interval since a commit, valid while that is its last one."""

    version: int
    store: StateStore
    ids: KnownIds

    @property
    def bytes(self) -> int:
        return self.store.rows.bytes + ID_BYTES * len(self.ids.accepted)


def evict(caches: dict[Any, Any], max_bytes: int) -> None:
    """Drop cached intervals, least recently released first."""
    intervals = [
        (key, cache) for key, cache in list(caches.items()) if isinstance(cache, CachedInterval)
    ]
    total = sum(cache.bytes for _, cache in intervals)
    for key, cache in intervals:
        if total <= max_bytes:
            return
        caches.pop(key, None)
        total -= cache.bytes


def _horizon_ms(plan: ActivePipeline, computation: str) -> int:
    """Return for how long a computation knows ids: 0 if it does not run."""
    return plan.dedup_ms(computation) if plan.has(computation) else 0


def defer_to_other_version(environment: Environment, computation: str) -> Steps[None]:
    """Skip an interval whose computation is missing from this version of the app.

    Raises:
        MissingCodeError: the computation runs, so another version has its code.
    """
    [head] = yield Read([environment.names.head])
    if head is not None and environment.at(head.body).has(computation):
        environment.at(head.body).runnable(computation)


@dataclass
class LeasedInterval:
    """An interval that a worker acquires, commits with, and releases."""

    environment: Environment
    name: str
    lo: int
    owner: str = ""

    def __post_init__(self) -> None:
        self.interval, self.version = Interval(0), 0
        self.lease_ends_ms = 0  # Of another worker's lease.
        self.head, self.head_read_ms = Head(), -float(FOREVER)
        self.inbox: dict[str, StoredRow] = {}  # Chunks that were read and are not yet consumed.
        self.plan = self.environment.at(self.head)
        self.computation: Computation = self.environment.pipeline.any_version(self.name)
        self.names = self.environment.names
        self.key: Key = self.names.interval(self.name, self.lo)
        self.config = self.environment.config
        # Records of a bundle; an oversized commit lowers both, and `max_limit` for good.
        self.limit = self.max_limit = self.config.max_records
        self.forwards = MAX_FORWARDED
        self.wakeups = WakeupBatcher(self.environment)
        self._new_caches()

    def _new_caches(self) -> None:
        self.store = StateStore(self.names, self.name)
        self.ids = KnownIds(self.names, self.name, self.lo, _horizon_ms(self.plan, self.name))

    # Head and inbox

    @property
    def watermark(self) -> int:
        return self.head.inputs.get(self.name, 0)

    @property
    def timer_watermark(self) -> int:
        """The watermark of the hooks and their timers."""
        return self.head.timer_watermark(self.name)

    def _refresh(self) -> Steps[None]:
        """Refresh the cached head if it is older than `watermark_ms`.

        An old watermark is only lower. But records go by the layout of the head, which must not be
        older than the layout of the worker's last commit.
        """
        now_ms, caches = self.environment.elapsed_ms(), self.environment.caches
        is_old = self.head.layout_version < self.interval.layout_version
        if 0 <= now_ms - self.head_read_ms <= self.config.watermark_ms and not is_old:
            return
        head, read_ms = caches.get(self.names.head, (None, self.head_read_ms))
        if is_old or not 0 <= now_ms - read_ms <= self.config.watermark_ms:
            [head] = yield Read([self.names.head])
            read_ms = now_ms
            caches[self.names.head] = head, read_ms
        self._apply_head(head, read_ms)

    def _apply_head(self, row: StoredRow, read_ms: float) -> None:
        """Use a head, unless it is older than the current one.

        Raises:
            GoneError: the computation was detached.
            MissingCodeError: another version of it runs now, which this code does not have.
        """
        head: Head = row.body
        if (
            head.inputs.get(self.name, 0) >= self.watermark
            and head.layout_version >= self.head.layout_version
        ):
            plan, self.head, self.plan = self.plan, head, self.environment.at(head)
            if self.plan is not plan:  # A weak computation may follow another source now.
                self.ids.horizon_ms = _horizon_ms(self.plan, self.name)
            if not self.plan.is_active(self.name):
                raise GoneError
            self.computation = self.plan.runnable_sender(self.name)
        self.head_read_ms = read_ms

    def _scan(self, limit: int) -> Scan:
        low, high = self.names.inbox_range(
            self.name, self.lo, self.watermark, self.interval.created_in
        )
        return Scan(CHUNK, low, high, limit)

    # Retired inboxes of splits and merges

    @property
    def retired(self) -> list[RetiredInbox]:
        return retired_within(self.head, self.name, self.lo, self.interval.hi)

    def ready(self, chunks: list[tuple[str, StoredRow]]) -> list[tuple[str, StoredRow]]:
        """Return the chunks that may be processed now."""
        return ready(chunks, self.watermark) if self.name in self.head.retired else chunks

    def forward(self) -> Steps[bool]:
        """Forward records of a retired inbox; return False if there were none."""
        for inbox in self.retired:
            chunks = yield scan_retired(self.names, self.name, inbox, self.watermark, self.forwards)
            if chunks:
                commit, outgoing = forwarded(self.environment, self.head, self.name, chunks)
                lease_ms = self.environment.now_ms() + self.config.lease_ms
                interval = self.interval._replace(
                    layout_version=self.head.layout_version, lease_ms=lease_ms
                )
                try:
                    yield from self.commit(commit, interval)
                except TooLargeError:
                    if self.forwards == 1:
                        raise
                    self.forwards //= 2
                    return True
                yield from wake_intervals(self.environment, outgoing.destinations)
                return True
        return False

    def _has_records(self) -> Steps[bool]:
        for inbox in self.retired:
            if (yield scan_retired(self.names, self.name, inbox, self.watermark, 1)):
                return True
        return bool(self.ready((yield self._scan(1))))

    # Lease

    def acquire(self) -> Steps[bool]:
        """Acquire the lease; return False if another worker has it.

        The generation rises before the inbox is read.
        """
        now_ms, read_ms = self.environment.now_ms(), self.environment.elapsed_ms()
        head, row = yield Read([self.names.head, self.key])
        if head is None or not head.body.is_complete:
            head = yield from read_head(self.environment)
            [row] = yield Read([self.key])
        self._apply_head(head, read_ms)
        if row is None:
            raise GoneError
        if self.environment.is_worked_on(row.body, now_ms):
            self.lease_ends_ms = row.body.lease_ms
            return False
        self._restore(row)
        self.owner = self.environment.sign(self.environment.new_id())
        crash_count = row.body.crash_count + bool(row.body.owner)
        if crash_count >= CAREFUL_AFTER:
            self.limit = 1
        is_recent = now_ms - row.body.crashed_ms <= self.config.unjoined_ms
        crashed_ms = row.body.crashed_ms if is_recent else 0
        interval = row.body._replace(
            crash_count=crash_count,
            crashed_ms=now_ms if row.body.owner else crashed_ms,
            seq=row.body.seq + 1,
            gen=row.body.gen + 1,
            owner=self.owner,
            lease_ms=now_ms + self.config.lease_ms,
        )
        self.interval, self.version = row.body, row.version
        yield from self.commit(Commit(), interval)
        return self.interval.owner == self.owner

    def release(self) -> Steps[bool]:
        """Release the lease; return False if it was acquired again, because records had arrived.

        Raises:
            OutcomeUnknownError: the release may have failed; the task must be retried, since no
                other task is created.
        """
        if not (yield from self._release()):
            raise OutcomeUnknownError
        if (yield from self._has_records()):
            return not (yield from self.acquire())
        return True

    def _release(self) -> Steps[bool]:
        free = self.interval._replace(owner="", lease_ms=0, crash_count=0)
        self.inbox.clear()
        is_free: bool = yield from self.commit(Commit(), free)
        if is_free:
            caches = self.environment.caches
            caches[self.key] = CachedInterval(self.version, self.store, self.ids)
            evict(caches, self.config.cache_bytes)
        return is_free

    def _yield_interval(self) -> Steps[None]:
        """Release the lease and create a task that continues."""
        if self.interval.owner:
            yield from self._release()
            task = wake(self.environment, (self.name, self.lo), self.interval.gen)
            yield CreateTasks([task])

    def _release_after_error(self) -> Steps[None]:
        """Try to release the lease after an error, so that the next task need not wait for it.

        The error may be a lost connection, which takes a second to recover. The interval is read
        first, since a commit without an answer may have changed its version.
        """
        for pause_s in RELEASE_PAUSES_S:
            if pause_s:
                yield Pause(pause_s)
            try:
                [row] = yield Read([self.key])
                if row is None or not self.owner or row.body.owner != self.owner:
                    return
                free = row.body._replace(owner="", lease_ms=0)
                yield Commit(puts=[(self.key, free, row.version)])
                yield from self.wakeups.flush()
            except Exception:
                log.info("%s/%d is not released yet", self.name, self.lo, exc_info=True)
            else:
                return

    # Commits

    def commit(self, commit: Commit, interval: Interval) -> Steps[bool]:
        """Commit with the interval; return False if that may have failed and caches are empty.

        Raises:
            LostLeaseError: another worker has the interval.
        """
        before, inserts = self.interval, commit.inserts
        if self.environment.follows(self.head) or before.sent is not None:
            interval = with_sent(self.environment, self.head, before, interval, inserts)
        commit.puts.insert(0, (self.key, interval, self.version))
        try:
            versions = yield commit
        except (ChangedError, OutcomeUnknownError):
            yield from self._reload()
            return False
        self.interval, self.version = interval, versions[0]
        self.store.committed(commit, versions)
        self.ids.committed(interval, commit, versions)
        self._remove_consumed(commit, versions)
        return True

    def _remove_consumed(self, commit: Commit, versions: Sequence[int]) -> None:
        """Remove the chunks that a commit has consumed from the cached inbox."""
        for key, _ in commit.deletes:
            if key.kind == CHUNK:
                self.inbox.pop(key.name, None)
        for (key, body, _), version in zip(commit.puts, versions, strict=False):
            if key.kind == CHUNK:
                self.inbox[key.name] = StoredRow(body, version)

    def _reload(self) -> Steps[None]:
        """Read the interval again and empty all caches.

        Raises:
            LostLeaseError: another worker has it, or had it.
        """
        [row] = yield Read([self.key])
        self.lease_ends_ms = row.body.lease_ms if row is not None else 0
        if row is None or row.body.owner not in (self.owner, ""):
            raise LostLeaseError
        if not row.body.owner and row.version != self.version:
            raise LostLeaseError
        self.interval, self.version = row.body, row.version
        self.inbox.clear()
        self.store.clear()
        self.ids.clear()

    def _restore(self, row: StoredRow) -> None:
        """Use the process's cache of the interval if its version is current."""
        cache = self.environment.caches.pop(self.key, None)
        if cache is not None and cache.version == row.version:
            self.store, self.ids = cache.store, cache.ids
            self.ids.horizon_ms = _horizon_ms(self.plan, self.name)
        else:
            self._new_caches()
