"""Declared tasks: their form, the arguments they take, and what a name means."""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforward.runtime import Clients
from rollforward.tasks.declaration import Task, hashed_name, task
from rollforward.tasks.errors import BadArgumentsError, TooLargeError
from rollforward.tasks.pattern import Pattern
from rollforward.tasks.stored.distant import MAX_AHEAD_S
from rollforward.tasks.stored.names import MAX_ARGUMENTS_BYTES, MAX_BODY_BYTES
from tests.infra.world import World
from tests.rollforward.tasks.reminders import Remind, one_emulator, queued, remind

pytestmark = pytest.mark.fast


class Worker:
    """Work that is no function."""

    def __call__(self, clients: Clients, args: Remind) -> None:
        """Do nothing."""


def look(what: str, clients: Clients, args: Remind) -> None:
    """Do nothing, with something more to do it with."""


# Declaring


def test_a_declaration_knows_its_arguments() -> None:
    """The second parameter's type is what the task takes."""
    assert (remind.args, remind.path, remind.queue) == (Remind, "/tasks/tests/remind", "default")


@pytest.mark.parametrize("path", ["/remind", "tasks/remind", "", "http://evil.example/tasks/x"])
def test_a_task_lives_below_tasks(path: str) -> None:
    """S12: a path elsewhere would be a page, or another host."""
    with pytest.raises(ValueError, match="/tasks/"):
        task(path, queue="default")


@pytest.mark.parametrize(
    "path",
    [
        "/tasks/",
        "/tasks/a?b=c",
        "/tasks/a#b",
        "/tasks/a b",
        "/tasks/a\n",
        "/tasks/a%20b",
        "/tasks//a",
    ],
)
def test_a_path_that_would_not_arrive_is_refused(path: str) -> None:
    """The app got another path, found no task, and kept each as a dead task after an hour."""
    with pytest.raises(ValueError, match=r"^path must have no blank, \?, # or %"):
        task(path)


def test_a_task_needs_no_more_than_a_queue() -> None:
    """The path follows from the function's name; the function's full name tells two tasks apart."""

    @task(queue="default")
    def send_reminder(clients: Clients, args: Remind) -> None:
        """Do nothing."""

    assert (send_reminder.path, send_reminder.args) == ("/tasks/send-reminder", Remind)
    assert remind.function == "tests.rollforward.tasks.reminders.remind"
    assert send_reminder.function.startswith(f"{__name__}.test_a_task_needs")
    assert send_reminder.function.endswith(".send_reminder")


@pytest.mark.parametrize("work", [Worker(), functools.partial(look, "x")], ids=["object", "part"])
def test_work_that_is_no_function_has_a_name_too(work: Any) -> None:
    """A registry can name what it was made of."""
    declared = Task("/tasks/tests/x", "default", Remind, work)

    assert declared.function.startswith(f"{__name__}.")


def test_a_task_is_not_called() -> None:
    """Called like a function it would run in the request, once: the error says what to do."""
    with pytest.raises(TypeError, match=r"reminders\.remind is a task.*\.enqueue\(\.\.\.\)"):
        remind(None, Remind("p1"))  # type: ignore[operator]


def without_annotations(clients, args):  # type: ignore[no-untyped-def]
    pass


def with_arguments_first(args: Remind, clients: Clients) -> None:
    pass


def with_one_that_has_no_type(clients: Clients, name) -> None:  # type: ignore[no-untyped-def]
    pass


def with_a_star(clients: Clients, *args: Remind) -> None:
    pass


def with_many_options(clients: Clients, **options: int) -> None:
    pass


def with_a_default_that_changes(clients: Clients, names: list[str] = []) -> None:  # noqa: B006
    pass


def of_a_type_to_come(clients: Clients, args: ToCome) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


async def of_a_coroutine(clients: Clients, args: Remind) -> None:
    pass


def of_a_generator(clients: Clients, args: Remind) -> Iterator[None]:
    yield


NO_TASKS: list[Any] = [
    without_annotations,
    with_arguments_first,
    with_one_that_has_no_type,
    with_a_star,
    with_many_options,
    with_a_default_that_changes,
    of_a_type_to_come,
    of_a_coroutine,
    of_a_generator,
    lambda clients, args: None,
]


@pytest.mark.parametrize("work", NO_TASKS, ids=lambda work: work.__name__)
def test_a_function_of_another_form_is_refused_when_it_is_declared(work: Any) -> None:
    """The error names the function and shows the right form; nothing waits for a delivery."""
    with pytest.raises(TypeError, match=r"def ship\(clients: Clients, args: Ship\)") as raised:
        task("/tasks/tests/x", queue="default")(work)

    assert work.__qualname__ in str(raised.value)


def test_a_task_with_a_dataclass_takes_one_value() -> None:
    """It is no task with the parameters of that dataclass."""
    with pytest.raises(TypeError, match="/tasks/tests/remind takes one Remind"):
        remind.bind("p1")  # type: ignore[misc]


# What is refused


@one_emulator
@pytest.mark.parametrize(
    "options",
    [
        {"at": datetime.datetime(2030, 1, 1)},  # noqa: DTZ001
        {"at": datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)},
        {"delay_s": MAX_AHEAD_S + 1},
    ],
    ids=["naive", "far", "long"],
)
def test_a_time_that_cannot_be_meant_is_refused(world: World, options: dict[str, Any]) -> None:
    """A naive time, or one beyond ten years: refused before anything is sent."""
    with world.context(), pytest.raises(BadArgumentsError):
        remind.enqueue(world.clients, Remind("p1"), **options)

    assert queued(world) == []


@one_emulator
def test_the_longest_delay_is_accepted(world: World) -> None:
    """Up to ten years: a row keeps what is beyond the 30 days of the service."""
    with world.context():
        assert remind.enqueue(world.clients, Remind("p1"), delay_s=MAX_AHEAD_S - 1)

    assert queued(world) == []


@one_emulator
@pytest.mark.parametrize("max_attempts", [0, -1, 2.5, True, "3", float("inf")])
def test_a_task_that_would_never_be_attempted_is_refused(world: World, max_attempts: int) -> None:
    """A declaration of it, and one that is enqueued: each delivery would give it up."""
    with pytest.raises(ValueError, match="max_attempts must be a whole number, at least 1"):
        task(max_attempts=max_attempts)
    with world.context(), pytest.raises(BadArgumentsError, match="max_attempts must be"):
        remind.enqueue(world.clients, Remind("p1"), max_attempts=max_attempts)

    assert queued(world) == []


@dataclass(frozen=True)
class RemindKindly(Remind):
    """Arguments with a field of their own, which a delivery would not have."""

    greeting: str = "dear"


WRONG: list[Any] = [
    RemindKindly("p1"),
    Remind(5),  # type: ignore[arg-type]
    Remind("p1", "3"),  # type: ignore[arg-type]
    Remind("p1", 1.5),  # type: ignore[arg-type]
    Remind(None),  # type: ignore[arg-type]
    Remind(["p1"]),  # type: ignore[arg-type]
    Remind("\ud800"),
    {"party_id": "p1"},
    "p1",
    None,
]


@one_emulator
@pytest.mark.parametrize("args", WRONG, ids=repr)
def test_arguments_of_another_type_are_refused(world: World, args: Any) -> None:
    """What no delivery could read is not enqueued: the caller learns of it, not the queue."""
    with pytest.raises(BadArgumentsError):
        remind.enqueue(world.clients, args)

    assert queued(world) == []


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (Remind(5), "/tasks/tests/remind: party_id: Input should be a valid string, not int"),  # type: ignore[arg-type]
        (Remind("p", "3"), "days: Input should be a valid integer, not str"),  # type: ignore[arg-type]
        ("p1", "/tasks/tests/remind takes Remind, not str: 'p1'"),
        (None, "takes Remind, not NoneType: None"),
        (RemindKindly("p1"), "takes Remind, not RemindKindly: RemindKindly(party_id='p1'"),
    ],
    ids=repr,
)
def test_a_refusal_names_the_field_and_the_types(args: Any, complaint: str) -> None:
    """Python does not check a dataclass's fields: what is wrong with them is said in words."""
    with pytest.raises(BadArgumentsError, match=re.escape(complaint)):
        remind.message(args)


@dataclass(frozen=True)
class Between:
    """Arguments whose numbers may be left out."""

    low: float | None = None
    others: tuple[float | None, ...] = ()
    more: Any = None


@task("/tasks/tests/between", queue="default")
def between(clients: Clients, args: Between) -> None:
    """Do nothing."""


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_no_json_is_refused_where_none_is_allowed(number: float) -> None:
    """It was delivered as None, as if it had been left out."""
    for args in (Between(number), Between(others=(1.5, number)), Between(more={"a": [number]})):
        with pytest.raises(BadArgumentsError, match="NaN and infinite numbers are no JSON"):
            between.message(args)
    for args in (Between(), Between(-0.0, (None, 1e308))):
        assert between.read(between.message(args).body) == args


@one_emulator
@pytest.mark.parametrize("text", ["x", "庭", "\x00"])
def test_an_oversized_task_is_refused(world: World, text: str) -> None:
    """H5: more than 10 MB of arguments, counted as they travel, are refused at the caller's."""
    size = len(json.dumps(text, ensure_ascii=False).encode()) - 2
    fits = text * ((MAX_ARGUMENTS_BYTES - 50) // size)

    with world.context():
        assert remind.enqueue(world.clients, Remind(fits))
        with pytest.raises(TooLargeError):
            remind.enqueue(world.clients, Remind(fits + text * 100))

    assert len(queued(world)) == 1


def test_a_message_for_a_row_is_bounded_by_what_a_row_carries() -> None:
    """H5: patterns keep messages in rows, many in a commit."""
    assert remind.message(Remind("x" * (MAX_BODY_BYTES - 50)))
    with pytest.raises(TooLargeError, match="at most 100000 bytes"):
        remind.message(Remind("x" * MAX_BODY_BYTES))


@one_emulator
def test_a_name_of_many_bytes_is_refused(world: World) -> None:
    """A name is made of ids; 2,000 bytes of them are an error of the caller's."""
    with pytest.raises(TooLargeError):
        remind.enqueue(world.clients, Remind("p1"), name=("x" * 2_001,))

    assert queued(world) == []


# Names


parts = st.lists(st.one_of(st.text(max_size=8), st.integers()), max_size=4).map(tuple)


@given(parts, parts)
def test_names_are_equal_exactly_when_their_parts_are(one: tuple[Any, ...], two: Any) -> None:
    """A5: no two things share a name: not ("a", "11") and ("a1", "1"), not 1 and "1"."""
    assert (hashed_name(*one) == hashed_name(*two)) == (one == two)


def test_a_name_is_the_same_in_each_version() -> None:
    """B1: what an earlier version has enqueued, this one finds to exist."""
    assert hashed_name("page", "é", 2) == "f68d8259a525d9eb5d29e5987b07e8761eb68681"
    assert hashed_name("page", "\ud800") != hashed_name("page", "\ud801")


@given(parts)
def test_a_name_is_one_that_cloud_tasks_takes(one: tuple[Any, ...]) -> None:
    """Whatever the parts hold, the id is hex: no user's text gets into an address."""
    name = hashed_name(*one)

    assert len(name) == 40
    assert set(name) <= set("0123456789abcdef")


@one_emulator
def test_a_name_that_exists_is_an_answer(world: World) -> None:
    """A second create says False, also after the task has run: names are remembered."""
    created = remind.enqueue(world.clients, Remind("p1"), name=("p1", 1))
    repeated = remind.enqueue(world.clients, Remind("other"), name=("p1", 1))
    [due] = world.engine.due()
    world.engine.end_attempt(world.engine.begin_attempt(due.task_name).id, status=204)
    after_its_run = remind.enqueue(world.clients, Remind("p1"), name=("p1", 1))

    assert (created, repeated, after_its_run) == (True, False, False)
    assert queued(world) == []


@one_emulator
def test_two_tasks_of_one_name_do_not_meet(world: World) -> None:
    """The path is part of the name: another task may use the same parts."""
    other = replace(remind, path="/tasks/tests/other")

    assert remind.enqueue(world.clients, Remind("p1"), name=("p1",))
    assert other.enqueue(world.clients, Remind("p1"), name=("p1",))


# A batch that does not end well


def test_what_is_read_is_what_was_sent() -> None:
    """A body is read by the same declaration that wrote it."""
    sent: Task[Remind] = remind

    assert sent.read(sent.message(Remind("庭", -(10**30))).body) == Remind("庭", -(10**30))


class Shops(Pattern[Any]):
    """A pattern whose parts are told apart by their names."""

    name = "shops"
    has_unique_names = True


def test_two_parts_of_one_name_are_refused() -> None:
    """Their rows would be the same; a pattern that needs no names takes both."""
    lamps, bulbs = SimpleNamespace(name="lamps"), SimpleNamespace(name="bulbs")

    Shops().check([lamps, bulbs])
    with pytest.raises(TypeError, match="each shops must have a name of its own, got 'lamps'"):
        Shops().check([lamps, bulbs, lamps])
    Pattern[Any]().check([lamps, lamps])
