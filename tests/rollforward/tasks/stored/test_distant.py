"""Tasks due in more than 30 days: a row until they are near, then one task of Cloud Tasks."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.api_core.exceptions import PermissionDenied, ServiceUnavailable
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks import BadArgumentsError, task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.errors import NotAttemptedError
from rollforward.tasks.stored import near
from rollforward.tasks.stored.entities import DistantTask
from rollforward.tasks.stored.sweep import EXPIRED
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator, queued
from tests.rollforward.tasks.stored.films import FilmRun, digest, film, frames, rows_here, runs_here

DAY_S = 24 * 3600.0
YEARS_S = 9 * 365 * DAY_S


@pytest.fixture
def studio(services: Services) -> World:
    return World(services, tasks=[film])


def pass_days(studio: World, days: float) -> None:
    """Let days pass, sweep, and deliver the tasks that are due."""
    studio.clock.sleep(days * DAY_S)
    studio.sweep("/cron/tasks/sweep")
    studio.deliver_due()


def distant_here() -> list[DistantTask]:
    return DistantTask.query().fetch()  # type: ignore[no-any-return]


@pytest.mark.parametrize("days", [31, 400, YEARS_S / DAY_S])
def test_a_distant_task_runs_once_at_its_time(studio: World, days: float) -> None:
    """B8: not a day before, and its row is gone."""
    with studio.context():
        assert film.enqueue(studio.clients, film.bind("sequel", "x"), delay_s=days * DAY_S)
        assert queued(studio) == []
        pass_days(studio, days - 1)
        assert runs_here() == {}
        assert len(queued(studio)) == 1
        pass_days(studio, 1.001)
        pass_days(studio, 1)
        assert runs_here() == {"sequel": 1}
        assert distant_here() == []


@one_emulator
@pytest.mark.parametrize(("days", "rows"), [(29.9, 0), (29.97, 1), (30, 1)])
def test_a_task_within_the_service_s_time_costs_no_row(
    studio: World, days: float, rows: int
) -> None:
    """The service's clock may be behind ours, so the last hour of 30 days is a row."""
    with studio.context():
        film.enqueue(studio.clients, film.bind("soon", "x"), delay_s=days * DAY_S)
        assert (len(queued(studio)), len(distant_here())) == (1 - rows, rows)


@one_emulator
def test_a_time_beyond_ten_years_or_without_a_zone_is_refused(studio: World) -> None:
    """A wrong unit is seen at once."""
    bound = film.bind("never", "x")
    with studio.context():
        with pytest.raises(BadArgumentsError, match="within 3660 days"):
            film.enqueue(studio.clients, bound, delay_s=11 * 366 * DAY_S)
        with pytest.raises(BadArgumentsError, match="aware time"):
            film.enqueue(studio.clients, bound, at=datetime.datetime(2040, 1, 1))  # noqa: DTZ001


def test_a_transaction_commits_a_distant_task_or_none(studio: World) -> None:
    """B8: with its data, under its name, and several in one commit."""

    def body(fails: bool) -> None:
        for _ in range(2):
            outbox.enqueue(studio.clients, film, film.bind("twin", "x"), delay_s=YEARS_S)
        outbox.enqueue(studio.clients, film, film.bind("one", "x"), name=("a",), delay_s=YEARS_S)
        if fails:
            raise LookupError

    with studio.context():
        with pytest.raises(LookupError):
            transact(lambda: body(True))
        assert distant_here() == []
        transact(lambda: body(False))
        transact(lambda: body(False))
        assert len(distant_here()) == 5
        pass_days(studio, YEARS_S / DAY_S - 1)
        pass_days(studio, 1.001)
        assert runs_here() == {"twin": 4, "one": 1}


@pytest.mark.parametrize(("tasks", "chars"), [(45, 95_000), (205, 1)])
def test_one_sweep_creates_what_is_more_than_a_commit_takes(
    studio: World, tasks: int, chars: int
) -> None:
    """B8: each keeps its name in a row of up to 100 kB; the emulators take 4 MiB at a time."""
    with studio.context():
        for number in range(tasks):
            bound = film.bind(f"film {number}", "x" * chars)
            assert film.enqueue(studio.clients, bound, name=(number,), delay_s=YEARS_S)
        pass_days(studio, YEARS_S / DAY_S - 1)
        assert len(queued(studio)) == tasks
        assert [row for row in distant_here() if row.waits_until is not None] == []


@one_emulator
def test_many_tasks_that_are_refused_stop_no_sweep(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8: their queue does not exist yet; the task of another one, due later, is created."""
    monkeypatch.setattr(near, "MAX_PER_CALL", 2)
    with studio.context():
        for number in range(5):
            film.enqueue(studio.clients, film.bind(f"gone {number}", "x"), delay_s=YEARS_S)
        for row in distant_here():
            row.queue = "gone"
            row.put()
        film.enqueue(studio.clients, film.bind("sequel", "x"), delay_s=YEARS_S + DAY_S)
        pass_days(studio, YEARS_S / DAY_S - 1)
        assert len(queued(studio)) == 1


@one_emulator
def test_tasks_of_a_queue_that_the_app_may_not_use_starve_no_other(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8: the task of another queue is created, and theirs once the right is granted."""
    monkeypatch.setattr(near, "MAX_PER_CALL", 2)
    denied = failing(studio, monkeypatch, PermissionDenied("no right to create tasks"))  # type: ignore[no-untyped-call]
    with studio.context():
        enqueue_three_and_a_later_one(studio)
        pass_days(studio, YEARS_S / DAY_S - 1)
        assert len(queued(studio)) == 1

        pass_days(studio, 3)
        assert (runs_here(), DeadTask.query().fetch()) == ({"sequel": 1}, [])
        denied.clear()
        pass_days(studio, 0.01)
        assert len(runs_here()) == 4


@one_emulator
@pytest.mark.parametrize("error", [ServiceUnavailable("busy"), NotAttemptedError()])  # type: ignore[no-untyped-call]
def test_tasks_of_a_queue_that_does_not_answer_starve_no_other(
    studio: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """B8: the task of another queue gets its turn; theirs are late by their own time."""
    monkeypatch.setattr(near, "MAX_PER_CALL", 2)
    silent = failing(studio, monkeypatch, error)
    with studio.context():
        enqueue_three_and_a_later_one(studio)
        pass_days(studio, YEARS_S / DAY_S - 0.5)
        for _ in range(2):
            pass_days(studio, 0.001)
        assert len(queued(studio)) == 1
        assert near.late_s(studio.clients) > 1.5 * DAY_S

        silent.clear()
        pass_days(studio, 1.6)
        assert len(runs_here()) == 4


def failing(studio: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> set[str]:
    """Let the queue "failing" fail; return the queues that do."""
    sound, queues = studio.clients.tasks.create_all, {"failing"}

    def create_all(messages: Sequence[Message]) -> list[bool | Exception]:
        asked = [replace(message, queue="default") for message in messages]
        return [
            error if message.queue in queues else sound([default])[0]
            for message, default in zip(messages, asked, strict=True)
        ]

    monkeypatch.setattr(studio.clients.tasks, "create_all", create_all)
    return queues


def enqueue_three_and_a_later_one(studio: World) -> None:
    """Enqueue three tasks of the queue "failing", and one of another, due a day later."""
    for number in range(3):
        film.enqueue(studio.clients, film.bind(f"film {number}", "x"), delay_s=YEARS_S)
    for row in distant_here():
        row.queue = "failing"
        row.put()
    film.enqueue(studio.clients, film.bind("sequel", "x"), delay_s=YEARS_S + DAY_S)


def test_a_name_exists_until_nine_days_after_its_task(studio: World) -> None:
    """B8: while the row waits, and while its task does."""

    def again() -> bool:
        return film.enqueue(studio.clients, film.bind("named", "x"), name=("n",), delay_s=YEARS_S)

    with studio.context():
        assert again()
        assert not again()
        pass_days(studio, YEARS_S / DAY_S - 1)
        assert not again()
        pass_days(studio, 2)
        assert not again()
        assert runs_here() == {"named": 1}
        studio.clock.sleep(9 * DAY_S)
        for partition in "0123456789abcdef":
            EXPIRED.delete_page(studio.clients, partition)
        assert distant_here() == []


@one_emulator
def test_large_arguments_wait_with_a_distant_task(studio: World) -> None:
    """H7, B8: their rows expire after it, and not before."""
    with studio.context():
        film.enqueue(studio.clients, film.bind("epic", frames(1_500_000)), delay_s=YEARS_S)
        pass_days(studio, YEARS_S / DAY_S - 1)
        pass_days(studio, 1.001)
        assert FilmRun.get_by_id("epic").digest == digest(frames(1_500_000))
        assert rows_here()["ArgumentsChunk"] == 0


@one_emulator
def test_equal_large_tasks_of_one_transaction_have_arguments_of_their_own(studio: World) -> None:
    """B8, H7: the first one that is done takes nothing from the second, due a day later."""

    def body() -> None:
        for days in (40, 41):
            bound = film.bind("serial", frames(150_000))
            outbox.enqueue(studio.clients, film, bound, delay_s=days * DAY_S)

    with studio.context():
        transact(body)
        pass_days(studio, 39)
        for _ in range(2):
            pass_days(studio, 1.001)
        assert runs_here() == {"serial": 2}
        assert rows_here()["ArgumentsChunk"] == 0


@one_emulator
def test_a_sweep_costs_a_query_and_reads_only_what_is_near(studio: World) -> None:
    """1,000 tasks due in years cost what none costs."""
    with studio.context():
        idle = _reads(studio)
        for number in range(50):
            bound = film.bind(f"f{number}", "x")
            film.enqueue(studio.clients, bound, delay_s=YEARS_S + number)
        assert _reads(studio) == idle
        film.enqueue(studio.clients, film.bind("near", "x"), delay_s=31 * DAY_S)
        studio.clock.sleep(30 * DAY_S)
        assert near.create_near(studio.clients) == 1
        assert _reads(studio) == idle


def _reads(studio: World) -> int:
    before = studio.clients.meter.cost()
    near.create_near(studio.clients)
    return int((studio.clients.meter.cost() - before).reads)


@task("/tasks/tests/lost-film", queue="no-such-queue")
def lost_film(clients: Clients, tag: str) -> None:
    """Never run: its queue does not exist."""


@one_emulator
def test_a_task_that_is_refused_starves_no_other_and_becomes_a_dead_task(
    services: Services,
) -> None:
    """B8, B7: with its reason, when it is due."""
    studio = World(services, tasks=[film, lost_film])
    with studio.context():
        lost_film.enqueue(studio.clients, lost_film.bind("lost"), delay_s=40 * DAY_S)
        film.enqueue(studio.clients, film.bind("well", "x"), delay_s=40 * DAY_S + 1)
        pass_days(studio, 38.5)
        assert len(queued(studio)) == 1
        assert DeadTask.query().fetch() == []
        pass_days(studio, 1.6)
        [dead] = DeadTask.query().fetch()
        assert "Cloud Tasks refuses it. UnknownQueueError" in dead.reason
        assert [row.key.id() for row in distant_here()] == []


def test_a_task_whose_queue_was_renamed_in_the_meantime_runs_at_its_time(
    services: Services,
) -> None:
    """B8: by the queue that the app declares now."""
    studio = World(services, tasks=[film], knows_paths=True)
    with studio.context():
        before = replace(film, queue="no-such-queue")
        before.enqueue(studio.clients, film.bind("late", "x"), delay_s=40 * DAY_S)
        pass_days(studio, 38.5)
        studio.sweep("/cron/tasks/sweep")
        assert len(queued(studio)) == 1
        pass_days(studio, 1.6)
        assert DeadTask.query().fetch() == []
        assert len(FilmRun.get_by_id("late").tasks) == 1


@dataclass
class SequelScenario:
    """Enqueue a distant task, alone or in a transaction; let its time come."""

    world: World
    way: str

    def begin(self, tag: str) -> None:
        clients, call = self.world.clients, film.bind(tag, "x")
        at = self.world.clock.now() + datetime.timedelta(days=40)
        if self.way == "directly":
            film.enqueue(clients, call, name=(tag,), at=at)
        else:
            transact(lambda: outbox.enqueue(clients, film, call, name=(tag,), at=at))
        for days in (38.5, 1.5):
            self.world.clock.sleep(days * DAY_S)
            near.create_near(clients)

    def is_done(self, tag: str) -> bool:
        return FilmRun.get_by_id(tag) is not None

    def check(self, tag: str, fault: str) -> None:
        assert len(FilmRun.get_by_id(tag).tasks) == 1, fault
        assert [row.waits_until for row in distant_here() if row.waits_until] == [], fault


@pytest.fixture(params=["directly", "committed"])
def scenario(request: pytest.FixtureRequest, services: Services) -> SequelScenario:
    return SequelScenario(World(services, tasks=[film]), request.param)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_distant_task_exists_once_with_a_fault_at_any_call(
    scenario: SequelScenario, kind: str
) -> None:
    """B8: and it runs, within a sweep."""
    assert Explorer(scenario.world, scenario).explore([kind])


def test_a_distant_task_exists_once_in_any_order(scenario: SequelScenario) -> None:
    """B8: each delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(1)
    Explorer(scenario.world, scenario).play()


def _nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "_name", lambda row: random.randbytes(8).hex())


def _removed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = near._create

    def create(clients: Clients, rows: Any, now_utc: Any) -> int:
        ndb.delete_multi([row.key for row in rows])
        return sound(clients, rows, now_utc)

    monkeypatch.setattr(near, "_create", create)


@pytest.mark.parametrize("plant", [_nameless, _removed_first])
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = SequelScenario(World(services, tasks=[film]), "directly")
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(at_most=ALL)
