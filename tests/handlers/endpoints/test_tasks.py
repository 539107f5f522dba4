"""How deliveries end: 204, parked, 429, 503, 500. Invariants H1 to H6, S10, S11 and S23."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from flask import Flask
from google.api_core import exceptions as rpc_errors

from models.attempts import TaskAttempts
from pipelines.fork_join.queue import OutcomeUnknownError
from pipelines.runtime import Clients
from pipelines.tasks import attempts
from pipelines.tasks.attempts import Delivery
from pipelines.tasks.declaration import MAX_BODY_BYTES, Task
from pipelines.tasks.errors import BadArgumentsError, Reject, Retry, Unavailable
from tests.clocks import ahead
from tests.faults import Crash
from tests.handlers.conftest import Queue, app_with
from tests.world import World

PATH = "/tasks/tests/act"


@dataclass(frozen=True)
class Act:
    """Arguments of every type there is in JSON."""

    word: str = "done"
    number: int = 0
    share: float = 0.0


class Work:
    """What the task under test does: whatever the test says, and it counts."""

    def __init__(self) -> None:
        self.done: list[Act] = []
        self.raises: BaseException | None = None

    def __call__(self, clients: Clients, args: Act) -> None:
        self.done.append(args)
        if self.raises is not None:
            raise self.raises


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def app(world: World, work: Work) -> Flask:
    return app_with(world, Task(PATH, "default", Act, work, max_attempts=3))


@pytest.fixture
def queue(world: World, app: Flask) -> Queue:
    return Queue(world, app)


one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@one_emulator
def test_work_that_is_done_is_answered_204(queue: Queue, work: Work) -> None:
    """H1: the arguments reach the function, and the answer takes the task off the queue."""
    answer = queue.deliver(PATH, {"word": "x", "number": 5, "share": 0.5})

    assert (answer.status_code, answer.data) == (204, b"")
    assert work.done == [Act("x", 5, 0.5)]
    assert queue.dead_tasks() == []


OUTCOMES = {
    "parked": (Reject("no use"), 204, 1),
    "lost its race": (Retry("leased"), 429, 0),
    "aborted": (rpc_errors.Aborted("contention"), 429, 0),
    "unwell": (Unavailable("relay"), 503, 0),
    "not accepted": (OutcomeUnknownError("an insert"), 503, 0),
    "cancelled": (rpc_errors.Cancelled("datastore"), 503, 0),
    "data loss": (rpc_errors.DataLoss("datastore"), 503, 0),
    "unavailable": (rpc_errors.ServiceUnavailable("datastore"), 503, 0),
    "internal": (rpc_errors.InternalServerError("datastore"), 503, 0),
    "deadline": (rpc_errors.DeadlineExceeded("datastore"), 503, 0),
    "exhausted": (rpc_errors.ResourceExhausted("quota"), 503, 0),
    "unknown": (rpc_errors.Unknown("?"), 503, 0),
    "retried": (rpc_errors.RetryError("gave up", cause=ValueError()), 503, 0),
    "refused by a service": (rpc_errors.InvalidArgument("key"), 500, 0),
    "denied": (rpc_errors.PermissionDenied("key"), 500, 0),
    "a bug": (KeyError("bug"), 500, 0),
}
NOT_ITS_FAULT = {
    name: error for name, (error, status, parked) in OUTCOMES.items() if status in (429, 503)
}


@one_emulator
@pytest.mark.parametrize(("error", "status", "parked"), OUTCOMES.values(), ids=OUTCOMES)
def test_each_way_to_end_has_its_answer(
    queue: Queue, work: Work, error: Exception, status: int, parked: int
) -> None:
    """H1, H2: only what can never work leaves the queue; everything else comes again."""
    work.raises = error

    answer = queue.deliver(PATH)

    assert (answer.status_code, answer.data) == (status, b"")
    assert len(queue.dead_tasks()) == parked


def test_a_parked_task_can_be_read_and_its_repetitions_count(queue: Queue, work: Work) -> None:
    """H3: a dead task says what, where and why; parked again it is the same row."""
    work.raises = Reject("no such party")

    for _ in range(3):
        queue.deliver(PATH, {"word": "x"}, task_name="t7")
    queue.deliver(PATH, {"word": "y"}, task_name="t8")

    first, second = sorted(queue.dead_tasks(), key=lambda dead: dead.task_name)
    assert (first.path, first.queue, first.task_name) == (PATH, "default", "t7")
    assert (first.body, first.count, second.count) == ('{"word": "x"}', 3, 1)
    assert "no such party" in first.reason
    assert not first.resolved


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"word=x",
    "cut off": b'{"word": "x',
    "null": b"null",
    "a list": b"[]",
    "a text": b'"word"',
    "wrong type": b'{"word": 5}',
    "a number in words": b'{"number": "5"}',
    "a broken number": b'{"number": 5.5}',
    "true for a number": b'{"number": true}',
    "NaN for a number": b'{"number": NaN}',
    "NaN": b"NaN",
    "nested deep": b"[" * 100_000,
    "nested deep in an extra field": b'{"x": ' + b"[" * 90_000,
    "5,000 digits": b'{"number": ' + b"9" * 5_000 + b"}",
    "lone surrogate": b'{"word": "\\ud800"}',
    "not UTF-8": b'{"word": "\xff\xfe"}',
    "UTF-16": '{"word": "x"}'.encode("utf-16"),
    "NUL": b'{"word": "x"}\x00',
    "two values": b"{} {}",
    "a pickle": b"cos\nsystem\n(S'echo'\ntR.",
    "a function's name": b'"os.system"',
}


@one_emulator
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_fits_no_arguments_is_never_worked_on(
    world: World, queue: Queue, work: Work, body: bytes
) -> None:
    """H3, S10, S23: no error of ours; another version may know it; after an hour it is parked."""
    answers = [queue.deliver(PATH, body).status_code]
    world.clock.sleep(3_599)
    answers += [queue.deliver(PATH, body).status_code for _ in range(2)]
    parked = len(queue.dead_tasks())
    world.clock.sleep(1)
    answers += [queue.deliver(PATH, body).status_code]

    assert answers == [429, 429, 429, 204]
    assert parked == 0
    assert work.done == []
    [dead] = queue.dead_tasks()
    assert (dead.count, dead.body) == (1, body[:MAX_BODY_BYTES].decode(errors="replace"))
    assert len(dead.reason) < 1_000
    assert rows(world) == []


@one_emulator
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"word": "x", "added_next_week": [1]}', Act("x")),
        (b'{"word": "x", "word": "y"}', Act("y")),
        (b'{"number": 5, "share": 5}', Act(number=5, share=5.0)),
        (b'{"number": ' + b"9" * 4_000 + b"}", Act(number=int("9" * 4_000))),
        ('{"word": "庭\\u0000"}'.encode(), Act("庭\0")),
        (b" \n {} ", Act()),
    ],
)
def test_a_body_of_another_version_is_worked_on(
    queue: Queue, work: Work, body: bytes, expected: Act
) -> None:
    """Old and new code run side by side in a deploy: fields that are unknown do no harm."""
    assert queue.deliver(PATH, body).status_code == 204
    assert work.done == [expected]


@one_emulator
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 2 * 2**20])
def test_an_oversized_body_is_parked_unread(queue: Queue, work: Work, size: int) -> None:
    """H3, H5, S23: larger than a task can be: it does not come for ever; its beginning is kept."""
    assert queue.deliver(PATH, b"x" * size).status_code == 204

    assert work.done == []
    [dead] = queue.dead_tasks()
    assert dead.body == "x" * MAX_BODY_BYTES
    assert "the rest is not kept" in dead.reason


@one_emulator
@pytest.mark.parametrize(
    "path", ["/tasks/nothing", "/tasks/os.system", "/tasks/tests/act/__init__"]
)
def test_a_path_that_nobody_declared_waits_an_hour_and_is_parked(
    world: World, queue: Queue, work: Work, path: str
) -> None:
    """S11: only the literal registry runs; the rest is kept for somebody to look at."""
    answers = [queue.deliver(path).status_code]
    world.clock.sleep(3_600)
    answers += [queue.deliver(path, retries=1).status_code]

    assert answers == [429, 204]
    assert work.done == []
    [dead] = queue.dead_tasks()
    assert (dead.path, dead.reason) == (path, "no task is declared for this path")


def test_a_task_of_the_next_version_waits_for_it(world: World, queue: Queue, work: Work) -> None:
    """H3: while a deployment lasts, the old version gets it first; the new one does the work."""
    old, new = world.app, queue.app
    task: Task[Act] = Task(PATH, "default", Act, work)
    task.enqueue(world.clients, Act("x"))
    for _ in range(5):
        world.app = old
        world.deliver_due()
        world.clock.sleep(60)

    world.app = new
    world.settle()

    assert work.done == [Act("x")]
    assert queue.dead_tasks() == []


@one_emulator
def test_a_bug_of_the_work_is_not_taken_for_another_version(queue: Queue, work: Work) -> None:
    """H3: what the work itself enqueues with bad arguments can never work, and is parked."""
    work.raises = BadArgumentsError("of the next task")

    assert queue.deliver(PATH).status_code == 204
    assert len(queue.dead_tasks()) == 1


# What counts against a task, and what does not


def rows(world: World) -> list[TaskAttempts]:
    with world.context():
        return TaskAttempts.query().fetch()  # type: ignore[no-any-return]


def enqueued(world: World, app: Flask, work: Work) -> None:
    """Enqueue a task that may fail three times."""
    world.app = app
    task: Task[Act] = Task(PATH, "default", Act, work, max_attempts=3)
    task.enqueue(world.clients, Act("x"))


def attempt(world: World, front_end: int | None = None) -> int | str | None:
    """Deliver the one task when it is due; return the answer, or "gone".

    Args:
        front_end: What answers for a dead worker; None: the connection is closed.
    """
    wake_at = world.engine.wake_at()
    if wake_at is not None:
        world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.01)
    due = world.engine.due()
    if not due:
        return "gone"
    begun = world.engine.begin_attempt(due[0].task_name)
    status = world.answer(begun)
    answered = front_end if status is None else status
    error = "connection closed" if answered is None else None
    world.engine.end_attempt(begun.id, status=answered, error=error)
    return status


@one_emulator
def test_a_task_that_keeps_failing_is_parked_at_its_last_failure(
    queue: Queue, work: Work, world: World
) -> None:
    """H3, H6: `max_attempts` failures of its own, then it makes room and can be found."""
    work.raises = KeyError("bug")

    answers = [queue.deliver(PATH, retries=retries).status_code for retries in range(3)]

    assert answers == [500, 500, 204]
    [dead] = queue.dead_tasks()
    assert "gave up after 3 failures" in dead.reason
    assert "KeyError" in dead.reason
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

    assert answers[0] == answers[13] == 500
    assert set(answers[1:13]) <= {429, 503}
    assert answers[-1] == 204
    assert Queue(world, app).dead_tasks() == []


@pytest.mark.parametrize("front_end", [None, 500, 502, 503, 504])
def test_a_task_over_which_workers_die_is_parked(
    world: World, app: Flask, work: Work, front_end: int | None
) -> None:
    """H2, H6: whoever answers for the dead worker, the third death that was noted is the last."""
    enqueued(world, app, work)
    work.raises = Crash()

    answers = [attempt(world, front_end) for _ in range(8)]

    assert answers == [None] * 6 + [204, "gone"]
    assert len(work.done) == 6, "three that are not noted, three that are"
    [dead] = Queue(world, app).dead_tasks()
    assert "without a word" in dead.reason
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
def test_an_app_that_nobody_reached_parks_nothing_untried(
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
        attempts.end_well(next_one)

    assert counts == [0, 1, 1]
    assert rows(world) == []


@one_emulator
def test_two_deliveries_of_one_attempt_are_no_death(world: World) -> None:
    """H6: the queue delivered twice at the same moment: neither speaks against the other."""
    with world.context():
        counts = [attempts.begin(world.clients, delivery(7, "503")) for _ in range(2)]

    assert counts == [0, 0]


def delivery(number: int, last_answer: str = "", name: str = "t1") -> Delivery:
    return Delivery(PATH, "default", name, b"{}", number, last_answer)


@one_emulator
@pytest.mark.parametrize(("number", "last_answer"), [(0, ""), (1, "503"), (2, "503"), (40, "429")])
def test_deliveries_that_prove_nothing_cost_nothing(
    world: World, queue: Queue, number: int, last_answer: str
) -> None:
    """The first deliveries, and those that lost a race, ask Datastore for nothing."""
    with world.plan.watched():
        queue.deliver(PATH, retries=number, TaskPreviousResponse=last_answer)

    assert world.plan.calls == []


@one_emulator
def test_a_store_that_is_away_keeps_no_task_from_being_tried(
    world: World, queue: Queue, work: Work
) -> None:
    """H2: an attempt that cannot be noted is made all the same, and answered as it ends."""
    away(world)

    answers = []
    for work.raises in (None, KeyError("bug"), Retry("x")):
        answers.append(queue.deliver(PATH, retries=5, TaskPreviousResponse="503").status_code)

    assert answers == [204, 500, 429]


def away(world: World) -> None:
    def broken(name: str, effect: Any, error: Callable[[grpc.StatusCode], Exception]) -> Any:
        raise error(grpc.StatusCode.UNAVAILABLE)

    world.plan.around = broken  # type: ignore[method-assign]


@one_emulator
def test_a_task_of_another_version_is_not_parked_while_the_store_is_away(
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
        assert queue.deliver(PATH).status_code == 500

    assert "Commit" in world.plan.fired
    assert [row.failures for row in rows(world)] == [1]


@one_emulator
@pytest.mark.parametrize("error", NOT_ITS_FAULT.values(), ids=NOT_ITS_FAULT)
def test_a_delivery_that_ends_by_no_fault_of_its_own_leaves_no_mark(
    world: World, queue: Queue, work: Work, error: Exception
) -> None:
    """H3: what was noted before the work is taken back by whatever answer it gets."""
    work.raises = error

    queue.deliver(PATH, retries=5, TaskPreviousResponse="503")

    assert rows(world) == []


@one_emulator
@pytest.mark.parametrize(("retries", "last_answer"), [(1, "500"), (4, "500"), (4, "503")])
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
        Delivery(PATH, "imports", "a", b"{}", 0, "").attempts_id,
        delivery(0, name="").attempts_id,
        Delivery(PATH, "default", "", b"[]", 0, "").attempts_id,
    }

    assert len(ids) == 5


@one_emulator
@pytest.mark.parametrize("retries", ["", "-1", "many", "²", "1.5"])
def test_a_retry_count_that_is_none_is_taken_for_zero(
    queue: Queue, work: Work, retries: str
) -> None:
    """A header in another form than expected neither parks nor breaks anything."""
    assert queue.deliver(PATH, TaskRetryCount=retries).status_code == 204
    assert len(work.done) == 1


@one_emulator
def test_a_dead_task_keeps_the_beginning_of_a_long_reason(queue: Queue, work: Work) -> None:
    """A reason of any length fits in the row."""
    work.raises = Reject("x" * 2_000_000)

    assert queue.deliver(PATH).status_code == 204
    assert len(queue.dead_tasks()[0].reason) == 8_000


@one_emulator
@pytest.mark.parametrize("call", ["BeginTransaction", "Lookup", "Commit"])
def test_a_task_that_cannot_be_parked_comes_again(
    world: World, queue: Queue, work: Work, call: str
) -> None:
    """H3: while the store is out of reach nothing is answered that takes the task away."""
    work.raises = Reject("no use")
    original = world.plan.around

    def broken(name: str, effect: Any, error: Callable[[grpc.StatusCode], Exception]) -> Any:
        if name == call:
            raise error(grpc.StatusCode.UNAVAILABLE)
        return original(name, effect, error)

    world.plan.around = broken  # type: ignore[method-assign]

    assert queue.deliver(PATH).status_code == 503

    world.plan.around = original  # type: ignore[method-assign]
    assert queue.deliver(PATH).status_code == 204
    assert [dead.count for dead in queue.dead_tasks()] == [1]


@one_emulator
def test_a_parking_whose_reply_was_lost_counts_once(world: World, queue: Queue, work: Work) -> None:
    """The count in a dead task's row is of deliveries, not of commits."""
    work.raises = Reject("no use")
    world.plan.kind = "reply-lost"
    world.plan.at = 2  # BeginTransaction, Lookup, Commit.

    with world.plan.watched():
        assert queue.deliver(PATH).status_code == 204

    assert "Commit" in world.plan.fired
    assert [dead.count for dead in queue.dead_tasks()] == [1]


@one_emulator
def test_a_path_cannot_shape_the_log(
    world: World, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """S30: a path that nobody declared is written so that a terminal shows it as text."""
    answers = [queue.deliver("/tasks/%1b[31mred%0dERROR").status_code]
    world.clock.sleep(3_600)
    answers += [queue.deliver("/tasks/%1b[31mred%0dERROR").status_code]

    assert answers == [429, 204]
    told = [message for message in caplog.messages if "red" in message]
    assert len(told) >= 2
    assert all(message.isprintable() for message in told)
