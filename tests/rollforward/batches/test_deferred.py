"""Deferred calls: checked when they are made and when they arrive, and nothing is imported."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import pytest

from rollforward.batches import TaskBatch, defer, defer_in_transaction, deferrable
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from rollforward.tasks import BadArgumentsError
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast

GREETED: Counter[str] = Counter()


@deferrable(queue="default")
def greet(clients: Clients, name: str, day: datetime.date | None = None, *, times: int = 1) -> int:
    GREETED[f"{name} {day}"] += times
    return times


GREETINGS = TaskBatch("greetings", members=[greet])


@pytest.fixture
def world(services: Services) -> World:
    GREETED.clear()
    return World(services, tasks=[greet], batches=[GREETINGS])


def test_a_deferred_call_is_made_with_its_arguments(world: World) -> None:
    with world.context():
        defer(world.clients, greet, "Ada", datetime.date(2030, 5, 1), times=2)
        defer(world.clients, greet, name="Bob")
    world.settle()

    assert greet.path == "/tasks/deferred/greet"
    assert GREETED == {"Ada 2030-05-01": 2, "Bob None": 1}


def test_a_call_is_deferred_with_a_transaction_or_not_at_all(world: World) -> None:
    """B1, B2: as every task."""

    def body(name: str, *, fails: bool) -> None:
        defer_in_transaction(world.clients, greet, name)
        if fails:
            raise ZeroDivisionError

    with world.context():
        with pytest.raises(ZeroDivisionError):
            transact(lambda: body("Eve", fails=True))
        transact(lambda: body("Ada", fails=False))
    world.settle()

    assert GREETED == {"Ada None": 1}


def test_a_deferred_call_is_made_as_late_as_it_says(world: World) -> None:
    """Deferred by itself or with a transaction."""
    with world.context():
        defer(world.clients, greet, "Ada", delay_s=60)
        transact(lambda: defer_in_transaction(world.clients, greet, "Bob", delay_s=90))
    seen = []
    for seconds in (59, 2, 28, 2):
        world.clock.sleep(seconds)
        world.deliver_due()
        seen.append(GREETED.total())

    assert seen == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((), {}),
        (("Ada", None, 3), {}),
        ((1,), {}),
        (("Ada",), {"times": "2"}),
        (("Ada",), {"x": 1}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    world: World, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with world.context(), pytest.raises(BadArgumentsError):
        defer(world.clients, greet, *args, **options)
    assert not world.live_tasks("default")


def test_a_deferred_call_can_be_a_member(world: World) -> None:
    """F1: and what it returns is the member's result."""
    with world.context():
        work = [greet.member("Ada"), greet.member("Bob", times=3)]
        GREETINGS.populate(world.clients, "b", work, seal=True)
    world.settle()

    with world.context():
        assert [member.result for member in GREETINGS.results("b")] == [1, 3]


def test_a_function_names_each_of_its_parameters() -> None:
    def many(clients: Clients, *names: str) -> None: ...

    def untyped(clients: Clients, name) -> None: ...  # type: ignore[no-untyped-def]

    for function in (many, untyped):
        with pytest.raises(TypeError):
            deferrable(queue="default")(function)
