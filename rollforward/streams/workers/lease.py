"""The lease of an interval, and the version that every write of its owner names.

A worker that does not know what became of its commit reads its interval. If that is still its own
it goes on from what it finds there, with nothing in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.streams.exchange.forwarding import MAX_FORWARDED, forwarded, ready, scan_retired
from rollforward.streams.exchange.wakeups import WakeupBatcher, wake, wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import is_complete, read_head
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
# After so many deaths in a row an interval is worked on record by record.
CAREFUL_AFTER = 2
# The pauses before the attempts to give an interval back; then its lease ends by itself.
RELEASE_PAUSES_S = (0.0, 0.1, 0.4, 1.5)

log = logging.getLogger(__name__)


class LostLeaseError(Exception):
    """The interval is another worker's now."""


class GoneError(Exception):
    """There is no such interval: it was deleted."""


@dataclass
class CachedInterval:
    """What is known of an interval since a commit: good as long as that is its last one."""

    version: int
    store: StateStore
    ids: KnownIds

    @property
    def bytes(self) -> int:
        return self.store.rows.bytes + ID_BYTES * len(self.ids.accepted)


def evict(caches: dict[Any, Any], max_bytes: int) -> None:
    """Forget what is known of intervals, of those that were left longest ago first."""
    kept = [(key, each) for key, each in list(caches.items()) if isinstance(each, CachedInterval)]
    left = sum(memory.bytes for _, memory in kept)
    for key, memory in kept:
        if left <= max_bytes:
            return
        caches.pop(key, None)
        left -= memory.bytes


def _horizon_ms(plan: ActivePipeline, computation: str) -> int:
    """Return for how long a computation knows ids; one that does not run knows none."""
    return plan.dedup_ms(computation) if plan.has(computation) else 0


def defer_to_other_version(environment: Environment, computation: str) -> Steps[None]:
    """Leave an interval of a computation that this code does not know to who does.

    Raises:
        MissingCodeError: others know it: it runs.
    """
    [head] = yield Read([environment.names.head])
    if head is not None and environment.at(head.body).has(computation):
        environment.at(head.body).runnable(computation)


@dataclass
class LeasedInterval:
    """One that takes an interval, commits with it, and gives it up."""

    environment: Environment
    name: str
    lo: int
    owner: str = ""

    def __post_init__(self) -> None:
        self.interval, self.version = Interval(0), 0
        self.paused_at_ms = 0  # When the lease of another worker ends.
        self.head, self.head_read_ms = Head(), -float(FOREVER)
        self.inbox: dict[
            str, StoredRow
        ] = {}  # What a scan has found, and nobody has taken out yet.
        self.plan = self.environment.at(self.head)
        self.computation: Computation = self.environment.pipeline.any_version(self.name)
        self.names = self.environment.names
        self.key: Key = self.names.interval(self.name, self.lo)
        self.config = self.environment.config
        # Of a batch; less after a commit that was too large, and then never again so many.
        self.limit = self.most = self.config.max_records
        self.forwards = MAX_FORWARDED
        self.wakeups = WakeupBatcher(self.environment)
        self._new_memory()

    def _new_memory(self) -> None:
        self.store = StateStore(self.names, self.name)
        self.ids = KnownIds(self.names, self.name, self.lo, _horizon_ms(self.plan, self.name))

    # What is read

    @property
    def watermark(self) -> int:
        return self.head.inputs.get(self.name, 0)

    @property
    def reached(self) -> int:
        """The watermark that the hooks and their timers follow."""
        return self.head.timer_watermark(self.name)

    def _refresh(self) -> Steps[None]:
        """Know the watermarks, as another worker of this process has read them, or read them.

        They are only read again when they are older than they may be. An old one is only lower.
        What is sent goes by the layout of the head: never by an older one than was written under.
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

    def _apply_head(self, head: StoredRow, read_ms: float) -> None:
        """Go by a head, unless it is older than one that this worker has gone by.

        Raises:
            GoneError: the computation was detached.
            MissingCodeError: another version of it runs now, which this code does not have.
        """
        new: Head = head.body
        if (
            new.inputs.get(self.name, 0) >= self.watermark
            and new.layout_version >= self.head.layout_version
        ):
            before, self.head, self.plan = self.plan, new, self.environment.at(new)
            if self.plan is not before:  # A weak computation may stand behind another source now.
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

    # What was left behind by a split or a merge

    @property
    def retired(self) -> list[RetiredInbox]:
        return retired_within(self.head, self.name, self.lo, self.interval.hi)

    def ready(self, chunks: list[tuple[str, StoredRow]]) -> list[tuple[str, StoredRow]]:
        """Return those of its chunks that may be worked on."""
        return ready(chunks, self.watermark) if self.name in self.head.retired else chunks

    def forward(self) -> Steps[bool]:
        """Forward what has come to a left inbox; return False if there was nothing."""
        for inbox in self.retired:
            chunks = yield scan_retired(self.names, self.name, inbox, self.watermark, self.forwards)
            if chunks:
                commit, outgoing = forwarded(self.environment, self.head, self.name, chunks)
                lease_ms = self.environment.now_ms() + self.config.lease_ms
                noted = self.interval._replace(
                    layout_version=self.head.layout_version, lease_ms=lease_ms
                )
                try:
                    yield from self.commit(commit, noted)
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

    # The lease

    def take(self) -> Steps[bool]:
        """Take the interval; return False if another worker has it.

        The generation rises before the inbox is looked at.
        """
        now_ms, read_ms = self.environment.now_ms(), self.environment.elapsed_ms()
        head, found = yield Read([self.names.head, self.key])
        if not is_complete(self.environment, head):
            head = yield from read_head(self.environment)
            [found] = yield Read([self.key])
        self._apply_head(head, read_ms)
        if found is None:
            raise GoneError
        if self.environment.is_worked_on(found.body, now_ms):
            self.paused_at_ms = found.body.lease_ms
            return False
        self._restore(found)
        self.owner = self.environment.sign(self.environment.new_id())
        crash_count = found.body.crash_count + bool(found.body.owner)
        if crash_count >= CAREFUL_AFTER:
            self.limit = 1
        taken = found.body._replace(
            crash_count=crash_count,
            seq=found.body.seq + 1,
            gen=found.body.gen + 1,
            owner=self.owner,
            lease_ms=now_ms + self.config.lease_ms,
        )
        self.interval, self.version = found.body, found.version
        yield from self.commit(Commit(), taken)
        return self.interval.owner == self.owner

    def leave(self) -> Steps[bool]:
        """Give the interval up; return False if it was taken again, for something had come.

        Raises:
            OutcomeUnknownError: it may not have been given up, so nobody is woken for it: the task
                has to come again.
        """
        if not (yield from self._release()):
            raise OutcomeUnknownError
        if (yield from self._has_records()):
            return not (yield from self.take())
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
        """Leave what is left to the next task."""
        if self.interval.owner:
            yield from self._release()
            next_ = wake(self.environment, (self.name, self.lo), self.interval.gen)
            yield CreateTasks([next_])

    def _release_after_error(self) -> Steps[None]:
        """Try to give the interval up after an error, so that the next task need not wait.

        What broke the run may be the connection, which takes a second to come back. The interval
        is read first: a commit without an answer may have moved its version.
        """
        for pause_s in RELEASE_PAUSES_S:
            if pause_s:
                yield Pause(pause_s)
            try:
                [found] = yield Read([self.key])
                if found is None or not self.owner or found.body.owner != self.owner:
                    return
                free = found.body._replace(owner="", lease_ms=0)
                yield Commit(puts=[(self.key, free, found.version)])
                yield from self.wakeups.flush()
            except Exception:
                log.info("%s/%d is not given back yet", self.name, self.lo, exc_info=True)
            else:
                return

    def commit(self, commit: Commit, interval: Interval) -> Steps[bool]:
        """Commit with the interval; return False if it may have failed, and nothing is known.

        Raises:
            LostLeaseError: the interval is another worker's.
        """
        commit.puts.insert(0, (self.key, interval, self.version))
        try:
            versions = yield commit
        except (ChangedError, OutcomeUnknownError):
            yield from self._reload()
            return False
        self.interval, self.version = interval, versions[0]
        self.store.committed(commit, versions)
        self.ids.committed(interval, commit, versions)
        self._take_out(commit, versions)
        return True

    def _take_out(self, commit: Commit, versions: Sequence[int]) -> None:
        """Know the inbox without what a commit took out of it."""
        for key, _ in commit.deletes:
            if key.kind == CHUNK:
                self.inbox.pop(key.name, None)
        for (key, body, _), version in zip(commit.puts, versions, strict=False):
            if key.kind == CHUNK:
                self.inbox[key.name] = StoredRow(body, version)

    def _reload(self) -> Steps[None]:
        [found] = yield Read([self.key])
        self.paused_at_ms = found.body.lease_ms if found is not None else 0
        if found is None or found.body.owner not in (self.owner, ""):
            raise LostLeaseError
        if not found.body.owner and found.version != self.version:
            raise LostLeaseError
        self.interval, self.version = found.body, found.version
        self.inbox.clear()
        self.store.clear()
        self.ids.clear()

    def _restore(self, found: StoredRow) -> None:
        """Go on with what this process knows of the interval, if nobody has written since."""
        memory = self.environment.caches.pop(self.key, None)
        if memory is not None and memory.version == found.version:
            self.store, self.ids = memory.store, memory.ids
            self.ids.horizon_ms = _horizon_ms(self.plan, self.name)
        else:
            self._new_memory()
