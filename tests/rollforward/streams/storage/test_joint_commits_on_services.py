"""Joint commits between two processes, and of workers and pushes on the services."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore import bodies
from rollforward.runtime import Clients, SystemClock, open_datastore
from rollforward.runtime.process.process_state import ProcessState
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, PushSource, Record
from rollforward.streams.driver import run_steps
from rollforward.streams.exchange import ingest
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.pushes import Accepted
from rollforward.streams.storage import joint_commits
from rollforward.streams.storage.inbox_hints import InboxHints
from rollforward.streams.storage.joint_commits import (
    ANNOUNCED_EVERY_S,
    MAX_AGE_S,
    MAX_OFFERS,
    JointCommits,
    Offer,
    OfferState,
)
from rollforward.streams.storage.remote_calls import ChangedError, Commit
from rollforward.streams.storage.schema import INTERVAL, SOURCE
from rollforward.streams.stream_tasks import worker_steps
from rollforward.tasks.errors import Retry, Unavailable
from rollforward.testing.opening import new_namespace
from rollforward.testing.services import PROJECT
from tests.infra.runs.sampling import one_emulator
from tests.infra.stack import until
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import is_drained
from tests.rollforward.streams.storage.test_joint_commits import (
    ELSEWHERE,
    HIGH,
    INBOX,
    LOW,
    NAMES,
    PATIENCE_S,
    Process,
    Pushing,
    StoppedClock,
    chunk,
    consuming,
    pushed,
    reader,
    set_waits,
    stop_clock,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    return stop_clock(monkeypatch)


def siblings(work: Callable[[Process], None] = lambda process: None) -> tuple[Process, Process]:
    """Return a process without a worker, and its sibling, whose worker it knows."""
    sender, receiver = Process(), reader(work)
    sender.siblings, receiver.siblings = [receiver], [sender]
    receiver.commits.announce(INBOX)
    return sender, receiver


# Workers and pushes of one process


def test_a_worker_is_offered_only_so_many_pushes(
    clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = reader()
    set_waits(monkeypatch, *[PATIENCE_S] * 3)
    waiting = [Pushing(process, pushed(number)) for number in range(MAX_OFFERS)]
    set_waits(monkeypatch, 0, 0, 0)
    assert not process.is_open(pushed(98))
    process.commit()
    assert None not in [push.result() for push in waiting]
    assert process.is_open(pushed(98))


def test_what_one_worker_commits_is_not_taken_by_another(
    clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of the first may have ended while it commits."""
    process = reader(Process.begin)
    set_waits(monkeypatch, 0, 0, PATIENCE_S)
    waiting = Pushing(process, pushed(1))
    until(lambda: bool(process.begun), PATIENCE_S, every_s=0.001)
    again = process.commits.take(LOW, HIGH, 10)
    process.end()
    assert (again, waiting.result()) == ([], [11, 0])


def test_a_push_whose_worker_is_forgotten_at_this_moment_commits_alone(
    clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with many inboxes forgets all of them now and then."""
    process = reader()
    monkeypatch.setattr(joint_commits, "MAX_READERS", 1)

    def monotonic() -> float:
        process.commits._reader(NAMES.inbox("c", ELSEWHERE))
        return clock.now_s

    monkeypatch.setattr(clock, "monotonic", monotonic)
    assert process.commits.offer(pushed(1)) is None


def test_an_offer_ends_the_pause_of_its_worker(clock: StoppedClock) -> None:
    hints = InboxHints()
    hints.joint_commits.take(LOW, HIGH, 0)
    hints.joint_commits.offer(pushed(1))
    assert hints._inboxes[INBOX].arrived.is_set()


# Siblings


def test_a_push_joins_the_commit_of_a_sibling_s_worker(clock: StoppedClock) -> None:
    """The sibling writes the same rows that the push would."""
    begun = list[Offer]()

    def commit(process: Process) -> None:
        process.begin()
        begun.extend(process.begun)
        process.end()

    sender, receiver = siblings(commit)
    assert sender.commits.offer(pushed(1)) == [11, 0]
    assert [offer.commit for offer in begun] == [pushed(1)]
    assert (sender.kinds, receiver.kinds) == (["offer"], ["reader", "taken", "ended"])
    assert receiver.commits.take(LOW, HIGH, 10) == []
    for number in (2, 3):  # Each answer says that the worker is there.
        clock.now_s += 0.75 * MAX_AGE_S
        receiver.look()
        assert sender.commits.offer(pushed(1, version=10 * number)) == [11, 0]


def test_a_push_waits_longer_for_a_sibling_that_has_taken_its_offer(clock: StoppedClock) -> None:
    def take(process: Process) -> None:
        process.take()
        states.extend(offer.state for offer in sender.commits._sent.values())

    states, (sender, _) = list[OfferState](), siblings(take)
    sender.commits.offer(pushed(1))
    assert states == [OfferState.TAKEN]


def test_a_push_whose_joint_commit_has_failed_at_a_sibling_commits_alone(
    clock: StoppedClock,
) -> None:
    sender, receiver = siblings(lambda process: process.commit(is_written=False))
    assert sender.commits.offer(pushed(1)) is None
    assert receiver.kinds == ["reader", "taken", "refused"]


def test_a_worker_tells_the_siblings_now_and_then_that_it_takes_offers(clock: StoppedClock) -> None:
    """Not after a failure, nor when it has left."""
    _, receiver = siblings()
    receiver.commits.announce(INBOX)
    receiver.commits.announce(NAMES.inbox("d", 0))
    assert receiver.kinds == ["reader"]
    clock.now_s += 2 * ANNOUNCED_EVERY_S
    receiver.look()
    receiver.commits.announce(INBOX)
    assert receiver.kinds == ["reader"] * 2
    clock.now_s += MAX_AGE_S
    receiver.commits.announce(INBOX)
    receiver.look()
    receiver.fail()
    receiver.commits.announce(INBOX)
    assert receiver.kinds == ["reader"] * 2


def test_a_worker_that_takes_no_offers_refuses_those_of_siblings(clock: StoppedClock) -> None:
    """The push does not wait, and offers no more until the worker is heard of."""
    sender, receiver = siblings()
    receiver.fail()
    assert sender.commits.offer(pushed(1)) is None
    assert (receiver.kinds, receiver.woken) == (["reader", "refused"], [])
    sender.commits.offer(pushed(2))
    assert sender.kinds == ["offer", "withdrawn"]


def test_a_sibling_without_a_worker_says_nothing(clock: StoppedClock) -> None:
    """Another sibling may have it."""
    sender, receiver = siblings()
    clock.now_s += MAX_AGE_S
    sender.commits.receive("reader", INBOX, b"")
    assert sender.commits.offer(pushed(1)) is None
    sender.commits.receive("reader", NAMES.inbox("c", ELSEWHERE), b"")
    assert sender.commits.offer(pushed(2, chunk(2, lo=ELSEWHERE))) is None
    assert sender.kinds == ["offer", "withdrawn"] * 2
    assert (receiver.kinds, receiver.woken) == (["reader"], [])


def test_a_push_is_not_offered_to_a_sibling_that_was_not_heard_of_for_long(
    clock: StoppedClock,
) -> None:
    sender, _ = siblings()
    clock.now_s += MAX_AGE_S
    assert sender.commits.offer(pushed(1)) is None
    assert sender.kinds == []


def test_what_a_sibling_has_withdrawn_is_not_begun(clock: StoppedClock) -> None:
    sender, receiver = siblings(Process.take)
    assert sender.commits.offer(pushed(1)) is None
    assert [name for name, _ in receiver.taken] == [chunk(1).name]
    with pytest.raises(ChangedError):
        receiver.commits.begin(consuming(*receiver.taken))
    assert receiver.commits.take(LOW, HIGH, 10) == []


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_offer_whose_sibling_waits_no_longer_is_dropped(
    is_taken: bool, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the message that withdraws it is lost; one that was taken is waited for longer."""
    sender, receiver = siblings(Process.take if is_taken else lambda process: None)
    sender.lost = {"withdrawn"}
    assert sender.commits.offer(pushed(1)) is None
    set_waits(monkeypatch, 1, 1, 10)
    clock.now_s += 5
    assert bool(receiver.commits.take(LOW, HIGH, 10)) == is_taken
    clock.now_s += 10
    assert receiver.commits.take(LOW, HIGH, 10) == []
    assert receiver.commits._offers == {}


def test_an_answer_that_comes_too_late_does_nothing(clock: StoppedClock) -> None:
    """The push has committed by itself; it does not even say that the worker is there."""
    sender, _ = siblings()
    assert sender.commits.offer(pushed(1)) is None
    [(_, id_, _), _] = sender.messages
    for kind, text in (("taken", b"[]"), ("ended", b"[11, 0]"), ("refused", b"[]")):
        sender.commits.receive(kind, id_, text)
    assert sender.commits.offer(pushed(2)) is None
    assert sender.kinds == ["offer", "withdrawn"]


def test_a_push_that_is_too_long_for_a_message_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commits = JointCommits(lambda kind, about, text: False, lambda inbox: None)
    commits.receive("reader", INBOX, b"")
    monkeypatch.setattr(Offer, "wait", lambda offer: pytest.fail("it waits"))
    assert commits.offer(pushed(1)) is None


# On the services


class Tally(Computation):
    """Counts records; a slow one waits for the test."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    pause: ClassVar[threading.Event] = threading.Event()

    def record(self, ctx: Context, record: Record) -> None:
        if record.value.get("slow"):
            self.pause.wait(PATIENCE_S)
        ctx.state.counter("records").add(1)


PROCESSES = ("a", "b", "c")
JOINED = Pipeline(
    "joined", Tally, intervals=1,
    sources=[PushSource("in", disorder=timedelta(0), processes=PROCESSES)],
)  # fmt: skip
PACE = StreamConfig(linger=(0.005,) * 20, gather_s=0.001)
KEYS = 3


class NoTasks:
    """A queue that loses every task: the worker of these tests runs all the time."""

    def create_many(self, messages: Sequence[Any]) -> None: ...


class Run:
    """A worker in a thread, and pushes of one record each."""

    def __init__(self, clients: Clients, patch: pytest.MonkeyPatch) -> None:
        self.clients, self.pushed = clients, Counter[str]()
        self.joined, self.vain = 0, 0
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._times = dict.fromkeys(PROCESSES, 0)
        self._watch(patch)
        self._worker = threading.Thread(target=self._work, daemon=True)
        for process in PROCESSES:
            self.push(process)  # The first push of a process is never offered.

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        offer, begin = JointCommits.offer, JointCommits.begin

        def watched_offer(commits: JointCommits, commit: Commit) -> Sequence[int] | None:
            versions = offer(commits, commit)
            with self._lock:
                self.joined += versions is not None
            return versions

        def watched_begin(commits: JointCommits, commit: Commit) -> list[Offer]:
            try:
                return begin(commits, commit)
            except ChangedError:
                self.vain += 1
                raise

        patch.setattr(JointCommits, "offer", watched_offer)
        patch.setattr(JointCommits, "begin", watched_begin)

    def _work(self) -> None:
        with self.clients.context():
            while not self._is_over.is_set():
                try:
                    run_steps(self.clients, JOINED, worker_steps, "tally", 0)
                except (Retry, Unavailable):
                    continue

    def push(self, process: str = "a", **fields: Any) -> None:
        """Push a record, however often that takes, and check the answer."""
        self._times[process] += 1
        at = self._times[process]
        key = f"{at % KEYS}"
        record = PushedRecord(f"{process}{at}", {"k": key, **fields}, at)
        answer = JOINED.push(self.clients, "in", [record], process=process)
        assert answer == Accepted(1, 0, at)
        with self._lock:
            self.pushed[key] += 1

    def begin(self) -> None:
        self._worker.start()

    def push_until(self, claim: Callable[[], bool], process: str = "a", **fields: Any) -> None:
        """Push one record after another until a claim holds."""
        ends_at_s = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < ends_at_s
            self.push(process, **fields)

    def check(self) -> None:
        """End when the inbox is empty; check that each record was processed once."""
        until(is_drained, PATIENCE_S, every_s=0.01)
        self._is_over.set()
        self._worker.join(PATIENCE_S)
        assert not self._worker.is_alive()
        states = JOINED.states(self.clients, "tally")
        assert {key: state["records"] for key, state in states} == self.pushed
        status, total = JOINED.status(self.clients), sum(self.pushed.values())
        tally = status.computations["tally"]
        assert (status.sources["in"].records, tally.records, tally.repeated) == (total, total, 0)


@pytest.fixture
def run(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A pipeline on real clients without faults, at the pace of the machine."""
    world, state = World(services, streams=[JOINED]), ProcessState()
    state.get_or_create("streams config", lambda: PACE)
    emulator, database = services.datastore, services.database
    store = open_datastore(PROJECT, emulator=emulator, namespace=new_namespace(), database=database)
    clients = dataclasses.replace(
        world.clients,
        datastore=store,
        tasks=NoTasks(),  # type: ignore[arg-type]
        clock=SystemClock(),
        process_state=state,
    )
    set_waits(monkeypatch, 1, 1, PATIENCE_S)
    monkeypatch.setattr(joint_commits, "CLOSED_S", 0.05)
    monkeypatch.setattr(ingest, "CONTENDED_MS", 50)
    Tally.pause.set()
    with clients.context():
        played = Run(clients, monkeypatch)
        played.begin()
        yield played
        played._is_over.set()
        Tally.pause.set()
    state.shutdown()


@one_emulator
def test_records_of_pushes_that_join_are_processed_once(run: Run) -> None:
    """G1: several processes push at once, and each has the answer of its own commit."""

    def push(process: str) -> None:
        with run.clients.context():
            run.push_until(lambda: run.joined >= 20, process)
            done.append(process)

    done = list[str]()
    threads = [threading.Thread(target=push, args=[process], daemon=True) for process in PROCESSES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert sorted(done) == sorted(PROCESSES)
    run.check()


@one_emulator
@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("error", [rpc_errors.ServiceUnavailable, rpc_errors.DeadlineExceeded])
def test_records_are_processed_once_if_the_reply_to_a_joint_commit_is_lost(
    run: Run, is_applied: bool, error: Callable[[str], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the worker and the push find out by themselves whether it was applied."""
    commit, lost = bodies.commit, list[int]()

    def lossy(client: Any, **writes: Any) -> list[int]:
        kinds = {name.kind for name, _, _ in writes.get("puts", ())}
        if not {INTERVAL, SOURCE} <= kinds or len(lost) >= 3:
            return commit(client, **writes)
        lost.append(run.joined)
        if is_applied:
            commit(client, **writes)
        raise error("lost")

    monkeypatch.setattr(bodies, "commit", lossy)
    run.push_until(lambda: len(lost) >= 3)
    joined = run.joined
    run.push_until(lambda: run.joined > joined)
    run.check()


@one_emulator
def test_a_record_is_processed_once_if_its_push_does_not_wait_for_a_slow_worker(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the worker has the chunk in its bundle while the push commits it by itself."""
    set_waits(monkeypatch, 0.2, 0, PATIENCE_S)
    ends_at_s = time.monotonic() + PATIENCE_S
    while not run.vain:
        assert time.monotonic() < ends_at_s
        Tally.pause.clear()
        run.push(slow=1)
        Tally.pause.set()
        run.push_until(is_drained)
    run.check()
