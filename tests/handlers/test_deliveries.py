"""How deliveries end: 204, parked, 429, 503, 500. Invariants H1 to H6, S10, S11 and S23."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from google.api_core import exceptions as rpc_errors

from pipelines.clients import Clients
from pipelines.tasks import MOST_BODY_BYTES, Park, Task, Unwell, Wait
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
    "parked": (Park("no use"), 204, 1),
    "lost its race": (Wait("leased"), 429, 0),
    "aborted": (rpc_errors.Aborted("contention"), 429, 0),
    "unwell": (Unwell("relay"), 503, 0),
    "unavailable": (rpc_errors.ServiceUnavailable("datastore"), 503, 0),
    "internal": (rpc_errors.InternalServerError("datastore"), 503, 0),
    "deadline": (rpc_errors.DeadlineExceeded("datastore"), 503, 0),
    "exhausted": (rpc_errors.ResourceExhausted("quota"), 503, 0),
    "unknown": (rpc_errors.Unknown("?"), 503, 0),
    "retried": (rpc_errors.RetryError("gave up", cause=ValueError()), 503, 0),
    "refused by a service": (rpc_errors.InvalidArgument("key"), 500, 0),
    "a bug": (KeyError("bug"), 500, 0),
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
    work.raises = Park("no such party")

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
def test_a_body_that_fits_no_arguments_is_parked_once(
    queue: Queue,
    work: Work,
    body: bytes,
) -> None:
    """H3, S10, S23: never an error of ours, never worked on, parked with a count."""
    answers = [queue.deliver(PATH, body).status_code for _ in range(2)]

    assert answers == [204, 204]
    assert work.done == []
    [dead] = queue.dead_tasks()
    assert (dead.count, dead.body) == (2, body[:MOST_BODY_BYTES].decode(errors="replace"))
    assert len(dead.reason) < 1_000


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
@pytest.mark.parametrize("size", [MOST_BODY_BYTES + 1, 2 * 2**20])
def test_an_oversized_body_is_refused_unread(
    queue: Queue, work: Work, snapshot: Callable[[], Any], size: int
) -> None:
    """H5, S23: larger than a task can be: 413, nothing worked on, nothing stored."""
    before = snapshot()

    assert queue.deliver(PATH, b" " * size).status_code == 413
    assert work.done == []
    assert snapshot() == before


@one_emulator
@pytest.mark.parametrize(
    "path", ["/tasks/nothing", "/tasks/os.system", "/tasks/tests/act/__init__"]
)
def test_a_path_that_nobody_declared_is_parked(queue: Queue, work: Work, path: str) -> None:
    """S11: only the literal registry runs; the rest is kept for somebody to look at."""
    assert queue.deliver(path).status_code == 204

    assert work.done == []
    [dead] = queue.dead_tasks()
    assert (dead.path, dead.reason) == (path, "no task is declared for this path")


@one_emulator
@pytest.mark.parametrize("error", [Wait("leased"), KeyError("bug")])
def test_a_task_that_keeps_failing_is_parked_at_its_last_attempt(
    queue: Queue, work: Work, error: Exception
) -> None:
    """H3, H6: `max_attempts` deliveries, then it makes room and can be found."""
    work.raises = error

    answers = [queue.deliver(PATH, retries=retries).status_code for retries in range(3)]

    assert answers[:2] in ([429, 429], [500, 500])
    assert answers[2] == 204
    [dead] = queue.dead_tasks()
    assert "gave up after 3 deliveries" in dead.reason
    assert type(error).__name__ in dead.reason or str(error) in dead.reason


@one_emulator
def test_a_task_over_which_workers_die_is_parked_before_it_works(queue: Queue, work: Work) -> None:
    """H2, H6: attempts without an answer count too: the next one does not touch it."""
    work.raises = MemoryError()

    assert queue.deliver(PATH, retries=3).status_code == 204

    assert work.done == []
    [dead] = queue.dead_tasks()
    assert "without an answer" in dead.reason


@one_emulator
@pytest.mark.parametrize("retries", [0, 2, 3, 4, 1_000])
def test_a_task_is_not_parked_while_a_service_is_unwell(
    queue: Queue, work: Work, retries: int
) -> None:
    """H3: an outage of any length is not the task's fault, and leaves no dead tasks."""
    work.raises = Unwell("the relay is down")

    answer = queue.deliver(PATH, retries=retries, TaskPreviousResponse="503")

    assert answer.status_code == 503
    assert work.done == [Act()]
    assert queue.dead_tasks() == []


def outlast_max_attempts(world: World, app: Flask, work: Work) -> None:
    """Answer 503 to more deliveries of a task than it may have."""
    world.app = app
    task: Task[Act] = Task(PATH, "default", Act, work, max_attempts=3)
    task.enqueue(world.clients, Act("x"))
    work.raises = Unwell("the relay is down")
    for _ in range(6):
        world.deliver_due()
        world.clock.sleep(120)


def test_an_outage_longer_than_max_attempts_ends_well(world: World, app: Flask, work: Work) -> None:
    """H2, H3: through the real queue: 503 again and again, then the work is done."""
    outlast_max_attempts(world, app, work)

    work.raises = None
    world.settle()

    assert work.done == [Act("x")] * 7
    assert Queue(world, app).dead_tasks() == []


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
    work.raises = Park("x" * 2_000_000)

    assert queue.deliver(PATH).status_code == 204
    assert len(queue.dead_tasks()[0].reason) == 8_000


@one_emulator
@pytest.mark.parametrize("call", ["BeginTransaction", "Lookup", "Commit"])
def test_a_task_that_cannot_be_parked_comes_again(
    world: World, queue: Queue, work: Work, call: str
) -> None:
    """H3: while the store is out of reach nothing is answered that takes the task away."""
    work.raises = Park("no use")
    original = world.plan.around

    def broken(name: str, effect: Callable[[], Any], error: Callable[[], Exception]) -> Any:
        if name == call:
            raise error()
        return original(name, effect, error)

    world.plan.around = broken  # type: ignore[method-assign]

    assert queue.deliver(PATH).status_code == 503

    world.plan.around = original  # type: ignore[method-assign]
    assert queue.deliver(PATH).status_code == 204
    assert [dead.count for dead in queue.dead_tasks()] == [1]


@one_emulator
def test_a_parking_whose_reply_was_lost_counts_once(world: World, queue: Queue, work: Work) -> None:
    """The count in a dead task's row is of deliveries, not of commits."""
    work.raises = Park("no use")
    world.plan.kind = "reply-lost"
    world.plan.at = 2  # BeginTransaction, Lookup, Commit.

    with world.plan.watched():
        assert queue.deliver(PATH).status_code == 204

    assert "Commit" in world.plan.fired
    assert [dead.count for dead in queue.dead_tasks()] == [1]


def test_a_lost_race_after_an_outage_parks_nothing(world: World, app: Flask, work: Work) -> None:
    """H3: deliveries that an outage used up are not counted against the task."""
    outlast_max_attempts(world, app, work)

    work.raises = Wait("somebody else works on it")
    world.deliver_due()
    world.clock.sleep(120)
    work.raises = None
    world.settle()

    assert Queue(world, app).dead_tasks() == []
    assert world.engine.is_idle("", with_scheduled=True, with_retrying=True)
