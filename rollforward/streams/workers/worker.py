"""Workers: one run of one interval, from its lease to its release.

Each round gathers a batch, runs the hooks, and commits once: the interval with its counts and its
lease, the slabs that were touched, the chunks that are taken out of its inbox, those that go into
the inboxes of others. All of these name the versions that they expect, so a worker whose interval
was taken by another one writes nothing any more (the sequencer of the paper, 7.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rollforward.streams.exchange.forwarding import ready
from rollforward.streams.exchange.inline import InlineRun, sum_counts
from rollforward.streams.exchange.outgoing import Outgoing
from rollforward.streams.exchange.wakeups import schedule_wakeup, wake, wake_intervals
from rollforward.streams.execution.bundle_runner import MAX_FIRED, run_bundle
from rollforward.streams.execution.quarantine import (
    MAX_CRASHES,
    blame_records,
    first_due,
    quarantine,
)
from rollforward.streams.model.bundle import Effects, Failure, KeyedRecord
from rollforward.streams.model.key_state import NOTHING
from rollforward.streams.scaling.autosplit import split_if_full, split_if_large
from rollforward.streams.scaling.load_meter import LoadMeter
from rollforward.streams.scaling.yielding import should_yield
from rollforward.streams.storage.inbox import Bundle, gather, has_ids
from rollforward.streams.storage.layout import Inbox
from rollforward.streams.storage.remote_calls import (
    Commit,
    CreateTasks,
    Pause,
    Steps,
    StoredRow,
    TooLargeError,
    UnworkableError,
)
from rollforward.streams.storage.schema import MAX_LEASE_MS, DeadRow, InboxRecord, Interval
from rollforward.streams.workers.inbox_reader import InboxReader
from rollforward.streams.workers.lease import (
    CAREFUL_AFTER,
    GoneError,
    LeasedInterval,
    LostLeaseError,
)

MIN_WAIT_MS = 1_000
MAX_GATHER_S = 0.1
LARGE_BATCH = 100  # Records.
# In memory for one batch: slabs with timers that fire, and large states.
MAX_DUE_SLABS, MAX_LOADED_BYTES = 400, 64_000_000


class RunResult(Enum):
    """How a run has ended."""

    DONE = "done"
    LEASED = "leased"  # Another worker has the interval: a task looks after it.


class Worker(LeasedInterval):
    """One run of one interval of a computation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meter = LoadMeter(self.environment.elapsed_ms)
        self.reader = InboxReader(self.config, self.names, self.name)
        self.round_ms = 0.0
        self.is_behind = True  # More may be waiting than the last batch had.
        self.was_large = False  # The last batch.
        # Through weak computations, if there are any; not after a commit that was too large.
        versions = self.environment.pipeline.versions.values()
        self.passes = any(each.weak for each in versions)

    # A run

    def run(self) -> Steps[RunResult]:
        """Work until there is nothing to do, or for some time."""
        ended = RunResult.DONE
        try:
            if not (yield from self.take()):
                yield from self._schedule_takeover()
                return RunResult.LEASED
            yield from self._work()
        except LostLeaseError:
            yield from self._schedule_takeover()
            ended = RunResult.LEASED
        except GoneError:
            yield from wake_intervals(self.environment, [(self.name, self.lo)])
            return RunResult.DONE
        except MemoryError:
            raise  # With its lease, as one that dies.
        except Exception:
            yield from self._release_after_error()
            raise
        self.wakeups.schedule((), tick=True)
        yield from self.wakeups.flush()
        return ended

    def _work(self) -> Steps[None]:
        began_ms, idle = self.environment.elapsed_ms(), 0
        while True:
            self.round_ms = self.environment.elapsed_ms()
            if (yield from self.step()):
                idle = 0
                yield from self._split_if_needed()
                if not self._is_over(began_ms):
                    yield from self._gather()
            else:
                yield from self.wakeups.flush()
                if idle < len(self.config.linger) and not should_yield(self.environment, self.head):
                    inbox = self.names.inbox(self.name, self.lo, self.interval.created_in)
                    yield Pause(self.config.linger[idle], inbox)
                    idle += 1
                elif (yield from self.leave()):
                    return
            if self._is_over(began_ms):
                yield from self._yield_interval()
                return

    def _is_over(self, began_ms: float) -> bool:
        """Return whether another task is to go on here, or first of all elsewhere."""
        ran_ms = self.environment.elapsed_ms() - began_ms
        if ran_ms > self.config.give_way_ms and not self.is_behind:
            return ran_ms > self.config.run_ms or should_yield(self.environment, self.head)
        return ran_ms > self.config.run_ms

    def _gather(self) -> Steps[None]:
        """Let more come before the next batch, if this one had all that waited.

        Where a batch takes long, for much else is done there, it waits for half as long: so
        commits of more records are fewer. After a batch of many records it waits twice as long.
        """
        took_s = (self.environment.elapsed_ms() - self.round_ms) / 1000
        gather_s = self.config.gather_s * (2 if self.was_large else 1)
        wait_s = min(max(gather_s - took_s, took_s / 2), MAX_GATHER_S)
        if gather_s and not self.is_behind:
            yield Pause(wait_s)

    def _split_if_needed(self) -> Steps[None]:
        """Split the interval, if it has had too much to do for a while, or has too many slabs."""
        split = yield from split_if_large(self.environment, self.head, self.name, self.interval)
        if not split and self.meter.end_period(self.environment.now_ms()):
            split = yield from split_if_full(self.environment, self.head, self.name, self.meter)
        if split:
            yield from self._reload()

    def _schedule_takeover(self) -> Steps[None]:
        """Have a task look at the interval when the lease of its worker ends: that one may be dead.

        It is a task of its own: if this one failed, to be tried again, its queue would be slowed.
        Those that look in the same second share one, and it looks in another second than they do.
        """
        now_ms = self.environment.now_ms()
        left_s = min(max(self.paused_at_ms - now_ms, MIN_WAIT_MS), MAX_LEASE_MS) / 1000
        why = "held", self.paused_at_ms, now_ms // 1000
        next_ = wake(self.environment, (self.name, self.lo), self.interval.gen, *why)
        yield CreateTasks([next_._replace(delay_s=left_s)])

    # A round

    def step(self) -> Steps[bool]:
        """Work on one batch; return False if there was nothing to do.

        The watermark is read before the inbox: so what is in there can only be in time for it.
        """
        yield from self._refresh()
        self.is_behind = True
        if (yield from self.forward()):
            return True
        now_ms = self.environment.now_ms()
        slabs = [
            slab.lo
            for slab in self.interval.slabs
            if slab.due <= self.reached or slab.processing_due <= now_ms
        ]
        chunks = self.ready(list(self.inbox.items()))
        if not chunks:
            inbox = Inbox(self.interval.created_in, self.lo)
            found, late = yield from self.reader.read(inbox, self.watermark, self.limit)
            self.inbox = {**dict(ready(late, self.watermark)), **dict(found)}
            chunks = self.ready(list(self.inbox.items()))
        if not chunks and not slabs:
            return False
        if len(slabs) > MAX_DUE_SLABS:  # No record comes before the timers of the others.
            slabs, chunks = slabs[:MAX_DUE_SLABS], []
        self.store.evict(self.interval, self.config.cache_bytes)
        yield from self._load_ids(chunks)
        yield from self.store.load(self.interval, (), slabs)
        due = self.store.due(slabs, self.reached, now_ms)
        try:
            yield from self._process_bundle(chunks, due, now_ms)
        except UnworkableError as error:
            yield from self._shrink_bundle(error, chunks, due, now_ms)
        else:
            self.limit = min(2 * self.limit, self.most)
        return True

    def _load_ids(self, chunks: Sequence[tuple[str, StoredRow]]) -> Steps[None]:
        """Know what was accepted before, if something of some chunks may have been."""
        if has_ids(chunks):
            now_ms = self.environment.now_ms()
            yield from self.ids.load(self.interval, now_ms)
            self.ids.expire(self.interval, now_ms)

    def _process_bundle(
        self, chunks: Sequence[tuple[str, StoredRow]], due: Sequence[str], now_ms: int
    ) -> Steps[None]:
        """Gather a batch, run its hooks, and commit it.

        Raises:
            UnworkableError: nothing was committed.
        """
        with blame_records():
            batch = gather(chunks, self.ids.accepted, self._max_inputs(due))
        keys = dict.fromkeys([*due[: self.limit], *[each.key for each in batch.inputs]])
        yield from self.store.load(self.interval, keys, (), max_bytes=MAX_LOADED_BYTES)
        if not (yield from self._note_suspect(batch, due, now_ms)):
            return
        with blame_records():
            effects = self._process(batch.inputs, due, now_ms)
        yield from self._finish(batch, effects)

    def _note_suspect(self, batch: Bundle, due: Sequence[str] = (), now_ms: int = 0) -> Steps[bool]:
        """Note what is worked on alone next, if workers have died: deaths count against that.

        An older record may come, and stand before the one that kills. Returns False if the note may
        not have been made.
        """
        if self.interval.crash_count < CAREFUL_AFTER or not (due or batch.inputs):
            return True
        if due:
            state = self.store.state(self.interval, due[0])
            suspect = f"{due[0]} {first_due(state, self.reached, now_ms)}"
        else:
            suspect = batch.name_of(0)
        if suspect == self.interval.crash_suspect:
            return True
        noted = self.interval._replace(
            crash_suspect=suspect,
            crash_count=CAREFUL_AFTER,
            lease_ms=self.environment.now_ms() + self.config.lease_ms,
        )
        return (yield from self.commit(Commit(), noted))

    def _max_inputs(self, due: Sequence[str]) -> int:
        """Return how many records one batch may have beside keys that are due.

        As long as timers are left, no record comes before them.
        """
        return 0 if len(due) > self.limit or (due and self.limit == 1) else self.limit

    def _shrink_bundle(
        self,
        error: UnworkableError,
        chunks: Sequence[tuple[str, StoredRow]],
        due: Sequence[str],
        now_ms: int,
    ) -> Steps[None]:
        """Have the next batch be a smaller one, because nobody could work on this one.

        What was alone in it is given up, and goes with the text that it came with.
        """
        if self.passes:
            self.passes = False
        elif self.limit > 1:
            if isinstance(error, TooLargeError):
                self.most = max(1, self.limit // 2)
            self.limit = max(1, self.limit // 4)
        else:
            self.environment.warn(f"{self.name} gives up what nobody can work on: {error}")
            most = self._max_inputs(due)
            batch = gather(chunks, self.ids.accepted, most, are_decoded=False)
            effects = self._quarantined(
                batch.inputs, due, now_ms, str(error) or type(error).__name__
            )
            if effects is None:
                raise error
            yield from self._finish(batch, effects)
            self.most = self.config.max_records

    def _quarantined(
        self, inputs: Sequence[KeyedRecord], due: Sequence[str], now_ms: int, *error: str
    ) -> Effects | None:
        state = self.store.state(self.interval, due[0]) if due else NOTHING
        return quarantine(due, state, inputs, self.reached, now_ms, *error)

    def _process(self, inputs: Sequence[KeyedRecord], due: Sequence[str], now_ms: int) -> Effects:
        """Return what some timers and records lead to; what its workers do not survive is dead."""
        if self.interval.crash_count >= MAX_CRASHES and (due or inputs):
            given_up = self._quarantined(inputs, due, now_ms)
            if given_up is not None:
                return given_up
        return self._run_hooks(inputs, due[: self.limit], now_ms)

    def _run_hooks(self, inputs: Sequence[KeyedRecord], due: Sequence[str], now_ms: int) -> Effects:
        elapsed_ms, hooks_ms = self.environment.elapsed_ms, self.config.hooks_ms
        began_ms = elapsed_ms()
        keys = dict.fromkeys([*due, *[each.key for each in inputs]])
        return run_bundle(
            self.computation,
            self.store.states(self.interval, keys),
            inputs,
            watermark=self.reached,
            now_ms=now_ms,
            due=due,
            route=self.plan.graph.route,
            is_over=lambda: elapsed_ms() - began_ms > hooks_ms,
            max_fired=MAX_FIRED if self.limit >= self.config.max_records else self.limit,
        )

    def _finish(self, batch: Bundle, effects: Effects) -> Steps[None]:
        """Commit a batch, then wake those who got something."""
        commit, outgoing, processing_due = (
            Commit(),
            Outgoing(self.environment, self.head),
            self.interval.processing_due,
        )
        with blame_records():
            interval = self._build_commit(batch, effects, commit, outgoing)
            commit.inserts += outgoing.inserts()
        commit_ms = self.environment.elapsed_ms()
        # Also when it is not known whether the commit was applied: a ring can do no harm.
        self.wakeups.schedule(outgoing.destinations)
        yield from self.commit(commit, interval)
        now_ms = self.environment.elapsed_ms()
        keys = [each.key for each in batch.inputs[: effects.consumed]]
        is_behind = self.reader.is_full or batch.is_cut(effects.consumed)
        self.meter.round(now_ms - self.round_ms, now_ms - commit_ms, keys, behind=is_behind)
        self.is_behind = is_behind or self.interval.due <= self.reached
        self.was_large = effects.consumed >= LARGE_BATCH
        yield from self.wakeups.flush_if_due()
        if self.interval.processing_due != processing_due:
            yield from schedule_wakeup(
                self.environment, (self.name, self.lo), self.interval.processing_due
            )

    def _build_commit(
        self, batch: Bundle, effects: Effects, commit: Commit, outgoing: Outgoing
    ) -> Interval:
        """Add to a commit and its mail what a batch leads to; return the interval as it is then."""
        now_ms, was, counts = self.environment.now_ms(), self.interval, effects.counts
        inline = InlineRun(self.environment, self.head, outgoing, is_open=self._may_inline())
        inline.produce(effects.productions)
        inline.end()
        inline.spill(())  # What a worker writes leaves behind its commit.
        unkeyed = outgoing.dead
        for failure in effects.failures:
            outgoing.add_dead_letter(self._dead(failure, now_ms))
        repeated, accepted = batch.take(effects.consumed, commit)
        slabs = self.store.change(was, effects.keys, commit)
        ids = self.ids.change(was, accepted, now_ms, commit) if accepted else was.ids
        return was._replace(
            lease_ms=now_ms + self.config.lease_ms,
            layout_version=self.head.layout_version,
            load=self.meter.load_after(was.load),
            crash_count=0,
            crash_suspect="",
            slabs=slabs,
            ids=ids,
            records=was.records + counts.records,
            late=was.late + counts.late,
            late_between_parts=was.late_between_parts + counts.late_between_parts,
            dead=was.dead + counts.dead,
            repeated=was.repeated + repeated,
            fired=was.fired + counts.timers,
            produced=was.produced + counts.produced,
            unkeyed=was.unkeyed + unkeyed,
            inlined=sum_counts(was.inlined, inline.inlined),
        )

    def _may_inline(self) -> bool:
        """Return whether this worker runs others' hooks: one may have killed those before it."""
        return self.passes and self.interval.crash_count < CAREFUL_AFTER

    def _dead(self, failure: Failure, now_ms: int) -> DeadRow:
        what = failure.input
        if isinstance(what, KeyedRecord):
            letter = InboxRecord(what.key, what.timestamp_ms, what.stream, what.id, what.text)
            return DeadRow(self.name, failure.key, failure.error, now_ms, letter)
        tag, timer = what
        return DeadRow(
            self.name, failure.key, failure.error, now_ms,
            tag=tag, timestamp_ms=timer.at_ms, is_processing_time=timer.is_processing_time,
            hold=timer.hold,
        )  # fmt: skip
