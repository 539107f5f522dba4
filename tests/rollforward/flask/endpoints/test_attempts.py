"""What counts against a task, and what does not. Invariants H2, H3 and H6."""

from __future__ import annotations

import pytest
from flask import Flask

from rollforward.tasks import attempts
from rollforward.tasks.attempts import TaskDelivery
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import OtherVersionError, Retry, Unavailable
from rollforward.testing.injection import Crash
from tests.handlers.conftest import Queue
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.flask.acts import (
    NOT_ITS_FAULT,
    PATH,
    Act,
    Work,
    attempt,
    away,
    delivery,
    one_emulator,
    rows,
)


def enqueued(world: World, app: Flask, work: Work) -> None:
    """Enqueue a task that may fail three times."""
    world.app = app
    task: Task[Act] = Task(PATH, "default", Act, work, max_attempts=3)
    task.enqueue(world.clients, Act("x"))


@one_emulator
def test_a_task_that_keeps_failing_is_dead_lettered_at_its_last_failure(
    queue: Queue, work: Work, world: World
) -> None:
    """H3, H6: `max_attempts` failures of its own, then it makes room and can be found."""
    work.raises = KeyError("bug")

    answers = [queue.deliver(PATH, retries=retries).status_code for retries in range(3)]

    assert answers == [422, 422, 200]
    [dead] = queue.dead_tasks()
    assert dead.reason.startswith("gave up after 3 failures: KeyError: 'bug'\n")  # As lists say.
    assert rows(world) == []


@one_emulator
@pytest.mark.parametrize("error", NOT_ITS_FAULT.values(), ids=NOT_ITS_FAULT)
def test_what_is_not_its_fault_never_counts_against_a_task(
    world: World, app: Flask, work: Work, error: Exception
) -> None:
    """H2, H3: an outage, a doubt or a lost race of any length leaves no dead task; nor do failures
    on both sides of it add up to more than they are."""
    enqueued(world, app, work)
    ends = [KeyError("bug"), *[error] * 12, KeyError("bug"), *[error] * 3, None]

    answers = []
    for work.raises in ends:
        answers.append(attempt(world))

    assert answers[0] == answers[13] == 422
    assert set(answers[1:13]) <= {200, 409, 503}
    assert answers[-1] == 204
    assert Queue(world, app).dead_tasks() == []


@pytest.mark.parametrize("front_end", [None, 500, 502, 503, 504])
def test_a_task_over_which_workers_die_is_dead_lettered(
    world: World, app: Flask, work: Work, front_end: int | None
) -> None:
    """H2, H6: whoever answers for the dead worker, the third death that was noted is the last."""
    enqueued(world, app, work)
    work.raises = Crash()

    answers = [attempt(world, front_end) for _ in range(8)]

    assert answers == [None] * 6 + [204, "gone"]
    assert len(work.done) == 6, "three that are not noted, three that are"
    [dead] = Queue(world, app).dead_tasks()
    assert "without a response" in dead.reason
    assert rows(world) == []


@one_emulator
def test_deaths_and_failures_add_up(world: World, app: Flask, work: Work) -> None:
    """H6: a task that fails now and kills its worker then is given up as one that does either."""
    enqueued(world, app, work)
    ends = [None, KeyError("bug"), Unavailable("x"), KeyError("bug"), Unavailable("x")]
    for work.raises in ends[1:]:
        attempt(world)

    work.raises = Crash()
    answers = [attempt(world, 502), attempt(world, 502)]

    assert answers == [None, 204]
    assert len(Queue(world, app).dead_tasks()) == 1


@one_emulator
def test_an_app_that_nobody_reached_dead_letters_nothing_untried(
    world: World, app: Flask, work: Work
) -> None:
    """H3: fifty deliveries were refused at the door; the next one does the work."""
    enqueued(world, app, work)
    for _ in range(50):
        wake_at = world.engine.wake_at()
        world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.01)
        begun = world.engine.begin_attempt(world.engine.due()[0].task_name)
        world.engine.end_attempt(begun.id, status=None, error="connection refused")

    assert attempt(world) == 204
    assert work.done == [Act("x")]
    assert Queue(world, app).dead_tasks() == []


@one_emulator
def test_a_slow_delivery_that_ends_after_all_is_no_death(queue: Queue, world: World) -> None:
    """H6: it outlived its deadline while others began; when it ends, nothing speaks against it."""
    slow, next_one = delivery(3, "504"), delivery(4, "504")

    with world.context():
        counts = [attempts.begin(world.clients, slow), attempts.begin(world.clients, next_one)]
        attempts.end_later(world.clients, slow)
        counts.append(attempts.begin(world.clients, delivery(5, "504")))
        attempts.finish_delivery(next_one)

    assert counts == [0, 1, 1]
    assert rows(world) == []


@one_emulator
def test_two_deliveries_of_one_attempt_are_no_death(world: World) -> None:
    """H6: the queue delivered twice at the same moment: neither speaks against the other."""
    with world.context():
        counts = [attempts.begin(world.clients, delivery(7, "503")) for _ in range(2)]

    assert counts == [0, 0]


@one_emulator
def test_a_later_delivery_that_has_begun_first_speaks_against_no_earlier_one(world: World) -> None:
    """H6: of what is under way behind it, nobody knows yet how it ends."""
    with world.context():
        counts = [attempts.begin(world.clients, delivery(number, "503")) for number in (8, 7, 9)]

    assert counts == [0, 0, 2]


@one_emulator
@pytest.mark.parametrize(("number", "last_answer"), [(0, ""), (1, "503"), (2, "503"), (40, "409")])
def test_deliveries_that_prove_nothing_note_nothing(
    world: World, queue: Queue, number: int, last_answer: str
) -> None:
    """The first deliveries, and those that lost a race, write nothing before they work.

    What a delivery before them may have noted is deleted when the task is done.
    """
    with world.plan.watched():
        queue.deliver(PATH, retries=number, TaskPreviousResponse=last_answer)

    assert world.plan.calls == (["Commit"] if number else [])


@one_emulator
def test_a_store_that_is_away_keeps_no_task_from_being_tried(
    world: World, queue: Queue, work: Work
) -> None:
    """H2: an attempt that cannot be noted is made all the same, and answered as it ends."""
    away(world)

    answers = []
    for work.raises in (None, KeyError("bug"), Retry("x")):
        answers.append(queue.deliver(PATH, retries=5, TaskPreviousResponse="503").status_code)

    assert answers == [204, 422, 409]


@one_emulator
def test_a_task_of_another_version_is_not_dead_lettered_while_the_store_is_away(
    world: World, queue: Queue
) -> None:
    """H3: nobody knows how long it has waited: it comes again."""
    away(world)

    assert queue.deliver("/tasks/nothing").status_code == 503


@one_emulator
def test_a_failure_whose_reply_was_lost_counts_once(world: World, queue: Queue, work: Work) -> None:
    """H6: failures are counted, and not commits."""
    work.raises = KeyError("bug")
    world.plan.reset("reply-lost", 2)  # BeginTransaction, Lookup, Commit.

    with world.plan.watched():
        assert queue.deliver(PATH).status_code == 422

    assert "Commit" in world.plan.fired
    assert [row.failures for row in rows(world)] == [1]


@one_emulator
@pytest.mark.parametrize("error", NOT_ITS_FAULT.values(), ids=NOT_ITS_FAULT)
def test_a_delivery_that_ends_by_no_fault_of_its_own_leaves_no_mark(
    world: World, queue: Queue, work: Work, error: Exception
) -> None:
    """H3: what was noted before the work is taken back by whatever answer it gets."""
    work.raises = error
    # A task that waits for another version keeps its row: since when is written there.
    marks = [[]] if isinstance(error, OtherVersionError) else []

    queue.deliver(PATH, retries=5, TaskPreviousResponse="503")

    assert [row.begun for row in rows(world)] == marks


@one_emulator
@pytest.mark.parametrize(
    ("retries", "last_answer"), [(1, "422"), (2, "503"), (2, "409"), (4, "422"), (4, "503")]
)
def test_a_task_that_is_done_leaves_no_row(
    world: World, queue: Queue, work: Work, retries: int, last_answer: str
) -> None:
    """What was counted goes with the task, at once and not after two days."""
    work.raises = KeyError("bug")
    queue.deliver(PATH)
    work.raises = None

    queue.deliver(PATH, retries=retries, TaskPreviousResponse=last_answer)

    assert rows(world) == []


@one_emulator
def test_attempts_that_go_on_are_kept(world: World) -> None:
    """H6: a task that comes once a day and fails each time is given up, too."""
    with world.context():
        counts = []
        for number in range(4):
            counts.append(attempts.fail(world.clients, delivery(number)))
            world.clock.sleep(attempts.EXPIRES_S - 1)

    assert counts == [1, 2, 3, 4]


@one_emulator
def test_attempts_of_two_days_ago_are_of_another_task(world: World) -> None:
    """A name may come again when Cloud Tasks has forgotten it: it begins anew."""
    with world.context():
        for number in range(3):
            attempts.fail(world.clients, delivery(number))
        world.clock.sleep(attempts.EXPIRES_S)
        count = attempts.fail(world.clients, delivery(0))

    assert count == 1


@one_emulator
def test_attempts_of_a_wrong_clock_mean_nothing(world: World) -> None:
    """A process whose clock is a year ahead lets no task wait for a year."""
    with world.context():
        attempts.is_old(ahead(world.clients, 365 * 86_400), delivery(0))
        attempts.is_old(world.clients, delivery(1))
        world.clock.sleep(attempts.DEPLOY_S)

        assert attempts.is_old(world.clients, delivery(2))


@one_emulator
def test_a_pause_of_a_wrong_clock_is_not_waited_for(world: World) -> None:
    """Of a task that has failed often; a process whose clock is an hour ahead saw it last."""
    with world.context():
        for number in range(attempts.BACKOFF_FROM):
            attempts.fail(world.clients, delivery(number))
        attempts.fail(ahead(world.clients, 3_600), delivery(attempts.BACKOFF_FROM))

        known = attempts.begin(world.clients, delivery(attempts.BACKOFF_FROM + 1))

    assert known == attempts.BACKOFF_FROM + 1


@one_emulator
@pytest.mark.parametrize("ends", ["failed", "killed", "failed killed"])
def test_a_task_that_keeps_failing_is_tried_at_longer_intervals(world: World, ends: str) -> None:
    """H3: whoever delivers it earlier is told how often it has failed, or died over its worker.

    A death is not noted of the first deliveries.
    """
    pauses_s, failures = list[float](), 0
    with world.context():
        for number in range(attempts.NOTED_FROM + 14):
            pauses_s.append(pause_s(world, delivery(number), failures))
            has_failed = ends.split()[number % len(ends.split())] == "failed"
            if has_failed:
                attempts.fail(world.clients, delivery(number))
            failures += has_failed or number >= attempts.NOTED_FROM

    pauses_s = pauses_s[number + 1 - failures :]
    assert pauses_s[: attempts.BACKOFF_FROM] == [0.0] * attempts.BACKOFF_FROM
    assert pauses_s[attempts.BACKOFF_FROM :][:5] == [10.0, 20.0, 40.0, 60.0, 60.0]


def pause_s(world: World, tried: TaskDelivery, failures: int) -> float:
    """Begin a delivery as soon as it may; return for how long it was sent away."""
    waited_s = 0.0
    while (refusal := refused(world, tried)) is not None:
        assert f"it has failed {failures} times" in refusal
        world.clock.sleep(1)
        waited_s += 1
    return waited_s


def refused(world: World, tried: TaskDelivery) -> str | None:
    """Begin a delivery; return why it may not yet, if it may not."""
    try:
        attempts.begin(world.clients, tried)
    except attempts.RetryLaterError as error:
        return str(error)
    return None


@one_emulator
def test_the_sweep_forgets_what_nobody_came_back_for(world: World) -> None:
    """Rows of tasks that were deleted by hand go after two days, and no others."""
    with world.context():
        attempts.fail(world.clients, delivery(0, name="old"))
        world.clock.sleep(attempts.EXPIRES_S)
        attempts.fail(world.clients, delivery(0, name="young"))

    world.sweep()

    assert [row.key.id() for row in rows(world)] == [delivery(0, name="young").attempts_id]


def test_tasks_are_told_apart_by_queue_and_name(world: World) -> None:
    """What one task did does not count against another; without a name its body tells."""
    ids = {
        delivery(0, name="a").attempts_id,
        delivery(0, name="b").attempts_id,
        TaskDelivery(PATH, "imports", "a", b"{}", 0, "").attempts_id,
        delivery(0, name="").attempts_id,
        TaskDelivery(PATH, "default", "", b"[]", 0, "").attempts_id,
    }

    assert len(ids) == 5
