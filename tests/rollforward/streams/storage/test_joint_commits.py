"""Joint commits: offers of pushes, and the answers of the workers that take them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from rollforward.streams.storage import joint_commits
from rollforward.streams.storage.joint_commits import (
    CLOSED_S,
    MAX_AGE_S,
    MAX_CLOSED_S,
    MAX_OFFER_BYTES,
    MAX_RECORDS,
    JointCommits,
    Offer,
    OfferState,
    merge,
    versions_in,
)
from rollforward.streams.storage.remote_calls import ChangedError, Commit, Key, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    LATE,
    ON_TIME,
    InboxRecord,
    Names,
    SourceRow,
    chunk_id,
)
from tests.infra.stack import until

NAMES = Names("p")
INBOX = NAMES.inbox("c", 0)
LOW, HIGH = NAMES.inbox_range("c", 0, 0)
ELSEWHERE = 2**15
BODY = (InboxRecord("k", 1, "in", "", "1"), InboxRecord("k", 2, "in", "", "2"))
REST = BODY[1:]
INTERVAL, SLAB = NAMES.interval("c", 0), NAMES.slab("c", 0)
OUTPUT, STORED = NAMES.chunk("d", 0, ON_TIME, 1, "o.1.9"), NAMES.chunk("c", 0, ON_TIME, 1, "s.1.9")
PATIENCE_S = 60.0
STEP_S = CLOSED_S / 2
Wait = Callable[[float, float, float], None]


class StoppedClock:
    """The clock of the offers, which only a test moves; an offer notes the real time."""

    def __init__(self) -> None:
        self.now_s = int(time.monotonic()) - 1.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    return stop_clock(monkeypatch)


@pytest.fixture
def wait_for(monkeypatch: pytest.MonkeyPatch) -> Wait:
    return partial(set_waits, monkeypatch)


def stop_clock(patch: pytest.MonkeyPatch) -> StoppedClock:
    """Stop the clock; let no push wait."""
    set_waits(patch, 0, 0, 0)
    stopped = StoppedClock()
    patch.setattr(joint_commits, "time", stopped)
    return stopped


def set_waits(patch: pytest.MonkeyPatch, untaken_s: float, taken_s: float, commit_s: float) -> None:
    """Let pushes wait for their worker, then for its commit, then for the end of it."""
    patch.setattr(joint_commits, "UNTAKEN_S", untaken_s)
    patch.setattr(joint_commits, "TAKEN_S", taken_s)
    patch.setattr(joint_commits, "COMMIT_S", commit_s)


def chunk(number: int, *, lo: int = 0, lane: int = ON_TIME, records: int = 2, size: int = 9) -> Key:
    return NAMES.chunk("c", lo, lane, 1, chunk_id(f"n{number:03d}", "", records, size))


def source(number: int) -> Key:
    return NAMES.source("in", f"{number}")


def pushed(number: int, *chunks: Key, version: int = 1) -> Commit:
    """Return the commit of a push; each number has a source of its own."""
    inserts = [(key, BODY) for key in chunks or [chunk(number)]]
    return Commit([(source(number), SourceRow(seq=number), version)], inserts)


def consuming(*taken: tuple[str, StoredRow]) -> Commit:
    """Return the commit of a worker that has processed some chunks."""
    commit = Commit([(INTERVAL, "interval", 5)])
    commit.deletes += [(Key(CHUNK, name), row.version) for name, row in taken]
    return commit


class Process:
    """A process with a worker, which does something at once when an offer comes.

    `messages`: what it has sent to its siblings; they receive it, unless it is of a `lost` kind.
    """

    def __init__(self, work: Callable[[Process], None] = lambda process: None) -> None:
        self.commits = JointCommits(self._send, self._wake)
        self.siblings: list[Process] = []
        self.work, self.woken, self.messages = work, list[str](), list[tuple[str, str, bytes]]()
        self.taken: list[tuple[str, StoredRow]] = []
        self.begun: list[Offer] = []
        self.lost: set[str] = set()

    def _send(self, *message: Any) -> bool:
        self.messages.append(message)
        for sibling in self.siblings:
            if message[0] not in self.lost:
                sibling.commits.receive(*message)
        return True

    def _wake(self, inbox: str) -> None:
        self.woken.append(inbox)
        self.work(self)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.messages]

    def look(self) -> None:
        """Let the worker look into its inbox, as if nothing were offered."""
        self.commits.take(LOW, HIGH, 0)

    def take(self, limit: int = 100) -> None:
        self.taken += self.commits.take(LOW, HIGH, limit)

    def begin(self) -> None:
        self.take()
        self.begun = self.commits.begin(consuming(*self.taken))

    def commit(self, is_written: bool = True) -> None:
        """Take what is offered, and commit it with consecutive versions."""
        self.begin()
        self.end(is_written=is_written)

    def end(self, *, is_written: bool = True) -> None:
        joint = merge(consuming(*self.taken), self.begun)
        keys = [*(key for key, _, _ in joint.puts), *(key for key, _ in joint.inserts)]
        self.commits.end(
            self.begun, dict(zip(keys, range(10, 99), strict=False)) if is_written else None
        )
        self.taken, self.begun = [], []

    def is_open(self, commit: Commit | None = None) -> bool:
        """Return whether a push is offered to a worker that has just looked."""
        self.look()
        before, self.work = len(self.woken), lambda process: None
        self.commits.offer(commit or pushed(99))
        return len(self.woken) > before

    def fail(self, *numbers: int) -> None:
        """Let the joint commit of some pushes fail."""
        self.commits.end([Offer(pushed(n), chunk(n)) for n in numbers or [1]], None)


class Pushing:
    """A push in a thread of its own, which waits for its worker."""

    def __init__(self, process: Process, commit: Commit) -> None:
        self.versions: Sequence[int] | None = ()
        self._thread = threading.Thread(target=self._offer, args=[process, commit], daemon=True)
        count = len(process.woken)
        self._thread.start()
        until(lambda: len(process.woken) > count, PATIENCE_S, every_s=0.001)

    def _offer(self, process: Process, commit: Commit) -> None:
        self.versions = process.commits.offer(commit)

    def result(self) -> Sequence[int] | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.versions


def reader(work: Callable[[Process], None] = lambda process: None) -> Process:
    """Return a process whose worker has looked a moment ago."""
    process = Process(work)
    process.look()
    return process


# The rows of both


def joint() -> tuple[Commit, Commit, list[Offer]]:
    """Return a worker's commit, it with two pushes, and their offers: one is consumed in part."""
    offers = [
        Offer(pushed(1, chunk(1), chunk(1, lo=ELSEWHERE)), chunk(1)),
        Offer(pushed(2, version=2), chunk(2)),
    ]
    own = Commit(
        puts=[(INTERVAL, "interval", 5), (SLAB, "slab", 3), (chunk(2), REST, offers[1].token)],
        inserts=[(OUTPUT, BODY)],
        deletes=[(chunk(1), offers[0].token), (STORED, 7), (OUTPUT, None)],
    )
    return own, merge(own, offers), offers


def test_a_chunk_that_is_consumed_is_neither_inserted_nor_deleted() -> None:
    _, both, _ = joint()
    assert chunk(1) not in [key for key, _ in both.inserts]
    assert both.deletes == [(STORED, 7), (OUTPUT, None)]


def test_of_a_chunk_that_is_consumed_in_part_the_rest_is_inserted() -> None:
    """It does not exist, so it is not put."""
    _, both, _ = joint()
    assert [body for key, body in both.inserts if key == chunk(2)] == [REST]
    assert chunk(2) not in [key for key, _, _ in both.puts]


def test_the_row_of_the_interval_stays_the_first() -> None:
    """Its version says whether the worker has its lease."""
    own, both, _ = joint()
    assert both.puts[0] == own.puts[0]


def test_all_other_rows_of_both_are_written() -> None:
    _, both, offers = joint()
    sources = [put for offer in offers for put in offer.commit.puts]
    assert both.puts[1:] == [(SLAB, "slab", 3), *sources]
    assert [key for key, _ in both.inserts] == [chunk(2), OUTPUT, chunk(1, lo=ELSEWHERE)]


def test_each_part_has_its_versions() -> None:
    """A chunk that was consumed has none; its rest is a put of the worker's."""
    own, both, offers = joint()
    keys = [*(key for key, _, _ in both.puts), *(key for key, _ in both.inserts)]
    numbers = {key: number for number, key in enumerate(keys, 1)}
    assert versions_in(own, numbers) == [1, 2, numbers[chunk(2)], numbers[OUTPUT]]
    first, second = [versions_in(offer.commit, numbers) for offer in offers]
    assert first == [numbers[source(1)], 0, numbers[chunk(1, lo=ELSEWHERE)]]
    assert second == [numbers[source(2)], numbers[chunk(2)]]


# A push and its worker


def test_a_push_has_the_versions_of_its_joint_commit() -> None:
    """Its worker reads the chunk as it would be inserted, with a negative version."""
    process, rows = Process(), list[tuple[str, StoredRow]]()

    def commit(process: Process) -> None:
        process.begin()
        rows.extend(process.taken)
        process.end()

    process.look()
    process.work = commit
    assert process.commits.offer(pushed(1)) == [11, 0]
    [(name, row)] = rows
    assert (name, row.body, row.version < 0) == (chunk(1).name, BODY, True)
    assert process.commits.take(LOW, HIGH, 10) == []


def test_a_push_whose_joint_commit_has_failed_commits_alone() -> None:
    process = reader(lambda process: process.commit(is_written=False))
    assert process.commits.offer(pushed(1)) is None
    assert process.commits.take(LOW, HIGH, 10) == []


def test_a_push_that_no_worker_takes_commits_alone() -> None:
    """A worker that looks later does not find it."""
    process = reader()
    assert process.commits.offer(pushed(1)) is None
    assert len(process.woken) == 1
    assert process.commits.take(LOW, HIGH, 10) == []


def test_a_worker_that_is_too_slow_does_not_begin() -> None:
    """The push has gone, and has committed the same rows by itself."""
    process = reader(Process.take)
    assert process.commits.offer(pushed(1)) is None
    with pytest.raises(ChangedError):
        process.commits.begin(consuming(*process.taken))


def test_what_is_withdrawn_is_neither_taken_nor_begun() -> None:
    process, offers = reader(), [Offer(pushed(number), chunk(number)) for number in (1, 2)]
    for offer in offers:
        process.commits._add(offer)
    offers[0].withdraw(OfferState.OPEN)
    process.take()
    assert [name for name, _ in process.taken] == [chunk(2).name]
    offers[1].withdraw(OfferState.TAKEN)
    with pytest.raises(ChangedError):
        process.begin()


def test_other_pushes_do_not_wait_for_a_commit_that_does_not_begin(wait_for: Wait) -> None:
    process = reader()
    wait_for(*[PATIENCE_S] * 3)
    waiting = Pushing(process, pushed(1))
    process.work = Process.take
    wait_for(0, 0, 0)
    process.commits.offer(pushed(2))
    assert [name for name, _ in process.taken] == [chunk(1).name, chunk(2).name]
    with pytest.raises(ChangedError):
        process.commits.begin(consuming(*process.taken))
    assert waiting.result() is None
    assert process.commits.take(LOW, HIGH, 10) == []


def test_a_push_whose_rows_are_being_written_is_not_withdrawn(wait_for: Wait) -> None:
    """It waits for the end, however long its worker has taken so far."""
    process = reader(Process.begin)
    wait_for(0, 0, PATIENCE_S)
    waiting = Pushing(process, pushed(1))
    until(lambda: bool(process.begun), PATIENCE_S, every_s=0.001)
    [offer] = process.begun
    assert not offer.withdraw(OfferState.OPEN, OfferState.TAKEN)
    process.end()
    assert waiting.result() == [11, 0]


# Pushes that are not offered


def test_a_push_is_offered_only_to_a_worker_that_has_just_looked(clock: StoppedClock) -> None:
    process = reader()
    assert process.commits.offer(pushed(1, chunk(1, lo=ELSEWHERE))) is None
    clock.now_s += MAX_AGE_S
    assert process.commits.offer(pushed(1)) is None
    assert process.woken == []


@pytest.mark.parametrize(
    ("fields", "is_open"),
    [
        ({"lane": LATE}, False),
        ({"records": MAX_RECORDS}, True),
        ({"records": MAX_RECORDS + 1}, False),
        ({"size": MAX_OFFER_BYTES}, True),
        ({"size": MAX_OFFER_BYTES + 1}, False),
    ],
)
def test_late_and_large_chunks_are_not_offered(fields: dict[str, int], is_open: bool) -> None:
    assert reader().is_open(pushed(1, chunk(1, **fields))) == is_open


def closed_s(process: Process, clock: StoppedClock) -> float:
    """Return after which time a worker takes offers again."""
    began_s = clock.now_s
    while not process.is_open():
        clock.now_s += STEP_S
    return clock.now_s - began_s


def test_a_worker_takes_no_offers_after_a_failure_and_for_longer_after_each(
    clock: StoppedClock,
) -> None:
    """At most for `MAX_CLOSED_S`; a success forgets all failures."""
    process, closed = reader(), list[float]()
    for _ in range(8):
        process.fail()
        closed.append(closed_s(process, clock))
    assert closed == [min(CLOSED_S * 2**n, MAX_CLOSED_S) for n in range(8)]
    assert closed[-2:] == [MAX_CLOSED_S] * 2

    process.look()
    process.work = Process.commit
    assert process.commits.offer(pushed(1)) is not None
    process.fail()
    assert closed_s(process, clock) == CLOSED_S


def test_a_joint_commit_of_several_pushes_fails_once(clock: StoppedClock) -> None:
    process = reader()
    process.fail(1, 2, 3)
    assert closed_s(process, clock) == CLOSED_S


def test_a_worker_that_is_too_slow_for_a_push_takes_no_offers_for_some_time(
    clock: StoppedClock,
) -> None:
    """Its bundle was in vain."""
    process = reader(Process.take)
    process.commits.offer(pushed(1))
    with pytest.raises(ChangedError):
        process.commits.begin(consuming(*process.taken))
    assert closed_s(process, clock) == CLOSED_S


def test_of_two_pushes_of_a_source_only_the_first_is_offered(wait_for: Wait) -> None:
    """One of them would fail the commit: both expect the same version."""
    process = reader()
    wait_for(*[PATIENCE_S] * 3)
    waiting = Pushing(process, pushed(1))
    wait_for(0, 0, 0)
    assert not process.is_open(pushed(1, chunk(2)))
    assert process.is_open(pushed(2))
    process.commit()
    assert waiting.result() == [11, 0]


def test_a_push_is_not_offered_with_a_version_that_a_joint_commit_has_replaced() -> None:
    """It would fail the next commit of the worker."""
    process = reader(Process.commit)
    assert process.commits.offer(pushed(1, version=3)) is not None
    assert not process.is_open(pushed(1, version=3))
    assert process.is_open(pushed(1, version=4))
    assert process.is_open(pushed(2, version=3))


# What a worker takes


def test_a_worker_takes_what_is_offered_to_its_inbox_in_order_and_up_to_its_limit(
    wait_for: Wait,
) -> None:
    process = reader()
    elsewhere = NAMES.inbox_range("c", ELSEWHERE, 0)
    process.commits.take(*elsewhere, 0)
    wait_for(*[PATIENCE_S] * 3)
    waiting = [Pushing(process, pushed(number)) for number in (3, 1, 2)]
    waiting.append(Pushing(process, pushed(4, chunk(4, lo=ELSEWHERE))))

    def names(low: str, high: str, limit: int) -> list[str]:
        return [name for name, _ in process.commits.take(low, high, limit)]

    assert names(LOW, HIGH, -1) == names(LOW, HIGH, 0) == []
    two = names(LOW, HIGH, 2)
    assert (len(two), two) == (2, sorted(two))
    assert names(LOW, HIGH, 10) == [chunk(number).name for number in (1, 2, 3)]
    assert names(chunk(2).name, HIGH, 10) == [chunk(number).name for number in (2, 3)]
    assert names(*elsewhere, 10) == [chunk(4, lo=ELSEWHERE).name]
    process.commit()
    assert names(LOW, HIGH, 10) == []
    assert names(*elsewhere, 10) == [chunk(4, lo=ELSEWHERE).name]
    process.taken = process.commits.take(*elsewhere, 10)
    process.commit()
    assert None not in [push.result() for push in waiting]
