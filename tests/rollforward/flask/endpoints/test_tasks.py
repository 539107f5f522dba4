"""How deliveries end: done, dead-lettered, 409, 503, 422. Invariants H1 to H5, S10, S11, S23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import BadArgumentsError, OtherVersionError, Reject
from rollforward.tasks.stored.names import MAX_BODY_BYTES, MAX_TASK_BYTES
from tests.handlers.conftest import Queue
from tests.infra.world import World
from tests.rollforward.flask.acts import OUTCOMES, PATH, Act, Work, one_emulator, rows

pytestmark = pytest.mark.fast


@one_emulator
def test_work_that_is_done_is_answered_204(queue: Queue, work: Work) -> None:
    """H1: the arguments reach the function, and the answer takes the task off the queue."""
    answer = queue.deliver(PATH, {"word": "x", "number": 5, "share": 0.5})

    assert (answer.status_code, answer.data) == (204, b"")
    assert work.done == [Act("x", 5, 0.5)]
    assert queue.dead_tasks() == []


@one_emulator
@pytest.mark.parametrize(("error", "status", "dead"), OUTCOMES.values(), ids=OUTCOMES)
def test_each_way_to_end_has_its_answer(
    queue: Queue, work: Work, error: Exception, status: int, dead: int
) -> None:
    """H1, H2: only what can never work leaves the queue; everything else comes again."""
    work.raises = error

    answer = queue.deliver(PATH)

    assert answer.status_code == status
    assert len(queue.dead_tasks()) == dead
    if status == 204:
        assert answer.data == b""
    else:
        assert type(error).__name__ in answer.json["detail"]
        assert ("traceback" in answer.json) == (status == 422)


def test_a_dead_task_can_be_read_and_its_repetitions_count(queue: Queue, work: Work) -> None:
    """H3: a dead task says what, where and why; dead-lettered again it is the same row."""
    work.raises = Reject("no such party")

    for _ in range(3):
        queue.deliver(PATH, {"word": "x"}, task_name="t7")
    queue.deliver(PATH, {"word": "y"}, task_name="t8", retries=2)

    first, second = sorted(queue.dead_tasks(), key=lambda dead: dead.task_name)
    assert (first.path, first.queue, first.task_name) == (PATH, "default", "t7")
    assert (first.body, first.count, second.count) == ('{"word": "x"}', 3, 1)
    assert (first.deliveries, second.deliveries) == (1, 3)
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
    """H3, S10, S23: no error of ours; another version may know it; after an hour it is dead."""
    answers = [queue.deliver(PATH, body).status_code]
    world.clock.sleep(3_599)
    answers += [queue.deliver(PATH, body).status_code for _ in range(2)]
    early = queue.dead_tasks()
    world.clock.sleep(1)
    answers += [queue.deliver(PATH, body).status_code]

    assert answers == [200, 200, 200, 204]
    assert early == []
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
@pytest.mark.parametrize("size", [MAX_TASK_BYTES + 1, 2 * 2**20])
def test_an_oversized_body_is_dead_lettered_unread(queue: Queue, work: Work, size: int) -> None:
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
def test_a_path_that_nobody_declared_waits_an_hour_and_is_dead_lettered(
    world: World, queue: Queue, work: Work, path: str
) -> None:
    """S11: only the literal registry runs; the rest is kept for somebody to look at."""
    answers = [queue.deliver(path).status_code]
    world.clock.sleep(3_600)
    answers += [queue.deliver(path, retries=1).status_code]

    assert answers == [200, 204]
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
    """H3: what the work itself enqueues with bad arguments can never work."""
    work.raises = BadArgumentsError("of the next task")

    assert queue.deliver(PATH).status_code == 204
    assert len(queue.dead_tasks()) == 1


@one_emulator
def test_work_that_another_version_may_read_is_dead_after_an_hour(
    world: World, queue: Queue, work: Work
) -> None:
    """H3: as a task whose own arguments cannot be read; the waits count as no failures."""
    work.raises = OtherVersionError("of the next version")
    answers = [queue.deliver(PATH, retries=number).status_code for number in range(60)]
    world.clock.sleep(3_600)
    answers += [queue.deliver(PATH, retries=60).status_code]

    assert answers == [200] * 60 + [204]
    [dead] = queue.dead_tasks()
    assert dead.reason == "OtherVersionError: of the next version"
    assert rows(world) == []


@one_emulator
def test_a_task_that_failed_yesterday_waits_for_another_version_as_any(
    world: World, queue: Queue, work: Work
) -> None:
    """H3: the hour counts from the first refusal of this deployment, not from a failure before."""
    work.raises = KeyError("bug")
    answers = [queue.deliver(PATH).status_code]
    world.clock.sleep(24 * 3_600)
    work.raises = OtherVersionError("of the next version")
    for number in (1, 2):
        answers += [queue.deliver(PATH, retries=number).status_code]
        world.clock.sleep(1_800)
    for work.raises, number in ((KeyError("bug"), 3), (OtherVersionError("of the next"), 4)):
        answers += [queue.deliver(PATH, retries=number).status_code]
    for hours, number in ((3, 5), (1, 6)):
        world.clock.sleep(hours * 3_600)
        answers += [queue.deliver(PATH, retries=number).status_code]

    assert answers == [422, 200, 200, 422, 200, 200, 204]
    assert len(queue.dead_tasks()) == 1


@one_emulator
@pytest.mark.parametrize(
    ("reason", "middle"), [("a guest called \ud83d", ""), ("\udc80" * 10_000, "(left out)")]
)
def test_half_a_character_in_a_reason_stops_no_dead_letter(
    queue: Queue, work: Work, reason: str, middle: str
) -> None:
    """H3: JavaScript cuts emojis in two, and Datastore takes no such text. Both ends are kept."""
    work.raises = Reject(reason)

    assert queue.deliver(PATH).status_code == 204
    assert len(work.done) == 1
    [dead] = queue.dead_tasks()
    spelled = f"Reject: {reason}".encode(errors="backslashreplace").decode()
    assert dead.reason[:3_900] == spelled[:3_900]
    assert dead.reason[-3_900:] == spelled[-3_900:]
    assert middle in dead.reason
    assert len(dead.reason) <= 8_000


@one_emulator
@pytest.mark.parametrize("retries", ["", "-1", "many", "²", "1.5"])
def test_a_retry_count_that_is_none_is_taken_for_zero(
    queue: Queue, work: Work, retries: str
) -> None:
    """A header in another form than expected neither rejects nor breaks anything."""
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
def test_a_task_that_cannot_be_dead_lettered_comes_again(
    world: World, queue: Queue, work: Work, call: str
) -> None:
    """H3: while the store is out of reach nothing is answered that takes the task away."""
    work.raises = Reject("no use")
    original = world.plan.around

    def broken(
        name: str, effect: Any, error: Callable[[grpc.StatusCode], Exception], *described: Any
    ) -> Any:
        if name == call:
            raise error(grpc.StatusCode.UNAVAILABLE)
        return original(name, effect, error, *described)

    world.plan.around = broken  # type: ignore[method-assign]

    assert queue.deliver(PATH).status_code == 503

    world.plan.around = original  # type: ignore[method-assign]
    assert queue.deliver(PATH).status_code == 204
    assert [dead.count for dead in queue.dead_tasks()] == [1]


@one_emulator
def test_a_dead_letter_whose_reply_was_lost_counts_once(
    world: World, queue: Queue, work: Work
) -> None:
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

    assert answers == [200, 204]
    told = [message for message in caplog.messages if "red" in message]
    assert len(told) >= 2
    assert all(message.isprintable() for message in told)
