"""Tasks with plain parameters: checked when they are enqueued and when they are delivered."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rollforward import outbox
from rollforward.batches import TaskBatch
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from rollforward.tasks import BadArgumentsError, task
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast

GREETED: Counter[str] = Counter()
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


@task
def greet(clients: Clients, name: str, day: datetime.date | None = None, *, times: int = 1) -> int:
    GREETED[f"{name} {day}"] += times
    return times


GREETINGS = TaskBatch("greetings", members=[greet])


@pytest.fixture
def world(services: Services) -> World:
    GREETED.clear()
    return World(services, tasks=[greet], batches=[GREETINGS])


def test_a_task_runs_with_the_arguments_of_the_call(world: World) -> None:
    with world.context():
        greet.enqueue(world.clients, "Ada", datetime.date(2030, 5, 1), times=2)
        greet.enqueue(world.clients, greet.bind(name="Bob"))
        assert greet.enqueue_many(world.clients, [greet.bind("Cy"), greet.bind("Di", times=3)])
    world.settle()

    assert (greet.path, greet.queue) == ("/tasks/greet", "default")
    assert GREETED == {"Ada 2030-05-01": 2, "Bob None": 1, "Cy None": 1, "Di None": 3}


def test_the_body_of_a_task_names_its_parameters() -> None:
    """A dataclass with these fields reads and writes the same."""
    body = b'{"name":"Ada","day":"2030-05-01","times":2}'
    bound = greet.bind("Ada", datetime.date(2030, 5, 1), times=2)

    assert greet.message(bound).body == body
    assert greet.read(body) == bound
    assert greet.args_json(greet.bind("Ada")) == '{"name":"Ada"}'


def test_a_task_is_enqueued_with_a_transaction_or_not_at_all(world: World) -> None:
    """B1, B2: as every task."""

    def body(name: str, *, fails: bool) -> None:
        outbox.enqueue(world.clients, greet, greet.bind(name))
        if fails:
            raise ZeroDivisionError

    with world.context():
        with pytest.raises(ZeroDivisionError):
            transact(lambda: body("Eve", fails=True))
        transact(lambda: body("Ada", fails=False))
    world.settle()

    assert GREETED == {"Ada None": 1}


def test_a_task_runs_after_its_delay(world: World) -> None:
    """Enqueued by itself or with a transaction."""
    with world.context():
        greet.enqueue(world.clients, greet.bind("Ada"), delay_s=60)
        transact(lambda: outbox.enqueue(world.clients, greet, greet.bind("Bob"), delay_s=90))
    totals = []
    for seconds in (59, 2, 28, 2):
        world.clock.sleep(seconds)
        world.deliver_due()
        totals.append(GREETED.total())

    assert totals == [0, 1, 1, 2]


def test_a_parameter_may_be_called_as_an_option_of_enqueue(world: World) -> None:
    """Beside a bound call `name` makes the task unique; in a call it is the function's own."""
    with world.context():
        called = greet.enqueue(world.clients, name="Ada")
        bound = [
            greet.enqueue(world.clients, greet.bind(name), name=("ada", 1))
            for name in ("Bob", "Cy")
        ]
    world.settle()

    assert [called, *bound] == [True, True, False]
    assert GREETED == {"Ada None": 1, "Bob None": 1}


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((), {}),
        (("Ada", None, 3), {}),
        ((1,), {}),
        (("Ada",), {"times": "2"}),
        (("Ada",), {"x": 1}),
        (("Ada",), {"delay_s": 60}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    world: World, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with world.context(), pytest.raises(BadArgumentsError):
        greet.enqueue(world.clients, *args, **options)
    assert not world.live_tasks("default")


def test_a_value_that_bind_did_not_make_is_refused() -> None:
    with pytest.raises(
        BadArgumentsError, match=r"/tasks/greet takes greet\.bind\(\.\.\.\), not str"
    ):
        greet.message("Ada")


@dataclass(frozen=True)
class Ship:
    order: str


@task
def ship(clients: Clients, args: Ship) -> None: ...


WRONG_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "plain": (lambda: outbox.enqueue(greet, "Ada", True), "enqueue takes a task and its arg"),
    "none": (lambda: outbox.enqueue(greet), "enqueue takes a task and its arguments, as in rf"),
    "function": (lambda: outbox.enqueue(print, Ship("A1")), "got <built-in function print> as"),
    "two": (lambda: ship.enqueue("A1", True), r"ship takes one Ship, .* got \('A1', True\)"),
    "no_dataclass": (lambda: ship.enqueue(), r"ship takes one Ship, .* got \(\)"),
    "lists": (lambda: ship.enqueue_many([], []), "enqueue_many takes one list"),
}


@pytest.mark.parametrize(("call", "words"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_a_call_with_another_number_of_arguments_is_told_its_form(
    world: World, call: Callable[[], object], words: str
) -> None:
    """The first argument is not taken for the clients: the error is no AttributeError of it."""
    with world.context(), pytest.raises(BadArgumentsError, match=words):
        transact(call)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay_s": 60, "at": NOON}, "give delay_s or at, not both, got 60 and 2030-05-01"),
        ({"delay_s": datetime.timedelta(minutes=1)}, "delay_s must be a number of seconds, got"),
        ({"delay_s": None}, "delay_s must be a number of seconds, got None"),
        ({"at": "2030-05-01"}, "at must be an aware time, got '2030-05-01'"),
        ({"at": NOON.date()}, "at must be an aware time, got datetime.date"),
    ],
)
def test_a_task_is_due_at_one_time(world: World, options: dict[str, Any], words: str) -> None:
    """A delay beside a time was left out without a word."""
    with world.context(), pytest.raises(BadArgumentsError, match=words):
        greet.enqueue(world.clients, greet.bind("Ada"), **options)
    assert not world.live_tasks("default")


def test_a_task_with_plain_parameters_can_be_a_member(world: World) -> None:
    """F1: and what it returns is the member's result."""
    with world.context():
        members = [(greet, greet.bind("Ada")), (greet, greet.bind("Bob", times=3))]
        GREETINGS.populate(world.clients, "b", members, seal=True)
    world.settle()

    with world.context():
        assert [member.result for member in GREETINGS.results("b")] == [1, 3]


def test_a_task_may_have_no_arguments_or_some_that_go_by_place_alone() -> None:
    calls: list[tuple[object, ...]] = []

    @task
    def rest(clients: Clients) -> None:
        calls.append(())

    @task("/tasks/tests/add", queue="fan-out", max_attempts=3)
    def add(clients: Clients, left: int, /, right: int = 2) -> None:
        calls.append((left, right))

    @task
    def dial(clients: Clients, call: str, form: str, signature: str, clients_: str = "") -> None:
        calls.append((call, form, signature, clients_))

    bound: list[tuple[Any, Any]] = [
        (rest, rest.bind()),
        (add, add.bind(1)),
        (add, add.bind(1, right=5)),
        (dial, dial.bind("a", "b", signature="c")),
    ]
    for declared, args in bound:
        declared.work(None, declared.read(declared.message(args).body))

    assert calls == [(), (1, 2), (1, 5), ("a", "b", "c", "")]
    assert (add.path, add.queue, add.max_attempts) == ("/tasks/tests/add", "fan-out", 3)
