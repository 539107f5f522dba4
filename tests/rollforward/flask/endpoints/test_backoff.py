"""Back-off of tasks that keep failing by their own fault. Invariants H2 and H6."""

from __future__ import annotations

import pytest
from flask import Flask

from rollforward.tasks import attempts
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Unavailable
from rollforward.testing.injection import Crash
from tests.handlers.conftest import Queue, app_with
from tests.infra.clocks import ahead
from tests.infra.runs import sampling
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work, attempt, delivery, one_emulator


@pytest.fixture
def app(world: World, work: Work) -> Flask:
    """The same app, whose task may fail as often as tasks may by default."""
    return app_with(world, Task(PATH, "default", Act, work))


def enqueued(world: World, app: Flask) -> None:
    """Enqueue the app's task."""
    world.app = app
    task: Task[Act] = Task(PATH, "default", Act, lambda *_: None)
    task.enqueue(world.clients, Act("x"))


@sampling.long
@one_emulator
@pytest.mark.parametrize(("end", "tries"), [(KeyError("bug"), 50), (Crash(), 53)])
def test_attempts_of_a_task_that_keeps_failing_outlast_a_bad_deployment(
    world: World, app: Flask, work: Work, end: BaseException, tries: int
) -> None:
    """H6: the queue delivers every five seconds, and fifty attempts still take half an hour."""
    enqueued(world, app)
    work.raises, began_s = end, world.clock.time_s

    while attempt(world) not in (200, 204):
        pass

    assert len(work.done) == tries, "of those that kill their worker the first three are not noted"
    assert 30 * 60 < world.clock.time_s - began_s < 60 * 60
    assert len(Queue(world, app).dead_tasks()) == 1


@one_emulator
@pytest.mark.parametrize("end", [KeyError("bug"), Unavailable("x")])
def test_only_failures_of_its_own_keep_a_task_waiting(
    world: World, app: Flask, work: Work, end: Exception
) -> None:
    """H6: a task that has failed twelve times and then meets an outage is tried again at once."""
    enqueued(world, app)
    while len(work.done) < 12:
        work.raises = KeyError("bug")
        attempt(world)
    world.clock.sleep(attempts.MAX_BACKOFF_S)
    work.raises = end
    attempt(world)

    work.raises = None
    answer = attempt(world)

    assert answer == (422 if isinstance(end, KeyError) else 204)


@one_emulator
def test_a_wrong_clock_keeps_no_task_waiting(world: World) -> None:
    """H2: a process a year ahead has counted ten failures: the next delivery tries all the same."""
    with world.context():
        for number in range(10):
            attempts.fail(ahead(world.clients, 365 * 86_400), delivery(number))

        assert attempts.begin(world.clients, delivery(10, "422")) == 0


@one_emulator
def test_a_delivery_whose_mark_was_lost_in_doubt_is_made(world: World) -> None:
    """H6: the commit of its mark took effect and was not answered: it works, and is no death."""
    with world.context():
        for number in range(10):
            attempts.fail(world.clients, delivery(number))
        world.clock.sleep(attempts.MAX_BACKOFF_S)
        world.plan.reset("reply-lost", 2)  # BeginTransaction, Lookup, Commit.
        with world.plan.watched():
            failures = attempts.begin(world.clients, delivery(10, "422"))

    assert "Commit" in world.plan.fired
    assert failures == 10
