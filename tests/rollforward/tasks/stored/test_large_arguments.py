"""Arguments beyond a task's size: stored in rows, read at each delivery, gone when it is done."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from rollforward import outbox
from rollforward.datastore.partitions import PARTITIONS
from rollforward.datastore.transactions import transact
from rollforward.operations import replay_dead_task
from rollforward.operations.replays import delete_dead_task
from rollforward.runtime import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks import BadArgumentsError, Retry, Task, TooLargeError
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import ReplayDeadTask, replay
from rollforward.tasks.stored import names
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.entities import StoredArguments
from rollforward.tasks.stored.names import (
    MAX_ARGUMENTS_BYTES,
    MAX_BODY_BYTES,
    MAX_COMMITTED_BYTES,
    MAX_TASK_BYTES,
)
from rollforward.tasks.stored.sweep import EXPIRED
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator, queued
from tests.rollforward.tasks.stored.films import (
    Broken,
    FilmRun,
    digest,
    film,
    frames,
    rows_here,
    runs_here,
)

MEASURED_LIMIT_BYTES = 1024 * 1024 - 7
AT_MOST = MAX_ARGUMENTS_BYTES - 100


@pytest.fixture
def studio(services: Services) -> World:
    return World(services, tasks=[film])


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, MAX_TASK_BYTES - 100])
@one_emulator
def test_arguments_of_a_task_s_size_travel_in_the_task(studio: World, size: int) -> None:
    """H7: no row is written, and the service takes the task with all that belongs to it."""
    with studio.context():
        assert film.enqueue(studio.clients, "long", frames(size))
        assert rows_here() == {"StoredArguments": 0, "ArgumentsChunk": 0}
        [sent] = queued(studio)
        assert sent._pb.ByteSize() < MEASURED_LIMIT_BYTES
    studio.settle()
    with studio.context():
        assert FilmRun.get_by_id("long").digest == digest(frames(size))


@pytest.mark.parametrize("size", [MAX_TASK_BYTES + 1, AT_MOST])
def test_larger_arguments_are_rows_until_the_task_is_done(studio: World, size: int) -> None:
    """H7: the task refers to them, and works on what was enqueued."""
    with studio.context():
        assert film.enqueue(studio.clients, "feature", frames(size))
        assert rows_here()["ArgumentsChunk"] == -(-size // 1_000_000)
    studio.settle()
    with studio.context():
        assert runs_here() == {"feature": 1}
        assert FilmRun.get_by_id("feature").digest == digest(frames(size))
        assert rows_here() == {"StoredArguments": 1, "ArgumentsChunk": 0}


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, MAX_COMMITTED_BYTES - 100])
def test_a_transaction_commits_large_arguments_with_its_task(studio: World, size: int) -> None:
    """H7: rows and task are there, or neither of them; also with the most that a commit takes."""

    def body(fails: bool) -> None:
        outbox.enqueue(studio.clients, film, film.bind("premiere", frames(size)))
        if fails:
            raise LookupError

    with studio.context():
        with pytest.raises(LookupError):
            transact(lambda: body(True))
        assert rows_here() == {"StoredArguments": 0, "ArgumentsChunk": 0}
        transact(lambda: body(False))
    studio.settle()
    with studio.context():
        assert FilmRun.get_by_id("premiere").digest == digest(frames(size))
        assert rows_here() == {"StoredArguments": 1, "ArgumentsChunk": 0}


@one_emulator
def test_arguments_beyond_ten_megabytes_are_refused(studio: World) -> None:
    """H5: at the caller's, and nothing is written."""
    with studio.context():
        with pytest.raises(TooLargeError, match="at most 10000000 bytes"):
            film.enqueue(studio.clients, "epic", frames(MAX_ARGUMENTS_BYTES))
        epic = film.bind("epic", frames(MAX_COMMITTED_BYTES))
        with pytest.raises(TooLargeError, match="at most 4000000 bytes"):
            transact(lambda: outbox.enqueue(studio.clients, film, epic))
        assert rows_here() == {"StoredArguments": 0, "ArgumentsChunk": 0}


@one_emulator
def test_a_task_that_a_transaction_creates_at_once_is_refused_with_the_form_to_write(
    studio: World,
) -> None:
    """Its rows would be committed after the task, or never."""
    with studio.context(), pytest.raises(BadArgumentsError, match=r"write rf\.enqueue"):
        transact(lambda: film.enqueue(studio.clients, "early", frames(MAX_TASK_BYTES + 1)))
    assert queued(studio) == []


def test_a_delivery_that_comes_again_after_the_end_runs_nothing(studio: World) -> None:
    """H7: the rows are gone, and the task is known to be done."""
    with studio.context():
        film.enqueue(studio.clients, "twice", frames(MAX_TASK_BYTES + 1))
    studio.doubles = True
    studio.settle()
    with studio.context():
        assert runs_here() == {"twice": 1}
        assert DeadTask.query().fetch() == []


@one_emulator
def test_one_name_of_two_arguments_makes_one_task_with_the_first(studio: World) -> None:
    """H7: the rows of the second call do not replace those of the first."""
    with studio.context():
        one, two = frames(MAX_TASK_BYTES + 1), frames(MAX_TASK_BYTES + 1)[::-1]
        assert film.enqueue(studio.clients, film.bind("named", one), name=("n",))
        assert not film.enqueue(studio.clients, film.bind("named", two), name=("n",))
    studio.settle()
    with studio.context():
        assert FilmRun.get_by_id("named").digest == digest(one)


def _kill(studio: World, size: int) -> str:
    """Enqueue a task that fails for good; return its dead task's id."""
    Broken(id="now").put()
    film.enqueue(studio.clients, "remake", frames(size))
    studio.settle()
    [dead] = DeadTask.query().fetch()
    Broken(id="now").key.delete()
    return str(dead.key.id())


@one_emulator
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, MAX_TASK_BYTES + 1])
def test_a_dead_task_holds_its_arguments_until_it_is_replayed(studio: World, size: int) -> None:
    """H7: a year later the replay works on them, and then they go."""
    with studio.context():
        dead_id = _kill(studio, size)
        studio.clock.sleep(datetime.timedelta(days=365).total_seconds())
        studio.sweep()
        assert len(DeadTask.get_by_id(dead_id).body) < 1_000
        replay_dead_task(studio.clients, dead_id)
    studio.settle()
    with studio.context():
        assert FilmRun.get_by_id("remake").digest == digest(frames(size))
        assert rows_here()["ArgumentsChunk"] == 0
        _pass_days(studio, 34)
        assert rows_here() == {"StoredArguments": 0, "ArgumentsChunk": 0}


@one_emulator
def test_a_replay_that_dies_at_once_holds_the_arguments(studio: World) -> None:
    """H7: it has a dead task of its own before the first one is marked as dealt with."""

    class Quick:
        def create(self, message: Message) -> bool:
            created = studio.clients.tasks.create(message)
            studio.settle()
            return created

    with studio.context():
        dead_id = _kill(studio, MAX_TASK_BYTES + 1)
        Broken(id="now").put()
        quick = replace(studio.clients, tasks=Quick())
        replay(quick, ReplayDeadTask(dead_id), {film.path: film})
        [again] = [dead for dead in DeadTask.query().fetch() if not dead.resolved]
        assert again.key.id() != dead_id
        Broken(id="now").key.delete()
        _pass_days(studio, 34)
        replay_dead_task(studio.clients, again.key.id())
    studio.settle()
    with studio.context():
        assert FilmRun.get_by_id("remake").digest == digest(frames(MAX_TASK_BYTES + 1))


@one_emulator
def test_arguments_of_a_dead_task_that_is_deleted_expire(studio: World) -> None:
    """Nothing refers to them any more."""
    with studio.context():
        delete_dead_task(studio.clients, _kill(studio, MAX_TASK_BYTES + 1))
        _pass_days(studio, 34)
        assert rows_here() == {"StoredArguments": 0, "ArgumentsChunk": 0}


def _pass_days(studio: World, days: float) -> None:
    """Let days pass, and sweep each partition."""
    studio.clock.sleep(datetime.timedelta(days=days).total_seconds())
    for partition in PARTITIONS:
        EXPIRED.delete_page(studio.clients, partition)


@one_emulator
def test_rows_of_a_task_that_was_never_created_expire(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: not before a task could still come; then the sweep deletes them, chunks included."""
    away = replace(studio.clients, tasks=_Away())
    with studio.context():
        with pytest.raises(ConnectionError):
            film.enqueue(away, "lost", frames(2_500_000))
        _pass_days(studio, LIFE.days - 1)
        assert rows_here() == {"StoredArguments": 1, "ArgumentsChunk": 3}
        _pass_days(studio, 2)
        assert rows_here() == {"StoredArguments": 0, "ArgumentsChunk": 0}


class _Away:
    def create(self, message: object) -> bool:
        raise ConnectionError


@one_emulator
def test_rows_live_as_long_as_a_task_that_is_due_late(studio: World) -> None:
    """H7: 30 days until it is due, and 31 more while it is retried."""
    late_s = datetime.timedelta(days=30).total_seconds() - 60
    with studio.context():
        bound = film.bind("late", frames(MAX_TASK_BYTES + 1))
        film.enqueue(studio.clients, bound, delay_s=late_s)
        _pass_days(studio, 60)
        assert rows_here()["ArgumentsChunk"] == 2


@one_emulator
def test_a_task_that_waits_again_and_again_keeps_its_arguments(services: Services) -> None:
    """H7: each planned wait of 30 days extends their life."""
    waits = [5]

    def wait(clients: Clients, args: object) -> None:
        if waits[0]:
            waits[0] -= 1
            raise Retry("not yet", after_s=datetime.timedelta(days=29).total_seconds())

    patient: Task[object] = replace(film, work=wait)
    studio = World(services, tasks=[patient])
    with studio.context():
        patient.enqueue(studio.clients, film.bind("patient", frames(MAX_TASK_BYTES + 1)))
        for _ in range(6):
            studio.deliver_due()
            _pass_days(studio, 29.5)
        assert waits == [0]
        assert rows_here()["ArgumentsChunk"] == 0
        assert DeadTask.query().fetch() == []


@one_emulator
def test_a_task_whose_rows_are_gone_is_a_dead_task_with_the_reason(studio: World) -> None:
    """Nobody can work on it; an operator learns why."""
    with studio.context():
        film.enqueue(studio.clients, "gone", frames(MAX_TASK_BYTES + 1))
        [head] = StoredArguments.query().fetch()
        head.key.delete()
    studio.settle()
    with studio.context():
        [dead] = DeadTask.query().fetch()
        assert "ArgumentsGoneError" in dead.reason
        assert runs_here() == {}


@one_emulator
def test_a_body_that_is_half_an_envelope_waits_for_another_version(studio: World) -> None:
    """H3: a later version may know this form."""
    task_id = names.hashed_name("odd")
    message = replace(film.message(film.bind("odd", "x")), name=task_id)
    studio.clients.tasks.create(replace(message, body=b'{"$rollforward":{"novel":[1]}}'))
    studio.deliver_due()
    with studio.context():
        assert DeadTask.query().fetch() == []
        assert runs_here() == {}
