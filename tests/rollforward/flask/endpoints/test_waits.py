"""Planned waits: a task is created again for its time, and is the same task all the while."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from rollforward.tasks import attempts
from rollforward.tasks.attempts import current_task
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Retry
from rollforward.tasks.stored.names import MAX_TASK_BYTES
from tests.handlers.conftest import Queue, app_with, on_app_engine, on_cloud_run
from tests.infra.clocks import Ahead
from tests.infra.runs import sampling
from tests.infra.world import World
from tests.rollforward.flask.acts import (
    PATH,
    Act,
    Work,
    attempt,
    away,
    delivery,
    one_emulator,
    rows,
)

pytestmark = one_emulator


def enqueued(world: World, app: Flask, work: Work, max_attempts: int = 50) -> None:
    """Enqueue a task that does what the test says."""
    world.app = app
    task: Task[Act] = Task(PATH, "default", Act, work, max_attempts=max_attempts)
    task.enqueue(world.clients, Act("x"), name=("one",))


def speed(world: World) -> float:
    """Return the share of its rate at which the queue runs."""
    return next(
        float(queue.throttle.factor)
        for queue in world.engine.queues.all()
        if queue.message.name.endswith("/default")
    )


def test_a_task_waits_as_long_as_it_says(world: World, app: Flask, work: Work) -> None:
    """H1: it is tried again at its time, not before, and with the same arguments."""
    enqueued(world, app, work)
    began_s = world.clock.time_s
    work.raises = Retry("the courier is out", after_s=90)
    answers = [attempt(world)]
    work.raises = None
    answers.append(attempt(world))

    assert answers == [200, 204]
    assert 90 <= world.clock.time_s - began_s < 91
    assert work.done == [Act("x"), Act("x")]
    assert attempt(world) == "gone"


def test_a_task_waits_as_long_as_it_says_although_the_clock_here_is_behind(
    world: World, app: Flask, work: Work
) -> None:
    """H1: the queue's clock is 50 s ahead of it, and would deliver a shorter wait at once."""
    enqueued(world, app, work)
    began_s = world.clock.time_s
    clock = Ahead(world.clock, -50)
    object.__setattr__(world.clients, "clock", clock)
    work.raises = Retry("the courier is out", after_s=30)
    times = []
    for _ in range(3):
        assert attempt(world) == 200
        times.append(world.clock.time_s - began_s)

    assert [round(at_s) for at_s in times] == [0, 30, 60]


@sampling.long
def test_a_thousand_waits_slow_no_queue_and_count_as_no_failure(
    world: World, app: Flask, work: Work
) -> None:
    """H3: a task that may fail twice waits a thousand times; its queue keeps its whole rate."""
    enqueued(world, app, work, max_attempts=2)
    work.raises = Retry("not yet", after_s=30)
    speeds = set()
    for _ in range(1_000):
        assert attempt(world) == 200
        speeds.add(speed(world))

    work.raises = None
    assert attempt(world) == 204
    assert speeds == {1.0}
    assert Queue(world, app).dead_tasks() == []
    assert rows(world) == []


def test_a_task_keeps_its_name_and_its_failures_over_its_waits(
    world: World, app: Flask, work: Work
) -> None:
    """H3, H6: two failures before a wait and one after it are three."""
    names = set()

    class Named(Work):
        def __call__(self, clients: Any, args: Act) -> None:
            names.add(current_task())
            super().__call__(clients, args)

    named = Named()
    task: Task[Act] = Task("/tasks/tests/named", "default", Act, named, max_attempts=3)
    world.app = app_with(world, task)
    task.enqueue(world.clients, Act("x"), name=("one",))
    answers = []
    bug = KeyError("bug")
    for named.raises in (bug, bug, Retry("later", after_s=60), Retry("later", after_s=60), bug):
        answers.append(attempt(world))

    assert answers == [422, 422, 200, 200, 200]
    [dead] = Queue(world, app).dead_tasks()
    assert (len(names), dead.task_name) == (1, names.pop())
    assert "gave up after 3 failures" in dead.reason
    assert rows(world) == []


@pytest.mark.parametrize("days", [1, 3, 29])
def test_a_task_keeps_its_failures_over_a_wait_of_days(
    world: World, work: Work, days: float
) -> None:
    """H3, H6: what it has failed by is remembered until it comes again, however late."""
    task: Task[Act] = Task(PATH, "default", Act, work, max_attempts=2)
    world.app = app_with(world, task)
    task.enqueue(world.clients, Act("x"))
    answers, bug = [], KeyError("bug")
    for work.raises in (bug, Retry("later", after_s=days * 24 * 3600), bug):
        answers.append(attempt(world))
        with world.context():
            attempts.delete_expired(world.clients)

    assert answers == [422, 200, 200]
    [dead] = Queue(world, world.app).dead_tasks()
    assert "gave up after 2 failures" in dead.reason


def test_marks_of_dead_workers_stay_counted_over_a_wait(
    world: World, queue: Queue, work: Work
) -> None:
    """H6: deliveries are numbered anew after a wait, so the marks become failures."""
    work.raises = Retry("later", after_s=60)
    with world.context():
        attempts.begin(world.clients, delivery(4, "503"))

    queue.deliver(PATH, retries=5, TaskPreviousResponse="503")

    assert [(row.failures, row.begun) for row in rows(world)] == [(1, [])]


def test_a_repeated_delivery_creates_no_second_task(world: World, queue: Queue, work: Work) -> None:
    """The name of the next task follows from this one's."""
    work.raises = Retry("later", after_s=60)

    answers = [queue.deliver(PATH, task_name="t1").status_code for _ in range(3)]

    assert answers == [200, 200, 200]
    assert [task.name.rpartition("/")[2] for task in world.live_tasks("default")] == ["t1-w1"]


def test_a_later_task_of_a_name_waits_as_the_first_one_did(
    world: World, app: Flask, work: Work
) -> None:
    """H1: Cloud Tasks frees its name before those of the first one's waits, which ended later."""
    enqueued(world, app, work)
    work.raises = Retry("the courier is out", after_s=6 * 3600)
    answers = [attempt(world)]
    work.raises = None
    answers.append(attempt(world))
    task: Task[Act] = Task(PATH, "default", Act, work)
    while not task.enqueue(world.clients, Act("y"), name=("one",)):
        world.clock.sleep(3600)

    work.raises = Retry("the courier is out", after_s=60)
    answers.append(attempt(world))
    work.raises = None
    answers.append(attempt(world))
    assert answers == [200, 204, 200, 204]
    assert work.done == [Act("x"), Act("x"), Act("y"), Act("y")]


def test_a_wait_that_cannot_be_stored_comes_again(world: World, queue: Queue, work: Work) -> None:
    """H2: Cloud Tasks does not answer: the delivery has not ended well."""
    work.raises = Retry("later", after_s=60)

    away(world)

    assert queue.deliver(PATH).status_code == 503


@pytest.mark.parametrize("place", [on_app_engine, on_cloud_run])
def test_a_deployed_app_answers_that_all_is_well(world: World, work: Work, place: Any) -> None:
    """No target slows a queue for 204."""
    task: Task[Act] = Task(PATH, "default", Act, work)
    app = app_with(world, task, settings=place(world))
    work.raises = Retry("later", after_s=60)
    headers = {"X-AppEngine-QueueName": "default", "X-AppEngine-TaskName": "t1"}

    if place is on_app_engine:
        answer = app.test_client().post(PATH, data=b"{}", headers=headers)
    else:
        answer = Queue(world, app).deliver(PATH)

    assert (answer.status_code, answer.data) == (204, b"")
    [waiting] = world.live_tasks("default")
    assert waiting.name.endswith("/t1-w1")


def test_a_body_that_was_not_read_to_its_end_is_not_created_again(queue: Queue) -> None:
    """A newer version may take longer bodies: the queue has the whole of it."""
    answer = queue.deliver("/tasks/of-another-version", b"x" * (MAX_TASK_BYTES + 5))

    assert answer.status_code == 409
