"""Workers: one run of one interval, from its lease to its release.

Each round gathers a batch, runs the hooks, and commits once: the interval with its counts and its
lease, the slabs that were touched, the chunks that are taken out of its inbox, those that go into
the inboxes of others. All of these name the versions that they expect, so a worker whose interval
was taken by another one writes nothing any more (the sequencer of the paper, 7.3).

A worker that does not know what became of its commit reads its interval. If that is still its own
it goes on from what it finds there, with nothing in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from pipelines.streams.batch import run_batch
from pipelines.streams.calls import (
    ChangedError,
    Commit,
    Create,
    Found,
    Key,
    OutcomeUnknownError,
    Pause,
    Read,
    Scan,
    Steps,
)
from pipelines.streams.computation import Computation
from pipelines.streams.environment import Environment
from pipelines.streams.ids import KnownIds
from pipelines.streams.inbox import Batch, gather, has_ids
from pipelines.streams.injection import read_head
from pipelines.streams.keys import Effects, Failure, Input
from pipelines.streams.mail import Mail, ring, ring_at, ring_tick, wake
from pipelines.streams.records import FOREVER, value_text
from pipelines.streams.rows import CHUNK, DeadRow, Head, Interval, Letter
from pipelines.streams.shelf import Shelf

# Rows of states that a process keeps of one interval.
MAX_REMEMBERED = 500


class Ended(Enum):
    """How a run has ended."""

    DONE = "done"
    LEASED = "leased"  # Another worker has the interval: the task has to come again.


class LostLeaseError(Exception):
    """The interval is another worker's now."""


class GoneError(Exception):
    """There is no such interval: it was deleted."""


@dataclass
class Memory:
    """What is known of an interval since a commit: good as long as that is its last one."""

    version: int
    shelf: Shelf
    ids: KnownIds


@dataclass
class Worker:
    """One run of one interval of a computation."""

    environment: Environment
    name: str
    lo: int
    memories: dict[tuple[str, int], Memory] = field(default_factory=dict)
    owner: str = ""

    def __post_init__(self) -> None:
        self.interval, self.version = Interval(0), 0
        self.head, self.head_read_ms = Head(), -float(FOREVER)
        pipeline = self.environment.pipeline
        self.computation: Computation = pipeline.computations[self.name]
        self.names = self.environment.names
        self.key: Key = self.names.interval(self.name, self.lo)
        self.pace = self.environment.pace
        self._new_memory()

    def _new_memory(self) -> None:
        names = self.names
        horizon_ms = self.environment.pipeline.dedup_ms(self.name)
        self.shelf = Shelf(names, self.name)
        self.ids = KnownIds(names, self.name, self.lo, horizon_ms)

    # A run

    def run(self) -> Steps[Ended]:
        """Work until there is nothing to do, or for some time."""
        try:
            if not (yield from self.take()):
                return Ended.LEASED
            yield from self._work()
        except LostLeaseError:
            return Ended.LEASED
        except GoneError:
            return Ended.DONE
        except Exception:
            yield from self._give_back()
            raise
        yield from ring_tick(self.environment)
        return Ended.DONE

    def _work(self) -> Steps[None]:
        began_ms, idle = self.environment.elapsed_ms(), 0
        while True:
            if (yield from self.step()):
                idle = 0
            elif idle < len(self.pace.linger):
                yield Pause(self.pace.linger[idle])
                idle += 1
            elif (yield from self.leave()):
                return
            if self.environment.elapsed_ms() - began_ms > self.pace.run_ms:
                yield from self._hand_on()
                return

    # A round

    def step(self) -> Steps[bool]:
        """Work on one batch; return False if there was nothing to do.

        The watermark is read before the inbox: so what is in there can only be in time for it.
        """
        yield from self._refresh()
        now_ms = self.environment.now_ms()
        slabs = [
            slab.lo
            for slab in self.interval.slabs
            if slab.due <= self.watermark or slab.wall <= now_ms
        ]
        chunks = yield self._scan(self.pace.max_chunks)
        if not chunks and not slabs:
            return False
        if len(self.shelf.rows) > MAX_REMEMBERED:
            self.shelf.clear()
        if has_ids(chunks):
            yield from self.ids.load(self.interval)
            self.ids.expire(self.interval, now_ms)
        batch = gather(chunks, self.ids.seen, self.pace.max_records)
        yield from self.shelf.load(self.interval, (), slabs)
        due = self.shelf.due(slabs, self.watermark, now_ms)
        yield from self.shelf.load(self.interval, [*due, *(each.key for each in batch.inputs)], ())
        effects = self._run_hooks(batch, due, now_ms)
        yield from self._finish(batch, effects)
        return True

    def _run_hooks(self, batch: Batch, due: Sequence[str], now_ms: int) -> Effects:
        began_ms = self.environment.elapsed_ms()
        keys = dict.fromkeys([*due, *(each.key for each in batch.inputs)])
        return run_batch(
            self.computation,
            {key: self.shelf.state(self.interval, key) for key in keys},
            batch.inputs,
            watermark=self.watermark,
            now=now_ms,
            due=due,
            route=self.environment.pipeline.graph.route,
            is_over=lambda: self.environment.elapsed_ms() - began_ms > self.pace.hooks_ms,
        )

    def _finish(self, batch: Batch, effects: Effects) -> Steps[None]:
        """Commit a batch, then wake those who got something."""
        commit, mail, wall = Commit(), Mail(self.environment, self.head), self.interval.wall
        interval = self._outcome(batch, effects, commit, mail)
        commit.inserts += mail.inserts()
        yield from self.commit(commit, interval)
        # Also when it is not known whether the commit was applied: a ring can do no harm.
        yield from ring(self.environment, mail.destinations)
        if self.interval.wall < wall:
            yield from ring_at(self.environment, (self.name, self.lo), self.interval.wall)

    def _outcome(self, batch: Batch, effects: Effects, commit: Commit, mail: Mail) -> Interval:
        """Add to a commit and its mail what a batch leads to; return the interval as it is then."""
        now_ms, was, counts = self.environment.now_ms(), self.interval, effects.counts
        for production in effects.productions:
            mail.produce(production)
        unkeyed = mail.dead
        for failure in effects.failures:
            mail.bury(self._dead(failure, now_ms))
        repeated, accepted = batch.take(effects.taken, commit)
        slabs = self.shelf.change(was, effects.keys, commit)
        ids = self.ids.change(was, accepted, now_ms, commit) if accepted else was.ids
        return was._replace(
            lease_ms=now_ms + self.pace.lease_ms,
            slabs=slabs,
            ids=ids,
            records=was.records + counts.records,
            late=was.late + counts.late,
            dead=was.dead + counts.dead,
            repeated=was.repeated + repeated,
            fired=was.fired + counts.timers,
            produced=was.produced + counts.produced,
            unkeyed=was.unkeyed + unkeyed,
        )

    def _dead(self, failure: Failure, now_ms: int) -> DeadRow:
        what = failure.what
        if isinstance(what, Input):
            letter = Letter(what.key, what.at, what.stream, what.id, value_text(what.value))
            return DeadRow(self.name, failure.key, failure.error, now_ms, letter)
        tag, timer = what
        return DeadRow(self.name, failure.key, failure.error, now_ms, tag=tag, at=timer.at)

    # What is read

    @property
    def watermark(self) -> int:
        return self.head.inputs.get(self.name, 0)

    def _refresh(self) -> Steps[None]:
        """Read the watermarks, if they are older than they may be. An old one is only lower."""
        if self.environment.elapsed_ms() - self.head_read_ms > self.pace.watermark_ms:
            [head] = yield Read([self.names.head])
            self._see_head(head)

    def _see_head(self, head: Found) -> None:
        self.head, self.head_read_ms = head.body, self.environment.elapsed_ms()

    def _scan(self, limit: int) -> Scan:
        low, high = self.names.inbox_range(self.name, self.lo, self.watermark)
        return Scan(CHUNK, low, high, limit)

    # The lease

    def take(self) -> Steps[bool]:
        """Take the interval; return False if another worker has it.

        The generation rises before the inbox is looked at.
        """
        now_ms = self.environment.now_ms()
        self._see_head((yield from read_head(self.environment)))
        [found] = yield Read([self.key])
        if found is None:
            raise GoneError
        if found.body.is_held(now_ms):
            return False
        self._remember(found)
        self.owner = self.environment.new_id()
        taken = found.body._replace(
            seq=found.body.seq + 1,
            gen=found.body.gen + 1,
            owner=self.owner,
            lease_ms=now_ms + self.pace.lease_ms,
        )
        self.interval, self.version = found.body, found.version
        yield from self.commit(Commit(), taken)
        return self.interval.owner == self.owner

    def leave(self) -> Steps[bool]:
        """Give the interval up; return False if it was taken again, for something had come."""
        yield from self._release()
        if (yield self._scan(1)):
            return not (yield from self.take())
        return True

    def _release(self) -> Steps[None]:
        free = self.interval._replace(owner="", lease_ms=0)
        if (yield from self.commit(Commit(), free)) and len(self.shelf.rows) <= MAX_REMEMBERED:
            self.memories[self.name, self.lo] = Memory(self.version, self.shelf, self.ids)

    def _hand_on(self) -> Steps[None]:
        """Leave what is left to the next task."""
        if self.interval.owner:
            yield from self._release()
            next_ = wake(self.environment, (self.name, self.lo), self.interval.gen)
            yield Create([next_])

    def _give_back(self) -> Steps[None]:
        """Try to give the interval up after an error, so that the next task need not wait."""
        if not self.interval.owner or self.interval.owner != self.owner:
            return
        free = self.interval._replace(owner="", lease_ms=0)
        try:
            yield Commit(puts=[(self.key, free, self.version)])
        except Exception:
            return  # The lease ends by itself.

    def commit(self, commit: Commit, interval: Interval) -> Steps[bool]:
        """Commit with the interval; return False if it may have failed, and nothing is known.

        Raises:
            LostLeaseError: the interval is another worker's.
        """
        commit.puts.insert(0, (self.key, interval, self.version))
        try:
            versions = yield commit
        except (ChangedError, OutcomeUnknownError):
            yield from self._look_again()
            return False
        self.interval, self.version = interval, versions[0]
        self.shelf.committed(commit, versions)
        self.ids.committed(interval, commit, versions)
        return True

    def _look_again(self) -> Steps[None]:
        [found] = yield Read([self.key])
        if found is None or found.body.owner not in (self.owner, ""):
            raise LostLeaseError
        if not found.body.owner and found.version != self.version:
            raise LostLeaseError
        self.interval, self.version = found.body, found.version
        self.shelf.clear()
        self.ids.clear()

    def _remember(self, found: Found) -> None:
        """Go on with what this process knows of the interval, if nobody has written since."""
        memory = self.memories.pop((self.name, self.lo), None)
        if memory is not None and memory.version == found.version:
            self.shelf, self.ids = memory.shelf, memory.ids
        else:
            self._new_memory()
