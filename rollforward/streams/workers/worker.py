"""Workers: one run of one interval, from its lease to its release.

A worker processes one bundle after another: it gathers records, runs the hooks, and commits once.
The commit holds the interval with its counts and its lease, the touched slabs, the consumed chunks
and the emitted chunks. Each of these rows names its expected version.
So a worker that has lost its interval writes nothing any more (the sequencer of the paper, 7.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rollforward.streams.exchange.forwarding import ready
from rollforward.streams.exchange.inline import InlineRun, sum_counts
from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.exchange.wakeups import schedule_wakeup, wake, wake_intervals
from rollforward.streams.execution.bundle_runner import MAX_FIRED, run_bundle
from rollforward.streams.execution.quarantine import (
    MAX_CRASHES,
    find_culprit,
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
from rollforward.streams.workers.inbox_reader import InboxReader, bundle_span
from rollforward.streams.workers.lease import (
    CAREFUL_AFTER,
    GoneError,
    LeasedInterval,
    LostLeaseError,
)

MIN_WAIT_MS = 1_000
MAX_LINGER_S = 0.1
LARGE_BUNDLE = 100  # Records.
# In memory for one bundle: slabs with due timers, and large states.
MAX_DUE_SLABS, MAX_LOADED_BYTES = 400, 64_000_000


class RunResult(Enum):
    """Outcome of a run."""

    DONE = "done"
    LEASED = "leased"  # Another worker has the interval; a task will check its lease.


class Worker(LeasedInterval):
    """One run of one interval of a computation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meter = LoadMeter(self.environment.elapsed_ms)
        self.reader = InboxReader(self.config, self.names, self.name)
        self.round_ms = self.hooks_ms = 0.0
        self.is_behind = True  # The inbox may have more records than the last bundle took.
        self.was_large = False  # The last bundle.
        # Whether weak computations run inline, if there are any; not after an oversized commit.
        versions = self.environment.pipeline.versions.values()
        self.inlines = any(computation.weak for computation in versions)

    # Run

    def run(self) -> Steps[RunResult]:
        """Work until the inbox is empty, or for some time."""
        result = RunResult.DONE
        try:
            if not (yield from self.acquire()):
                yield from self._schedule_takeover()
                return RunResult.LEASED
            yield from self._work()
        except LostLeaseError:
            yield from self._schedule_takeover()
            result = RunResult.LEASED
        except GoneError:
            yield from wake_intervals(self.environment, [(self.name, self.lo)])
            return RunResult.DONE
        except MemoryError:
            raise  # The lease stays, as if the worker had died.
        except Exception:
            yield from self._release_after_error()
            raise
        self.wakeups.schedule((), tick=True)
        yield from self.wakeups.flush()
        return result

    def _work(self) -> Steps[None]:
        began_ms, idle = self.environment.elapsed_ms(), 0
        while True:
            self.round_ms, self.hooks_ms = self.environment.elapsed_ms(), 0.0
            if (yield from self.step()):
                idle = 0
                yield from self._split_if_needed()
                if not self._is_over(began_ms):
                    yield from self._linger()
            else:
                yield from self.wakeups.flush()
                if idle < len(self.config.linger) and not should_yield(self.environment, self.head):
                    yield Pause(self.config.linger[idle], _inbox_of(self))
                    idle += 1
                elif (yield from self.release()):
                    return
            if self._is_over(began_ms):
                yield from self._yield_interval()
                return

    def _is_over(self, began_ms: float) -> bool:
        """Return whether to yield: the time is up, or an interval without a worker waits."""
        ran_ms = self.environment.elapsed_ms() - began_ms
        if ran_ms > self.config.give_way_ms and not self.is_behind:
            return ran_ms > self.config.run_ms or should_yield(self.environment, self.head)
        return ran_ms > self.config.run_ms

    def _linger(self) -> Steps[None]:
        """Linger before the next bundle if this one drained the inbox.

        After a bundle of a few records the next chunk ends the pause: records that arrive during a
        commit share the next one anyway. After one of many records, more of them are awaited:
        half of the last bundle's duration if bundles are slow (a busy machine), for fewer and
        larger commits.
        """
        if not self.config.gather_s or self.is_behind:
            return
        if not self.was_large:
            yield Pause(self.config.gather_s, _inbox_of(self))
            return
        took_s = (self.environment.elapsed_ms() - self.round_ms) / 1000
        yield Pause(min(max(2 * self.config.gather_s - took_s, took_s / 2), MAX_LINGER_S))

    def _split_if_needed(self) -> Steps[None]:
        """Split the interval if it was overloaded for a while, or has too many slabs."""
        split = yield from split_if_large(self.environment, self.head, self.name, self.interval)
        if not split and self.meter.end_period(self.environment.now_ms()):
            split = yield from split_if_full(self.environment, self.head, self.name, self.meter)
        if split:
            yield from self._reload()

    def _schedule_takeover(self) -> Steps[None]:
        """Create a task for the end of the other worker's lease: that worker may be dead.

        A new task is better than a retry of this one, since a failure would slow the queue. Tasks
        of the same second share one name, and the task itself runs in another second.
        """
        now_ms = self.environment.now_ms()
        delay_s = min(max(self.lease_ends_ms - now_ms, MIN_WAIT_MS), MAX_LEASE_MS) / 1000
        suffix = "held", self.lease_ends_ms, now_ms // 1000
        task = wake(self.environment, (self.name, self.lo), self.interval.gen, *suffix)
        yield CreateTasks([task._replace(delay_s=delay_s)])

    # Bundle

    def step(self) -> Steps[bool]:
        """Process one bundle; return False if there was nothing to do.

        The watermark is read before the inbox, so every record there was on time for it. After a
        bundle that has drained the inbox, the first look into it may be one into memory.
        """
        yield from self._refresh()
        has_drained, self.is_behind = not self.is_behind, True
        if (yield from self.forward()):
            return True
        now_ms = self.environment.now_ms()
        slabs = [
            slab.lo
            for slab in self.interval.slabs
            if slab.due <= self.timer_watermark or slab.processing_due <= now_ms
        ]
        chunks = self.ready(list(self.inbox.items()))
        if not chunks:
            inbox = Inbox(self.interval.created_in, self.lo)
            read, late = yield from self.reader.read(
                *(inbox, self.watermark, self.limit),
                allow_empty=has_drained,
                takes_offers=_takes_offers(self, now_ms),
            )
            self.inbox = {**dict(ready(late, self.watermark)), **dict(read)}
            chunks = self.ready(list(self.inbox.items()))
        if not chunks and not slabs:
            return False
        if len(slabs) > MAX_DUE_SLABS:  # The timers of all slabs fire before the next record.
            slabs, chunks = slabs[:MAX_DUE_SLABS], []
        self.store.evict(self.interval, self.config.cache_bytes)
        yield from self._load_ids(chunks)
        yield from self.store.load(self.interval, (), slabs)
        due = self.store.due(slabs, self.timer_watermark, now_ms)
        try:
            yield from self._process_bundle(chunks, due, now_ms)
        except UnworkableError as error:
            yield from self._shrink_bundle(error, chunks, due, now_ms)
        else:
            self.limit = min(2 * self.limit, self.max_limit)
        return True

    def _load_ids(self, chunks: Sequence[tuple[str, StoredRow]]) -> Steps[None]:
        """Load the known ids if a record of some chunks has one."""
        if has_ids(chunks):
            now_ms = self.environment.now_ms()
            yield from self.ids.load(self.interval, now_ms)
            self.ids.expire(self.interval, now_ms)

    def _process_bundle(
        self, chunks: Sequence[tuple[str, StoredRow]], due: Sequence[str], now_ms: int
    ) -> Steps[None]:
        """Gather a bundle, run its hooks, and commit it.

        After crashes a record is noted before its codec runs, which may be what kills workers.

        Raises:
            UnworkableError: nothing was committed.
        """
        is_noted = self.interval.crash_count >= CAREFUL_AFTER
        with find_culprit():
            bundle = self._gather(chunks, due, are_decoded=not is_noted)
        keys = dict.fromkeys([*due[: self.limit], *[input_.key for input_ in bundle.inputs]])
        with bundle_span(self.environment.pipeline.name, self.name, bundle):
            yield from self.store.load(self.interval, keys, (), max_bytes=MAX_LOADED_BYTES)
            if not (yield from self._note_suspect(bundle, due, now_ms)):
                return
            with find_culprit():
                if is_noted and self.interval.crash_count < MAX_CRASHES:
                    bundle = self._gather(chunks, due)
                effects = self._process(bundle.inputs, due, now_ms)
            yield from self._finish(bundle, effects)

    def _gather(
        self,
        chunks: Sequence[tuple[str, StoredRow]],
        due: Sequence[str],
        *,
        are_decoded: bool = True,
    ) -> Bundle:
        """Return the next bundle of some chunks."""
        codecs, limit = self.environment.pipeline.codecs, _max_inputs(self.limit, due)
        return gather(chunks, self.ids.accepted, limit, codecs, are_decoded=are_decoded)

    def _note_suspect(
        self, bundle: Bundle, due: Sequence[str] = (), now_ms: int = 0
    ) -> Steps[bool]:
        """Note which timer or record is processed next, if workers have crashed.

        Crashes count against it even if an older record arrives before it. Returns False if the
        note may be missing.
        """
        if self.interval.crash_count < CAREFUL_AFTER or not (due or bundle.inputs):
            return True
        if due:
            state = self.store.state(self.interval, due[0])
            suspect = f"{due[0]} {first_due(state, self.timer_watermark, now_ms)}"
        else:
            suspect = bundle.name_of(0)
        if suspect == self.interval.crash_suspect:
            return True
        interval = self.interval._replace(
            crash_suspect=suspect,
            crash_count=CAREFUL_AFTER,
            lease_ms=self.environment.now_ms() + self.config.lease_ms,
        )
        return (yield from self.commit(Commit(), interval))

    def _shrink_bundle(
        self,
        error: UnworkableError,
        chunks: Sequence[tuple[str, StoredRow]],
        due: Sequence[str],
        now_ms: int,
    ) -> Steps[None]:
        """Shrink the next bundle after a failure; quarantine a single record or timer.

        A quarantined record keeps the text that it arrived with.
        """
        if self.inlines:
            self.inlines = False
        elif self.limit > 1:
            if isinstance(error, TooLargeError):
                self.max_limit = max(1, self.limit // 2)
            self.limit = max(1, self.limit // 4)
        else:
            self.environment.warn(f"{self.name} quarantines a record or timer: {error}")
            bundle = self._gather(chunks, due, are_decoded=False)
            text = str(error) or type(error).__name__
            effects = self._quarantined(bundle.inputs, due, now_ms, text)
            if effects is None:
                raise error
            yield from self._finish(bundle, effects)
            self.max_limit = self.config.max_records

    def _quarantined(
        self, inputs: Sequence[KeyedRecord], due: Sequence[str], now_ms: int, *error: str
    ) -> Effects | None:
        state = self.store.state(self.interval, due[0]) if due else NOTHING
        return quarantine(due, state, inputs, self.timer_watermark, now_ms, *error)

    def _process(self, inputs: Sequence[KeyedRecord], due: Sequence[str], now_ms: int) -> Effects:
        """Run the hooks, or quarantine the first timer or record after too many crashes."""
        if self.interval.crash_count >= MAX_CRASHES and (due or inputs):
            quarantined = self._quarantined(inputs, due, now_ms)
            if quarantined is not None:
                return quarantined
        return self._run_hooks(inputs, due[: self.limit], now_ms)

    def _run_hooks(self, inputs: Sequence[KeyedRecord], due: Sequence[str], now_ms: int) -> Effects:
        elapsed_ms, hooks_ms = self.environment.elapsed_ms, self.config.hooks_ms
        began_ms = elapsed_ms()
        keys = dict.fromkeys([*due, *[input_.key for input_ in inputs]])
        effects = run_bundle(
            self.computation,
            self.store.states(self.interval, keys),
            inputs,
            watermark=self.timer_watermark,
            now_ms=now_ms,
            due=due,
            route=self.plan.graph.route,
            codecs=self.environment.pipeline.codecs,
            is_over=lambda: elapsed_ms() - began_ms > hooks_ms,
            max_fired=MAX_FIRED if self.limit >= self.config.max_records else self.limit,
        )
        self.hooks_ms = elapsed_ms() - began_ms
        return effects

    def _finish(self, bundle: Bundle, effects: Effects) -> Steps[None]:
        """Commit a bundle, then wake the readers of its output."""
        commit, outgoing = Commit(), Outbound(self.environment, self.head)
        processing_due = self.interval.processing_due
        with find_culprit():
            interval = self._build_commit(bundle, effects, commit, outgoing)
            commit.inserts += outgoing.inserts()
        commit_ms = self.environment.elapsed_ms()
        # A wake-up is harmless, so it is scheduled even if the commit's outcome is unknown.
        self.wakeups.schedule(outgoing.destinations)
        is_committed = yield from self.commit(commit, interval)
        is_behind = self.reader.is_full or bundle.is_truncated(effects.consumed)
        self._measure(bundle, effects, commit_ms, is_behind=is_behind)
        has_due = self.interval.due <= self.timer_watermark
        self.is_behind = is_behind or has_due or not is_committed
        self.was_large = effects.consumed >= LARGE_BUNDLE
        yield from self.wakeups.flush_if_due()
        if self.interval.processing_due != processing_due:
            yield from schedule_wakeup(
                self.environment, (self.name, self.lo), self.interval.processing_due
            )

    def _measure(
        self, bundle: Bundle, effects: Effects, commit_ms: float, *, is_behind: bool
    ) -> None:
        """Measure a bundle whose commit has just returned."""
        now_ms = self.environment.elapsed_ms()
        self.meter.round(
            now_ms - self.round_ms,
            now_ms - commit_ms,
            [input_.key for input_ in bundle.inputs[: effects.consumed]],
            behind=is_behind,
            hooks_ms=self.hooks_ms,
            reread=self.store.rows.take_reread(),
        )

    def _build_commit(
        self, bundle: Bundle, effects: Effects, commit: Commit, outgoing: Outbound
    ) -> Interval:
        """Add the effects of a bundle to a commit and to its output; return the new interval."""
        now_ms, interval, counts = self.environment.now_ms(), self.interval, effects.counts
        inline = InlineRun(self.environment, self.head, outgoing, is_open=self._can_inline())
        inline.produce(effects.productions)
        inline.end()
        inline.spill(())  # A worker calls no weak sinks: their records go into inboxes.
        unkeyed = outgoing.dead
        for failure in effects.failures:
            outgoing.add_dead_letter(_dead_row(self.name, failure, now_ms))
        repeated, accepted = bundle.take(effects.consumed, commit)
        slabs = self.store.change(interval, effects.keys, commit)
        ids = self.ids.change(interval, accepted, now_ms, commit) if accepted else interval.ids
        return interval._replace(
            lease_ms=now_ms + self.config.lease_ms,
            layout_version=self.head.layout_version,
            load=self.meter.load_after(interval.load),
            crash_count=0,
            crash_suspect="",
            slabs=slabs,
            ids=ids,
            records=interval.records + counts.records,
            late=interval.late + counts.late,
            late_between_parts=interval.late_between_parts + counts.late_between_parts,
            dead=interval.dead + counts.dead,
            repeated=interval.repeated + repeated,
            fired=interval.fired + counts.timers,
            produced=interval.produced + counts.produced,
            unkeyed=interval.unkeyed + unkeyed,
            inlined=sum_counts(interval.inlined, inline.inlined),
        )

    def _can_inline(self) -> bool:
        """Return whether weak computations run inline: one may have crashed earlier workers."""
        return self.inlines and self.interval.crash_count < CAREFUL_AFTER


def _inbox_of(worker: Worker) -> str:
    return worker.names.inbox(worker.name, worker.lo, worker.interval.created_in)


def _takes_offers(worker: Worker, now_ms: int) -> bool:
    """Return whether pushes may join the next commit of a worker.

    Not after a crash, which a record may have caused: it must be durable before workers can count
    its crashes. Not after a commit that was too large, and not while a retired inbox may hold
    earlier records.
    """
    interval, config = worker.interval, worker.config
    return (
        interval.crash_count == 0
        and now_ms - interval.crashed_ms > config.unjoined_ms
        and worker.limit == config.max_records
        and worker.name not in worker.head.retired
    )


def _max_inputs(limit: int, due: Sequence[str]) -> int:
    """Return how many records a bundle may have besides due keys.

    While more timers are due than fit, it has none.
    """
    return 0 if len(due) > limit or (due and limit == 1) else limit


def _dead_row(computation: str, failure: Failure, now_ms: int) -> DeadRow:
    if isinstance(failure.input, KeyedRecord):
        key, _, time_ms, stream, _, id_, text = failure.input
        record = InboxRecord(key, time_ms, stream, id_, text)
        return DeadRow(computation, failure.key, failure.error, now_ms, record)
    tag, timer = failure.input
    return DeadRow(
        computation, failure.key, failure.error, now_ms,
        tag=tag, timestamp_ms=timer.at_ms, is_processing_time=timer.is_processing_time,
        hold=timer.hold,
    )  # fmt: skip
