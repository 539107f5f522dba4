"""Deferred calls: the calls of google.appengine.ext.deferred, delivered as declared tasks."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.cloud import ndb

import rollforward as rf
from rollforward.compat import deferred
from rollforward.datastore import NoTransactionError, transact
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import BadArgumentsError, TooLargeError, task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.errors import UnknownQueueError, UnknownTaskError
from tests.infra.world import Services, World
from tests.rollforward.compat import deferred_calls
from tests.rollforward.compat.deferred_calls import (
    CALLS,
    FUNCTIONS,
    Letter,
    break_down,
    count_down,
    fail_once,
    greet,
    refuse,
    send,
    step,
)
from tests.rollforward.tasks.reminders import one_emulator, queued

pytestmark = pytest.mark.fast

MODULE = "tests.rollforward.compat.deferred_calls"


@pytest.fixture
def world(services: Services) -> World:
    CALLS.clear()
    return World(services, tasks=FUNCTIONS)


def test_a_call_is_delivered_with_its_arguments(world: World) -> None:
    with world.context():
        deferred.defer(greet, "Ada", datetime.date(2030, 5, 1), times=2)
        deferred.defer(greet, name="Bob")
        deferred.defer(send, Letter("Cy"))
        deferred.defer(send, letter=Letter("Di"))
    world.settle()

    assert CALLS == {"Ada 2030-05-01": 2, "Bob None": 1, "Cy": 1, "Di": 1}


@one_emulator
def test_a_task_holds_its_arguments_as_json_and_names_no_code(world: World) -> None:
    """The path finds the function in the registry; the body is that of a declared task."""
    with world.context():
        deferred.defer(greet, "Ada", times=2)
    [waiting] = queued(world)

    assert json.loads(waiting.http_request.body) == {"name": "Ada", "day": None, "times": 2}
    assert waiting.http_request.url.endswith(f"/tasks/deferred/{MODULE}.greet")


def test_a_declared_function_remains_a_function(services: Services) -> None:
    """Called, it runs at once and returns its value; no client is needed."""
    CALLS.clear()

    assert greet("Ada", times=3) == "Hello, Ada"
    assert CALLS == {"Ada None": 3}
    assert (greet.__name__, greet.__doc__) == ("greet", "Greet somebody.")  # type: ignore[attr-defined]


def test_a_declaration_has_the_options_of_a_task() -> None:
    assert (greet.path, greet.queue) == (f"/tasks/deferred/{MODULE}.greet", "default")
    assert greet.max_attempts == 50
    assert (send.path, send.queue) == ("/tasks/letters/send", "fan-out")
    assert (send.max_attempts, send.deadline_s) == (2, 60)


@one_emulator
def test_a_call_runs_after_its_countdown_or_at_its_eta(world: World) -> None:
    """A naive time is in UTC, as on App Engine."""
    now = world.clock.now()
    naive = now.replace(tzinfo=None)
    with world.context():
        deferred.defer(greet, "a", _countdown=60)
        deferred.defer(greet, "b", _eta=now + datetime.timedelta(seconds=90))
        deferred.defer(greet, "c", _eta=naive + datetime.timedelta(seconds=120))
        deferred.defer(greet, "d", _eta=naive - datetime.timedelta(days=2))
        deferred.defer(greet, "e", _countdown=-5)
        deferred.defer(greet, "f", _countdown=None, _eta=None, _name=None, _queue=None)
    totals = []
    for seconds in (0, 59, 2, 28, 2, 28, 2):
        world.clock.sleep(seconds)
        world.deliver_due()
        totals.append(CALLS.total())

    assert totals == [3, 3, 4, 4, 5, 5, 6]


@one_emulator
def test_a_call_goes_to_its_queue(world: World) -> None:
    with world.context():
        deferred.defer(greet, "Ada", _queue="imports")
        deferred.defer(greet, "Bob")
        deferred.defer(send, Letter("Cy"))
        with pytest.raises(UnknownQueueError, match=r"'nosuch' is not in queue\.yaml"):
            deferred.defer(greet, "Di", _queue="nosuch")

    assert [waiting.name.split("/")[5] for waiting in queued(world)] == [
        "default",
        "imports",
        "fan-out",
    ]
    world.settle()
    assert CALLS == {"Ada None": 1, "Bob None": 1, "Cy": 1}


def test_the_copy_of_a_function_for_a_queue_is_made_once() -> None:
    """With it what checks its arguments, which takes milliseconds to make."""
    assert deferred._on_queue(greet, "imports") is deferred._on_queue(greet, "imports")


@one_emulator
def test_a_second_call_of_a_name_raises(world: World) -> None:
    """While the first waits, and after it ran: Cloud Tasks tells no difference."""
    with world.context():
        deferred.defer(greet, "Ada", _name="hello")
        with pytest.raises(deferred.TaskAlreadyExistsError, match=r"^'hello' exists already"):
            deferred.defer(greet, "Bob", _name="hello")
    world.settle()
    with world.context(), pytest.raises(deferred.Error):
        deferred.defer(greet, "Cy", _name="hello")

    assert CALLS == {"Ada None": 1}


@pytest.mark.parametrize("options", [{}, {"_transactional": True}, {"_transactional": None}])
def test_a_call_in_a_transaction_commits_with_it(world: World, options: dict[str, Any]) -> None:
    """B1: also without `_transactional`, as a body may run twice or never commit."""

    def body(name: str, *, fails: bool) -> None:
        deferred.defer(greet, name, **options)
        assert queued(world) == []
        if fails:
            raise ZeroDivisionError

    with world.context():
        with pytest.raises(ZeroDivisionError):
            transact(lambda: body("Eve", fails=True))
        transact(lambda: body("Ada", fails=False))
    world.settle()

    assert CALLS == {"Ada None": 1}


@one_emulator
def test_a_call_that_is_not_transactional_is_created_at_once(world: World) -> None:
    """As the original's was by default: it runs although the transaction failed."""

    def body() -> None:
        deferred.defer(greet, "Ada", _transactional=False)
        raise ZeroDivisionError

    with world.context(), pytest.raises(ZeroDivisionError):
        transact(body)
    world.settle()

    assert CALLS == {"Ada None": 1}


@one_emulator
def test_a_transactional_call_may_have_a_name_and_a_delay(world: World) -> None:
    """The original refused a name. The second transaction commits, and its call is the first's."""
    with world.context():
        for name in ("Ada", "Bob"):
            transact(
                lambda name=name: deferred.defer(  # type: ignore[misc]
                    greet, name, _name="hello", _countdown=10, _transactional=True
                )
            )
    world.settle()

    assert CALLS == {"Ada None": 1}


@one_emulator
@pytest.mark.parametrize("run", [lambda body: body(), ndb.transaction], ids=["none", "ndb's"])
def test_a_transactional_call_needs_the_body_of_transact(
    world: World, run: Callable[[Callable[[], None]], None]
) -> None:
    """A transaction of ndb's own gives no notice of its commit: the text says what to write."""
    with world.context(), pytest.raises(NoTransactionError, match=r"transact\(body\)"):
        run(lambda: deferred.defer(greet, "Ada", _transactional=True))

    assert queued(world) == []


@one_emulator
def test_a_call_defers_the_next_one(world: World) -> None:
    """A task has the clients of its delivery."""
    with world.context():
        deferred.defer(count_down, 3)
    world.settle()

    assert set(CALLS.items()) == {(f"left {left}", 1) for left in range(4)}


# Failures


def dead_reasons(world: World) -> list[str]:
    with world.context():
        return [dead.reason for dead in DeadTask.query()]


@one_emulator
def test_a_permanent_failure_is_kept_as_a_dead_task(world: World) -> None:
    """The original dropped it, with a line in the log."""
    with world.context():
        deferred.defer(refuse, "parrot")
    world.settle()

    assert CALLS == {"parrot": 1}
    assert dead_reasons(world) == ["PermanentTaskFailure: there is no parrot"]


@one_emulator
def test_a_singular_failure_is_retried_and_not_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Four times, although two failures of another kind would be too many; no traceback."""
    with world.context():
        deferred.defer(fail_once, "till")
    world.settle()

    assert CALLS == {"till": 5}
    assert dead_reasons(world) == []
    assert not [record for record in caplog.records if record.exc_info]


@one_emulator
def test_another_error_is_retried_until_it_has_failed_too_often(world: World) -> None:
    with world.context():
        deferred.defer(break_down, "car")
    world.settle()

    assert CALLS == {"car": 2}
    [reason] = dead_reasons(world)
    assert "ZeroDivisionError: car" in reason


# Arguments and registration


@one_emulator
@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((), {}),
        ((1,), {}),
        (("Ada", None, 3), {}),
        (("Ada",), {"times": "2"}),
        (("Ada",), {"_delay": 3}),
        ((object(),), {}),
    ],
)
@pytest.mark.parametrize("transactional", [False, True])
def test_arguments_that_do_not_fit_are_refused(
    world: World, args: tuple[Any, ...], options: dict[str, Any], transactional: bool
) -> None:
    """Before anything is sent or stored, and whichever way it would go."""

    def body() -> None:
        deferred.defer(greet, *args, _transactional=transactional, **options)

    with world.context(), pytest.raises(BadArgumentsError, match=r"^/tasks/deferred/tests.*greet"):
        transact(body)
    with world.context():
        assert ndb.Query().fetch(keys_only=True) == []
    assert queued(world) == []


@one_emulator
@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("Ada",), {}), ((Letter("a"), 1), {}), ((), {"x": Letter("a")})]
)
def test_the_one_dataclass_of_a_function_is_checked(
    world: World, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with world.context(), pytest.raises(BadArgumentsError, match=r"^/tasks/letters/send"):
        deferred.defer(send, *args, _queue="default", **kwargs)
    assert queued(world) == []


@one_emulator
def test_a_call_that_is_too_large_is_refused(world: World) -> None:
    """Beyond the rows that hold large arguments."""
    with world.context(), pytest.raises(TooLargeError, match="10000000 bytes"):
        deferred.defer(greet, "a" * 10_000_000)
    assert queued(world) == []


@one_emulator
@pytest.mark.parametrize("transactional", [False, True])
def test_a_large_call_is_delivered(world: World, transactional: bool) -> None:
    """As the original's, which an entity held; in a transaction its rows commit with it."""
    name = "a" * 1_500_000

    with world.context():
        if transactional:
            transact(lambda: deferred.defer(greet, name))
        else:
            deferred.defer(greet, name)
    world.settle()

    assert list(CALLS.items()) == [(f"{name} None", 1)]


@one_emulator
def test_an_unregistered_function_is_refused_when_it_is_deferred(world: World) -> None:
    """Nothing is looked up in a module: only the registry has functions."""
    unaware: Clients = replace(world.clients, task_paths=Registry(send).tasks)

    with unaware.context(), pytest.raises(UnknownTaskError, match=rf"{MODULE}\.greet.*Registry\("):
        deferred.defer(greet, "Ada")
    with unaware.context():
        deferred.defer(send, Letter("Cy"))


def test_a_call_outside_of_requests_says_how_to_get_clients() -> None:
    with pytest.raises(LookupError, match=r"with clients\.context\(\)"):
        deferred.defer(greet, "Ada")


def test_the_functions_of_a_module_are_registered_together() -> None:
    """Each once, whatever imports it."""
    functions = deferred.tasks(deferred_calls, sys.modules[__name__])

    assert set(functions) == set(FUNCTIONS)
    assert len(functions) == len(FUNCTIONS)
    assert set(Registry(*functions).tasks) >= {function.path for function in FUNCTIONS}


def test_a_deferrable_is_the_declared_task_with_the_same_parameters() -> None:
    """Its tasks have the body of that task; only their path tells them apart."""

    @task
    def greet_too(name: str, day: datetime.date | None = None, *, times: int = 1) -> None: ...

    old = greet.message(greet.bind("Ada", times=2), name=("a",))
    new = greet_too.message(greet_too.bind("Ada", times=2), name=("a",))

    assert isinstance(greet, rf.tasks.Task)
    assert (old.body, old.queue) == (new.body, new.queue)
    assert step.enqueue is not None
