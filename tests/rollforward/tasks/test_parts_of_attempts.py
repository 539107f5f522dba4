"""Attempts, waits and replays of a task, without a store, and planted bugs."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.runtime.clock import CLOCK_SKEW_S
from rollforward.runtime.messages import Message
from rollforward.tasks import attempts, dead_tasks, waits
from rollforward.tasks.attempt_entities import TaskAttempts, attempts_key
from rollforward.tasks.attempts import RetryLaterError, TaskDelivery
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import ReplayDeadTask
from rollforward.tasks.errors import MAX_DELAY_S
from rollforward.tasks.stored.entities import StoredArguments, stored_key
from rollforward.tasks.stored.envelope import Envelope
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
NAIVE_NOON = NOON.replace(tzinfo=None)


class Machine:
    """The clients of a process, at noon, with tasks that are noted."""

    def __init__(self) -> None:
        self.created: list[Message] = []
        numbers = itertools.count()
        self.new_id = lambda: f"id{next(numbers)}"
        self.clock = SimpleNamespace(now=lambda: NOON)
        create = lambda message: self.created.append(message) is None  # noqa: E731
        self.tasks = SimpleNamespace(create=create)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with offline(), Memory():
        for module in (attempts, dead_tasks):
            monkeypatch.setattr(module, "transact", lambda body: body())
        yield


def repeat_commits(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """Let each reply to a commit be lost once: the body runs again."""
    monkeypatch.setattr(module, "transact", lambda body: (body(), body())[1])


def after(**duration: float) -> datetime.datetime:
    return NAIVE_NOON + datetime.timedelta(**duration)


def delivery(number: int = 5, last_answer: str = "", waits: int = 0, **fields: Any) -> TaskDelivery:
    given = {"task_name": "t", "body": b"{}", **fields}
    return TaskDelivery("/p", "q", number=number, last_answer=last_answer, waits=waits, **given)


def put_attempts(**values: Any) -> None:
    first = {"first": NAIVE_NOON, "expires": after(days=1)}
    key = attempts_key(delivery().attempts_id)
    Memory.current.put(TaskAttempts(key=key, **{**first, **values}))


def stored() -> TaskAttempts | None:
    return Memory.current.get(attempts_key(delivery().attempts_id))  # type: ignore[no-any-return]


# Attempts


@pytest.mark.parametrize(
    ("pause_s", "waits"), [(None, False), (0, False), (1, True), (60, True), (61, False)]
)
def test_a_task_that_has_failed_often_waits_as_long_as_its_pause(
    pause_s: float | None, waits: bool
) -> None:
    """H6: a longer one is of a wrong clock. A delivery that has begun is not kept by its own."""
    retry_at = None if pause_s is None else after(seconds=pause_s)
    put_attempts(failures=8, begun=[4], retry_at=retry_at)
    machine: Any = Machine()
    if waits:
        with pytest.raises(RetryLaterError):
            attempts.begin(machine, delivery(5))
        assert attempts.begin(machine, delivery(4)) == 8
        return
    assert attempts.begin(machine, delivery(5)) == 9
    assert attempts.begin(machine, delivery(5)) == 9
    row = stored()
    assert row is not None
    assert (row.begun, row.retry_at) == ([4, 5], after(seconds=40))


@pytest.mark.parametrize(("begun", "count"), [([], 0), ([3, 4], 2), ([5], 0), ([4, 6, 7], 1)])
def test_deliveries_before_this_one_that_never_ended_are_failures(
    begun: list[int], count: int
) -> None:
    """H6: not this one, nor a later one, if this one was delayed."""
    put_attempts(failures=1, begun=begun)
    machine: Any = Machine()
    assert attempts.begin(machine, delivery(5)) == 1 + count


@pytest.mark.parametrize(
    ("expires_s", "first_s", "is_known"),
    [
        (1, 0, True),
        (0, 0, False),
        (86_400, CLOCK_SKEW_S, True),
        (86_400, CLOCK_SKEW_S + 1, False),
    ],
)
def test_failures_of_another_task_of_the_name_do_not_count(
    expires_s: float, first_s: float, is_known: bool
) -> None:
    """H6: those that have expired, and those that a wrong clock has dated for tomorrow."""
    put_attempts(failures=7, expires=after(seconds=expires_s), first=after(seconds=first_s))
    machine: Any = Machine()
    assert attempts.fail(machine, delivery()) == (8 if is_known else 1)


def test_a_failure_whose_commit_is_in_doubt_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """H6: and ends the delivery."""
    repeat_commits(monkeypatch, attempts)
    put_attempts(failures=2, begun=[5])
    machine: Any = Machine()
    assert attempts.fail(machine, delivery(), "KeyError") == 3
    row = stored()
    assert row is not None
    assert (row.failures, row.begun, row.error) == (3, [], "KeyError")


@pytest.mark.parametrize(
    ("end", "failures", "begun"),
    [(attempts.end_later, 1, [3]), (partial(attempts.end_waiting, after_s=60), 2, [])],
)
def test_a_delivery_that_ends_by_no_fault_leaves_no_pause(
    end: Callable[..., None], failures: int, begun: list[int]
) -> None:
    """H2: over a planned wait numbers begin again, so marks of dead workers become failures."""
    put_attempts(failures=1, begun=[3, 5], retry_at=after(seconds=60))
    end(Machine(), delivery(5))
    row = stored()
    assert row is not None
    assert (row.failures, row.begun, row.retry_at) == (failures, begun, None)


@pytest.mark.parametrize(("waited_s", "is_old"), [(3_599, False), (3_600, True)])
def test_a_task_that_waits_for_a_version_has_not_died(waited_s: float, is_old: bool) -> None:
    """H6: its own delivery has ended; one before may have died."""
    since = after(seconds=-waited_s)
    put_attempts(unknown_since=since, unknown_at=since, begun=[3, 5])
    machine: Any = Machine()
    assert attempts.is_old(machine, delivery(5)) is is_old
    row = stored()
    assert row is not None
    assert row.begun == [3]


@pytest.mark.parametrize(
    ("number", "last_answer", "waited", "is_noted", "is_missed"),
    [
        (0, "", 0, False, False),
        (1, "409", 0, False, True),
        (2, "503", 0, False, True),
        (3, "503", 0, True, True),
        (3, "409", 0, False, True),
        (9, "409", 0, False, True),
        (0, "", 1, False, True),
        (1, "422", 0, False, True),
    ],
)
def test_a_task_that_is_done_forgets_what_was_noted_of_it(
    number: int, last_answer: str, waited: int, is_noted: bool, is_missed: bool
) -> None:
    """H2: a delivery that lost its race notes nothing, however often it comes."""
    put_attempts(failures=1)
    done = delivery(number, last_answer, waited)
    assert done.is_noted is is_noted
    attempts.finish_delivery(done)
    assert (stored() is None) is is_missed


# Waits


def test_a_task_that_waits_is_created_once_for_each_wait_however_long_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1: names of two tasks stay two, and its arguments are kept until then."""
    kept = list[object]()
    extend = lambda clients, body, due: kept.append((body, due))  # noqa: E731
    monkeypatch.setattr(waits, "arguments", SimpleNamespace(extend=extend))
    monkeypatch.setattr(waits, "deadline_of", lambda clients, path: 1_200)
    machine: Any = Machine()
    due = NOON + datetime.timedelta(seconds=60)
    for name in ("short", "x" * 497, "x" * 498, "y" * 498):
        for waited in (0, 1):
            waiting = delivery(task_name=f"projects/p/tasks/{name}", waits=waited)
            assert waits.reschedule(machine, waiting, 60)

    names = [str(message.name) for message in machine.created]
    assert len(set(names)) == 8
    assert max(map(len, names)) == 500
    assert names[0] == "short-w1"
    assert {message.deadline_s for message in machine.created} == {1_200}
    assert kept == [(b"{}", due)] * 8


@pytest.mark.parametrize(
    ("after_s", "is_created", "dues_s"),
    [
        (MAX_DELAY_S, True, [MAX_DELAY_S, MAX_DELAY_S - 3_600]),
        (MAX_DELAY_S - 3_600, False, [MAX_DELAY_S - 3_600]),
    ],
)
def test_a_wait_of_thirty_days_begins_also_where_the_service_s_clock_is_behind(
    monkeypatch: pytest.MonkeyPatch, after_s: float, is_created: bool, dues_s: list[float]
) -> None:
    """H1: it ends an hour early there; a shorter one that is refused is refused for good."""
    machine: Any = Machine()
    tried: list[float] = []

    def create(message: Message) -> bool:
        assert message.at is not None
        tried.append((message.at - NOON).total_seconds())
        if len(tried) == 1:
            raise rpc_errors.InvalidArgument("too far ahead")
        return True

    machine.tasks.create = create
    monkeypatch.setattr(waits, "arguments", SimpleNamespace(extend=lambda *a: None))
    monkeypatch.setattr(waits, "deadline_of", lambda clients, path: None)

    assert waits.reschedule(machine, delivery(), after_s) is is_created

    assert tried == dues_s


# Dead tasks


def letter(machine: Any, *, body: bytes = b"{}", reason: str = "bad") -> DeadTask:
    dead_id = dead_tasks.dead_letter(
        machine, path="/p", queue="q", task_name="t", body=body, reason=reason
    )
    dead = DeadTask.get_by_id(dead_id)
    assert isinstance(dead, DeadTask)
    return dead


def test_a_death_whose_commit_is_in_doubt_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: and the next death of the task counts in the same row."""
    repeat_commits(monkeypatch, dead_tasks)
    machine: Any = Machine()
    assert [letter(machine).count for _ in range(2)] == [1, 2]


def test_a_dead_task_that_is_replayed_is_dealt_with_until_it_dies_again() -> None:
    """H8: each replay has a name of its own; one that was overtaken changes nothing."""
    machine: Any = Machine()
    tasks: Any = {"/p": SimpleNamespace(deadline_s=1_800)}
    dead = letter(machine)
    for replays in (1, 2):
        for _ in range(2):
            dead_tasks.replay(machine, ReplayDeadTask(dead.key.id()), tasks)
        dead = DeadTask.get_by_id(dead.key.id())
        assert (dead.replays, dead.resolved) == (replays, True)
        dead = letter(machine)
        assert not dead.resolved
        dead_tasks._resolve(machine, dead.key.id(), replays - 1, dead.queue, NAIVE_NOON)
        assert not DeadTask.get_by_id(dead.key.id()).resolved

    assert len({message.name for message in machine.created}) == len(machine.created) == 2
    assert {message.deadline_s for message in machine.created} == {1_800}


def test_a_dead_task_that_goes_back_into_its_lane_is_dealt_with() -> None:
    """H8: in the commit that adds it."""
    machine: Any = Machine()
    added = list[object]()
    replay = lambda clients, message, **ids: added.append(ids)  # noqa: E731
    lane = SimpleNamespace(key_of=lambda lane_id: SimpleNamespace(replay_in_transaction=replay))
    tasks: Any = {"/p": SimpleNamespace(deadline_s=None), "/tasks/lanes/mail": lane}
    dead = letter(machine)
    dead.lane_task = "mail|ada|07-c0ffee"
    Memory.current.put(dead)
    for _ in range(2):
        dead_tasks.replay(machine, ReplayDeadTask(dead.key.id()), tasks)

    assert added == [{"dead_id": dead.key.id(), "lane_task": "mail|ada|07-c0ffee"}]
    assert DeadTask.get_by_id(dead.key.id()).resolved
    assert machine.created == []


def test_stored_arguments_of_a_dead_task_expire_when_it_is_replayed_and_not_before() -> None:
    """H7: those of another one stay."""
    machine: Any = Machine()
    for stored_id in ("mine", "beside"):
        head = StoredArguments(key=stored_key(stored_id), chunks=1, size=7, expires="m2030")
        Memory.current.put(head)
    dead = letter(machine, body=Envelope(None, "mine", 1).body)
    expires = lambda: [Memory.current.get(stored_key(n)).expires for n in ("mine", "beside")]  # noqa: E731
    assert expires() == [None, "m2030"]
    tasks: Any = {"/p": SimpleNamespace(deadline_s=None)}
    dead_tasks.replay(machine, ReplayDeadTask(dead.key.id()), tasks)
    mine, beside = expires()
    assert (mine is not None, beside) == (True, "m2030")


_WAITS = test_a_task_that_has_failed_often_waits_as_long_as_its_pause
_DIED = test_deliveries_before_this_one_that_never_ended_are_failures
_OTHER = test_failures_of_another_task_of_the_name_do_not_count
_ENDS = test_a_delivery_that_ends_by_no_fault_leaves_no_pause
_DONE = test_a_task_that_is_done_forgets_what_was_noted_of_it
_REPLAY = test_a_dead_task_that_is_replayed_is_dealt_with_until_it_dies_again
BUGS = (
    Bug(*(attempts, "begin", "delivery.number not in row.begun", "True", _WAITS),
        {"pause_s": 1, "waits": True}, (RetryLaterError,)),
    Bug(*(attempts, "_check_due", " <= latest", "", _WAITS), {"pause_s": 61, "waits": False},
        (RetryLaterError,)),
    Bug(*(attempts, "_failures", "number < delivery.number", "number != delivery.number", _DIED),
        {"begun": [4, 6, 7], "count": 1}),
    Bug(*(attempts, "_row", "row.expires <= now_utc or ", "", _OTHER),
        {"expires_s": 0, "first_s": 0, "is_known": False}),
    Bug(*(attempts, "_row", " or row.first > tomorrow", "", _OTHER),
        {"expires_s": 86_400, "first_s": CLOCK_SKEW_S + 1, "is_known": False}),
    Bug(*(attempts, "fail", "row.counted_by == call_id", "False"),
        test_a_failure_whose_commit_is_in_doubt_counts_once),
    Bug(*(attempts, "end_later", "row.retry_at = None", "pass", _ENDS),
        {"end": attempts.end_later, "failures": 1, "begun": [3]}),
    Bug(*(attempts, "end_waiting", "row.failures = _failures(row, delivery)", "pass", _ENDS),
        {"end": lambda *args: attempts.end_waiting(*args, after_s=60), "failures": 2, "begun": []}),
    Bug(*(attempts, "is_old", "row.begun = ", "row.begun or ",
          test_a_task_that_waits_for_a_version_has_not_died), {"waited_s": 3_599, "is_old": False}),
    Bug(*(TaskDelivery, "is_noted", " and self.last_answer != str(LOST_RACE)", "", _DONE),
        {"number": 3, "last_answer": "409", "waited": 0, "is_noted": False, "is_missed": True}),
    Bug(*(attempts, "finish_delivery", "delivery.number or ", "", _DONE),
        {"number": 2, "last_answer": "503", "waited": 0, "is_noted": False, "is_missed": True}),
    Bug(*(attempts, "finish_delivery", " or delivery.waits", "", _DONE),
        {"number": 0, "last_answer": "", "waited": 1, "is_noted": False, "is_missed": True}),
    Bug(*(waits, "_next_name", "len(name) + len(end) > _MAX_NAME_CHARS", "False"),
        test_a_task_that_waits_is_created_once_for_each_wait_however_long_its_name),
    Bug(*(waits, "reschedule", "arguments.extend(clients, delivery.body, due)", "pass"),
        test_a_task_that_waits_is_created_once_for_each_wait_however_long_its_name),
    Bug(*(waits, "reschedule", "deadline_of(clients, delivery.path)", "None"),
        test_a_task_that_waits_is_created_once_for_each_wait_however_long_its_name),
    Bug(*(dead_tasks, "dead_letter", "dead.counted_by == call_id", "False"),
        test_a_death_whose_commit_is_in_doubt_counts_once),
    Bug(*(dead_tasks, "replay_name", ", dead.replays", "", _REPLAY)),
    Bug(*(dead_tasks, "_resolve", " and dead.replays == replays", "", _REPLAY)),
    Bug(*(dead_tasks, "_replay_into_lane", "dead.resolve(naive_utc(clients.clock.now()))", "pass"),
        test_a_dead_task_that_goes_back_into_its_lane_is_dealt_with),
    Bug(*(dead_tasks, "_resolve", "arguments.release(clients, dead.body.encode())", "pass"),
        test_stored_arguments_of_a_dead_task_expire_when_it_is_replayed_and_not_before),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """H1, H2, H3, H6, H7, H8: each count, pause and name of a task is for something."""
    bug.check_noticed(monkeypatch)
