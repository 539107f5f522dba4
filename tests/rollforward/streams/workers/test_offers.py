"""When a worker takes the offers of pushes, and when a push makes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.exchange.ingest import CONTENDED_MS
from rollforward.streams.model.slots import SLOTS
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage.joint_commits import versions_in
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Join,
    Read,
    Scan,
    TooLargeError,
)
from rollforward.streams.storage.schema import CHUNK, INTERVAL, SOURCE
from rollforward.streams.storage.serde import dump, load
from tests.rollforward.streams.simulator.driver import Came, Desk, is_batch
from tests.rollforward.streams.simulator.store import answered


class Counted(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


PIPELINE = Pipeline("offers", Counted, sources=[PushSource("in")], intervals=1)


def takes_offers(desk: Desk) -> bool:
    """Return whether the next worker takes offers; it dies at its first scan."""
    scan: Any = desk.until(desk.worker("counted"), Scan)
    return bool(scan.takes_offers)


def scans_of(desk: Desk, fails: Sequence[Exception] = ()) -> list[bool]:
    """Let a worker run; return whether it took offers, by scan.

    Args:
        fails: How its first commits of bundles fail.
    """
    scans, errors = list[bool](), [*fails]

    def answer(call: Any) -> Iterator[Any]:
        yield from ()
        if isinstance(call, Scan):
            scans.append(call.takes_offers)
        if is_batch(call) and errors:
            raise errors.pop(0)
        return None

    desk.do(answered(desk.worker("counted"), answer))
    return scans


def pushed_desk() -> Desk:
    desk = Desk(PIPELINE)
    desk.push(Came("1", "a", 1))
    return desk


def test_no_push_joins_after_a_crash_until_some_time_has_passed() -> None:
    """G7: a record that kills workers has to be durable, for only then they count its crashes."""
    desk = pushed_desk()
    unjoined_s = desk.simulation.config.unjoined_ms / 1000
    assert takes_offers(desk)

    desk.wait(16)
    assert not takes_offers(desk)

    desk.wait(16)
    desk.do(desk.worker("counted"))
    assert desk.interval("counted").crash_count == 0
    assert not takes_offers(desk)

    desk.wait(16)
    desk.do(desk.worker("counted"))
    desk.wait(unjoined_s + 1)
    assert takes_offers(desk)
    assert b"crashed_ms" not in dump(INTERVAL, desk.interval("counted"))  # As before this release.


def test_a_merged_interval_remembers_the_crash_of_either() -> None:
    """G7: the records of both come to it."""
    desk = Desk(PIPELINE)
    desk.push(Came("1", "a", 1))
    desk.do(split(desk.environment, "counted", SLOTS // 2))
    name = desk.environment.names.interval("counted", SLOTS // 2)
    upper = desk.simulation.store.rows[name]
    desk.simulation.store.rows[name] = upper._replace(body=upper.body._replace(crashed_ms=7))
    desk.do(merge(desk.environment, "counted", SLOTS // 2))
    merged = desk.interval("counted")
    assert merged.crashed_ms == 7
    assert load(INTERVAL, dump(INTERVAL, merged)) == merged


def test_no_push_joins_a_bundle_after_one_that_was_too_large() -> None:
    """G7: the worker has to find the record that is the reason, among those that it has."""
    assert scans_of(pushed_desk())[:2] == [True, True]
    desk = pushed_desk()
    desk.push(*(Came(f"{n}", "a", n) for n in range(2, 10)))
    assert scans_of(desk, [TooLargeError()] * 3)[:2] == [True, False]


def test_no_push_joins_while_a_retired_inbox_may_have_earlier_records() -> None:
    """G3, G10: those come first."""
    desk = pushed_desk()
    desk.do(split(desk.environment, "counted", SLOTS // 2))
    assert not any(scans_of(desk))


# The push


class Offering(Desk):
    """Pushes make offers, which nobody takes.

    Attributes:
        offers: The commits that were offered.
    """

    def __init__(self, pipeline: Pipeline = PIPELINE) -> None:
        super().__init__(pipeline)
        self.offers: list[Commit] = []
        self.simulation.joining.is_on = True
        self.simulation.acts[Join] = lambda call: self.offers.append(call.commit)


def test_a_push_whose_commit_writes_more_than_its_source_is_not_offered() -> None:
    """G3: a process that returns writes the head, too, for the watermark went on without it."""
    desk = Offering()
    desk.push(Came("1", "a", 1))
    assert [key.kind for offer in desk.offers for key, _, _ in offer.puts] == [SOURCE]
    key = desk.environment.names.source("in", "")
    stored = desk.simulation.store.rows[key]
    desk.simulation.store.commit(
        Commit(puts=[(key, stored.body._replace(is_idle=True), stored.version)])
    )
    desk.wait(1)  # The row is read again.

    desk.push(Came("2", "a", 2))
    desk.push(watermark=5)  # Without a record there is nothing to process.
    assert len(desk.offers) == 1


def test_a_push_that_has_lost_a_race_is_offered_to_nobody_for_a_while() -> None:
    """G4: another process pushes, and would make the commits of a worker fail again and again."""
    desk = Offering()
    desk.push(Came("0", "a", 1))
    fails, commit = [ChangedError()], desk.simulation.acts[Commit]

    def refuse(call: Commit) -> Any:
        if fails:
            raise fails.pop()
        return commit(call)

    desk.simulation.acts[Commit] = refuse
    desk.push(Came("1", "a", 1))
    assert len(desk.offers) == 2  # Before it has lost.
    desk.push(Came("2", "a", 2))
    assert len(desk.offers) == 2

    desk.wait(CONTENDED_MS / 1000 + 0.1)
    desk.push(Came("3", "a", 3))
    assert len(desk.offers) == 3


def test_a_process_that_cannot_join_makes_no_offers() -> None:
    desk = Offering()
    desk.simulation.joining.is_on = False
    desk.push(Came("1", "a", 1))
    assert desk.offers == []


# The wake-ups of a push that a worker has joined


class OtherCounted(Counted):
    """Another reader of the stream."""


READ_TWICE = Pipeline(
    "read-twice", Counted, OtherCounted, sources=[PushSource("in")], intervals=1
)  # fmt: skip


class Joining(Offering):
    """A worker joins each push.

    Attributes:
        leaves: The worker consumes a part of its chunk, and writes the rest.
        head_reads: Reads of the head alone, which wake-ups do.
    """

    def __init__(self, pipeline: Pipeline, *, leaves: bool = False) -> None:
        super().__init__(pipeline)
        self.leaves, self.head_reads, self.count = leaves, 0, 0
        self._real_read = self.simulation.acts[Read]
        self.simulation.acts[Join], self.simulation.acts[Read] = self._join, self._read

    def _join(self, call: Join) -> Sequence[int]:
        mine, *_ = [key for key, _ in call.commit.inserts if key.kind == CHUNK]
        inserts = [each for each in call.commit.inserts if self.leaves or each[0] != mine]
        joint = Commit(puts=call.commit.puts, inserts=inserts)
        versions = self.simulation.store.commit(joint)
        keys = [key for key, _ in joint.rows]
        return versions_in(call.commit, dict(zip(keys, versions, strict=True)))

    def _read(self, call: Read) -> Any:
        self.head_reads += call.keys == [self.environment.names.head]
        return self._real_read(call)

    def push_next(self, **more: Any) -> Any:
        self.count += 1
        return self.push(Came(f"{self.count}", "a", self.count), **more)


def test_a_push_that_a_worker_has_joined_wakes_the_other_readers_alone() -> None:
    desk = Joining(READ_TWICE)
    joined = desk.push_next()
    desk.simulation.joining.is_on = False
    alone = desk.push_next()
    assert joined.destinations == [("other-counted", 0)]
    assert alone.destinations == [("counted", 0), ("other-counted", 0)]
    assert [joined.was_joined, alone.was_joined] == [True, False]


def test_a_worker_that_has_consumed_a_part_of_a_push_is_woken_for_the_rest() -> None:
    """G1: it may die before it goes on."""
    desk = Joining(PIPELINE, leaves=True)
    assert desk.push_next().destinations == [("counted", 0)]


def test_pushes_that_a_worker_has_joined_owe_a_tick_now_and_then() -> None:
    """G3: the watermarks of a source that only they move."""
    desk, woken = Joining(PIPELINE), list[int]()
    tick_s = desk.simulation.config.tick_s
    desk.push_next()
    for wait_s in (2 * tick_s, 0.4 * tick_s, 0.4 * tick_s):
        desk.wait(wait_s)
        before = desk.head_reads
        desk.push_next()
        woken.append(desk.head_reads - before)
    assert woken == [1, 0, 0]

    desk.simulation.wakes.clear()
    desk.simulation.sweeps = False
    desk.wait(tick_s)
    before = desk.head_reads
    desk.run()
    assert desk.head_reads == before + 1


def test_a_tick_that_another_push_has_brought_forward_does_not_come_again() -> None:
    desk = Joining(PIPELINE)
    desk.push_next()
    desk.push_next()
    desk.simulation.joining.is_on = False
    desk.push_next()
    before = desk.head_reads
    desk.simulation.wakes.clear()
    desk.simulation.sweeps = False
    desk.wait(desk.simulation.config.tick_s)
    desk.run()
    assert desk.head_reads == before


# What a push has read before


@pytest.mark.parametrize("worker_has_read", [False, True])
def test_a_push_uses_the_head_that_a_worker_of_its_process_has_read(worker_has_read: bool) -> None:
    """At most `watermark_ms` ago; its row it has written itself."""
    desk, reads = Desk(PIPELINE), list[Any]()
    desk.simulation.config = replace(desk.simulation.config, watermark_ms=100)
    environment, read = desk.environment, desk.simulation.acts[Read]
    head, source = environment.names.head, environment.names.source("in", "")

    def counted(call: Read) -> Any:
        reads.extend([1] * (call.keys == [head, source]))
        return read(call)

    desk.push(Came("0", "a", 1))
    desk.simulation.acts[Read] = counted
    desk.wait(0.06)
    desk.push(Came("1", "a", 1))
    assert reads == []
    if worker_has_read:
        [row] = read(Read([head]))
        environment.caches[head] = row, environment.elapsed_ms()
    desk.wait(0.06)
    desk.push(Came("2", "a", 1))
    assert len(reads) == (not worker_has_read)
    desk.wait(0.06 + 0.06)
    desk.push(Came("3", "a", 1))
    assert len(reads) == 1 + (not worker_has_read)
