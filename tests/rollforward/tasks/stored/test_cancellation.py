"""Cancelled tasks: never begun after the call returned true, with a fault at any call."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollforward.datastore.partitions import PARTITIONS
from rollforward.datastore.transactions import transact
from rollforward.operations import replay_dead_task
from rollforward.outbox import cancellable
from rollforward.outbox.cancellable import enqueue_cancellable
from rollforward.runtime.sharing.shared_transaction import SharedBody
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.stored import cancellation, distant
from rollforward.tasks.stored.cancellation import cancel
from rollforward.tasks.stored.entities import CancellableTask, DistantTask, handle_key
from rollforward.tasks.stored.sweep import EXPIRED
from rollforward.testing.injection import KINDS, OVERLAP
from rollforward.testing.world import in_threads
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.faults.partly_done import run_again
from tests.infra.world import Services, World
from tests.rollforward.runtime.sharing.shared_bodies import together
from tests.rollforward.tasks.reminders import one_emulator
from tests.rollforward.tasks.stored.films import Broken, film, frames, rows_here, runs_here

DAY_S = 24 * 3600.0


@pytest.fixture
def studio(services: Services) -> World:
    return World(services, tasks=[film])


def handles_here() -> list[str]:
    return [row.state for row in CancellableTask.query().fetch()]


@pytest.mark.parametrize("size", [8, 150_000])
def test_a_cancelled_task_never_begins(studio: World, size: int) -> None:
    """B9: its delivery ends with nothing done, and its arguments go."""
    with studio.context():
        handle = enqueue_cancellable(studio.clients, film, film.bind("cut", frames(size)))
        assert cancel(handle)
        assert cancel(handle)
    studio.doubles = True
    studio.settle()
    with studio.context():
        assert runs_here() == {}
        assert rows_here()["ArgumentsChunk"] == 0
        assert DeadTask.query().fetch() == []


@one_emulator
@pytest.mark.parametrize("handle", ["", "x" * 1_501, "\u00e9" * 751, "\ud800", "h"])
def test_a_handle_that_no_call_returned_cancels_nothing(studio: World, handle: str) -> None:
    """B9: handles come back from pages and programs, whatever text they have."""
    with studio.context():
        assert not cancel(handle)
        assert not transact(lambda: cancel(handle))


def test_a_task_that_nobody_cancels_runs_and_its_row_goes(studio: World) -> None:
    """B9: from then on it cannot be cancelled."""
    with studio.context():
        handle = enqueue_cancellable(studio.clients, film, film.bind("shown", frames(150_000)))
        assert handles_here() == ["waiting"]
    studio.settle()
    with studio.context():
        assert runs_here() == {"shown": 1}
        assert (handles_here(), rows_here()["ArgumentsChunk"]) == ([], 0)
        assert not cancel(handle)
        assert not any(cancel(unknown) for unknown in ("no-such-handle", "\ud800"))


@one_emulator
def test_a_task_that_has_begun_is_not_cancelled_between_its_attempts(studio: World) -> None:
    """B9: it is retried, and replayed as a dead task, as any other."""
    with studio.context():
        Broken(id="now").put()
        handle = enqueue_cancellable(studio.clients, film, film.bind("begun", "x"))
        studio.settle()
        assert not cancel(handle)
        Broken(id="now").key.delete()
        [dead] = DeadTask.query().fetch()
        replay_dead_task(studio.clients, dead.key.id())
    studio.settle()
    with studio.context():
        assert runs_here() == {"begun": 1}


def test_a_transaction_enqueues_and_cancels_with_its_data(studio: World) -> None:
    """B9: an aborted one does neither."""
    handles: list[str] = []

    def enqueue(fails: bool) -> None:
        for tag in ("one", "two"):
            handles.append(enqueue_cancellable(studio.clients, film, film.bind(tag, "x")))
        if fails:
            raise LookupError

    def cancel_both(fails: bool) -> None:
        for handle in handles:
            assert cancel(handle)
        if fails:
            raise LookupError

    with studio.context():
        with pytest.raises(LookupError):
            transact(lambda: enqueue(True))
        assert handles_here() == []
        handles.clear()
        transact(lambda: enqueue(False))
        with pytest.raises(LookupError):
            transact(lambda: cancel_both(True))
        assert handles_here() == ["waiting", "waiting"]
        transact(lambda: cancel_both(False))
    studio.settle()
    with studio.context():
        assert runs_here() == {}


def test_a_name_has_one_handle_until_its_task_has_ended(studio: World) -> None:
    """B9: a second call enqueues nothing, not even after it was cancelled."""

    def again() -> str:
        return enqueue_cancellable(studio.clients, film, film.bind("named", "x"), name=("n",))

    with studio.context():
        handle = again()
        assert again() == handle
        assert cancel(handle)
        assert again() == handle
        assert cancel(handle)
    studio.settle()
    with studio.context():
        assert runs_here() == {}


@one_emulator
def test_a_distant_task_can_be_cancelled_for_years(studio: World) -> None:
    """B8, B9: its row is kept until the task has come; then it expires."""
    with studio.context():
        at = studio.clock.now() + datetime.timedelta(days=2_000)
        handle = enqueue_cancellable(studio.clients, film, film.bind("late", "x"), at=at)
        studio.clock.sleep(1_997 * DAY_S)
        _expire(studio)
        assert cancel(handle)
        studio.clock.sleep(3.1 * DAY_S)
        studio.sweep("/cron/tasks/sweep")
        studio.settle()
        assert runs_here() == {}
        studio.clock.sleep(33 * DAY_S)
        _expire(studio)
        assert handles_here() == []


def _expire(studio: World) -> None:
    for partition in PARTITIONS:
        EXPIRED.delete_page(studio.clients, partition)


@dataclass
class CutScenario:
    """Enqueue a task and cancel it, before or while it is delivered."""

    world: World
    cancelled: dict[str, bool] = field(default_factory=dict)
    begun_before: dict[str, bool] = field(default_factory=dict)

    leaves = ("ArgumentsChunk",)

    def begin(self, tag: str) -> None:
        call = film.bind(tag, "x")
        handle = enqueue_cancellable(self.world.clients, film, call, name=(tag,))
        if int(tag[1:]) % 2:
            with self.world.plan.unwatched():
                self.world.deliver_due(limit=1_000)
        if cancel(handle):
            with self.world.plan.unwatched():
                self.cancelled[tag] = True
                self.begun_before[tag] = tag in runs_here()

    def is_done(self, tag: str) -> bool:
        return self.cancelled.get(tag, False) or tag in runs_here()

    def check(self, tag: str, fault: str) -> None:
        assert not self.begun_before.get(tag), fault
        assert (tag in runs_here()) != self.cancelled.get(tag, False), fault


@pytest.fixture
def scenario(services: Services) -> CutScenario:
    return CutScenario(World(services, tasks=[film]))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_task_never_begins_with_a_fault_at_any_call(
    scenario: CutScenario, kind: str
) -> None:
    """B9: and one that was not cancelled runs."""
    assert Explorer(scenario.world, scenario).explore([kind], at_most=ALL)


def test_a_cancelled_task_never_begins_when_the_call_comes_inside_its_delivery(
    studio: World,
) -> None:
    """B9: at each remote call of the delivery, either it runs or the call returns true."""
    if studio.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner call would wait for the outer one, which waits for it")
    position = 0
    while True:
        tag = f"at{position}"
        results: list[bool] = []
        with studio.context():
            handle = enqueue_cancellable(studio.clients, film, film.bind(tag, "x"))
        studio.plan.reset(OVERLAP, position)
        studio.plan.on_fire = lambda: results.append(_in_context(studio, handle))  # noqa: B023
        with studio.plan.watched():
            studio.settle()
        with studio.context():
            if not studio.plan.fired:
                assert position > 3
                return
            assert results == [tag not in runs_here()]
        position += 1


def _in_context(studio: World, handle: str) -> bool:
    results: list[bool] = []

    def call() -> None:
        with studio.clients.context():
            results.append(cancel(handle))

    in_threads(call)
    return results[0]


def _never_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "_begin", lambda handle: None)


def _cancelled_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel_any(handle: str) -> bool:
        row = handle_key(handle).get()
        if row is None:
            return False
        row.state = "cancelled"
        row.put()
        return True

    monkeypatch.setattr(cancellation, "forget", lambda handle: None)
    monkeypatch.setattr(cancellation, "_cancel", cancel_any)


@pytest.mark.parametrize("plant", [_never_noted, _cancelled_whatever_it_does])
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = CutScenario(World(services, tasks=[film]))
    scenario.world.order = random.Random(1)
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(at_most=ALL)


def test_a_name_is_one_task_whichever_way_it_is_enqueued_in_one_transaction(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M9: two callers name one distant task. They share no group; forced to, one commit."""
    bodies: list[SharedBody[Any]] = []
    for module in (cancellable, distant):
        monkeypatch.setattr(module, "transact_shared", lambda clients, body: bodies.append(body))
    with studio.context():
        when: Any = {"name": ("x",), "delay_s": 60 * DAY_S}
        film.enqueue(studio.clients, film.bind("plain", "x"), **when)
        enqueue_cancellable(studio.clients, film, film.bind("cancellable", "x"), **when)
        plain, other = bodies
        assert not plain.rows.isdisjoint(other.rows)

        answers = together(studio.clients, [plain, other])

        assert answers[0] is True
        [row] = DistantTask.query().fetch()
        assert "plain" in row.body


@pytest.mark.parametrize("size", [8, 150_000])
@one_emulator
def test_a_second_run_that_finds_a_part_done_enqueues_the_rest_once(
    studio: World, size: int
) -> None:
    """B9, B6: each task keeps its own handle and arguments."""
    handles: list[str] = []

    def cut(tag: str) -> Callable[[], None]:
        call = film.bind(tag, frames(size))
        return lambda: handles.append(enqueue_cancellable(studio.clients, film, call))

    with studio.context():
        run_again(studio, *map(cut, "abc"))
        assert handles[1:3] == handles[3:]
        assert cancel(handles[1])
    studio.settle()
    with studio.context():
        assert runs_here() == {"a": 1, "c": 1}


@one_emulator
def test_a_task_that_is_cancelled_between_two_runs_of_its_transaction_never_begins(
    studio: World,
) -> None:
    """B9: the reply to the first commit was lost, and somebody has found its handle meanwhile."""
    handles: list[str] = []
    answers: list[bool] = []

    def body() -> None:
        handles.append(enqueue_cancellable(studio.clients, film, film.bind("cut", "x")))

    with studio.context():
        studio.plan.break_next("Commit", "reply-lost", 1)
        transact(body, sleep=lambda seconds: answers.append(_in_context(studio, handles[0])))
    studio.settle()
    with studio.context():
        assert answers == [True]
        assert runs_here() == {}


def test_a_task_that_one_transaction_enqueues_and_cancels_never_begins(studio: World) -> None:
    """B9: also when its body runs twice, and another call of its name enqueues nothing."""
    answers: list[bool] = []

    def enqueue(tag: str, name: tuple[str] | None = None) -> str:
        return enqueue_cancellable(studio.clients, film, film.bind(tag, "x"), name=name)

    def body() -> None:
        answers.append(cancel(enqueue("unnamed")))
        answers.append(cancel(enqueue("named", ("cut",))))
        enqueue("named", ("cut",))
        enqueue("shown")

    with studio.context():
        studio.plan.break_next("Commit", "error", 1)
        transact(body)
        assert answers == [True] * 4
    studio.settle()
    with studio.context():
        assert runs_here() == {"shown": 1}
