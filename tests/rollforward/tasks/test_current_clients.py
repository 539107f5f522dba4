"""Clients of the request or task that runs, where none are passed."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

import rollforward as rf
from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from rollforward.runtime.process.current import NoClientsError, current_clients
from rollforward.tasks import task
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast

DONE: Counter[str] = Counter()


@dataclass(frozen=True)
class Wrap:
    item: str


@task
def pack(item: str, *, times: int = 1) -> None:
    """Pack an item, and have it wrapped by the clients of this very task."""
    DONE[f"pack {item}"] += times
    wrap.enqueue(Wrap(item))


@task
def wrap(args: Wrap) -> None:
    DONE[f"wrap {args.item}"] += 1


@task
def tick() -> None:
    DONE["tick"] += 1


@pytest.fixture
def world(services: Services) -> World:
    DONE.clear()
    return World(services, tasks=[pack, wrap, tick])


def test_a_task_is_enqueued_by_the_clients_that_run(world: World) -> None:
    """In a context and in a task: each of the forms of a call."""
    with world.context():
        pack.enqueue("lamp", times=2)
        pack.enqueue(pack.bind("rug"), delay_s=1)
        pack.enqueue_many([pack.bind("cup")])
        tick.enqueue()
        transact(lambda: rf.enqueue(wrap, Wrap("box"), name=("box",)))
        transact(lambda: outbox.enqueue(world.clients, wrap, Wrap("box"), name=("box",)))
    world.settle()
    world.clock.sleep(2)
    world.settle()

    items = ("lamp", "rug", "cup")
    assert {key: DONE[key] for key in DONE if key.startswith("wrap")} == {
        **{f"wrap {item}": 1 for item in items},
        "wrap box": 1,
    }
    assert [DONE[f"pack {item}"] for item in items] == [2, 1, 1]
    assert DONE["tick"] == 1


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda: pack.enqueue("lamp"),
        lambda: pack.enqueue_many([pack.bind("lamp")]),
        lambda: rf.enqueue(wrap, Wrap("lamp")),
        rf.clients,
    ],
)
def test_outside_of_a_request_the_error_says_what_to_pass(enqueue: Any) -> None:
    """A script, and a thread of one's own, have no clients."""
    with pytest.raises(NoClientsError, match=r"greet\.enqueue\(clients, \.\.\.\)"):
        enqueue()


def test_a_thread_does_not_take_the_clients_of_another_one(world: World) -> None:
    """It has no ndb context either, so the call would fail later and less clearly."""
    raised = []

    def work() -> None:
        try:
            current_clients()
        except NoClientsError as error:
            raised.append(error)

    with world.context():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert len(raised) == 1


def fail_in(clients: Clients) -> None:
    """Leave a context by an error."""
    with contextlib.suppress(ZeroDivisionError), clients.context():
        assert rf.clients() is clients
        raise ZeroDivisionError


def test_the_clients_of_a_context_end_with_it(world: World) -> None:
    """Also by an error; those of two apps in one process are told apart."""
    other = replace(world.clients, services={str: "other"})

    with world.clients.context():
        assert current_clients() is world.clients
    fail_in(other)
    with pytest.raises(NoClientsError):
        current_clients()


def test_clients_that_are_passed_go_first(world: World) -> None:
    """The library's own code passes them everywhere."""
    passed = replace(world.clients, task_paths=set())

    with world.context(), pytest.raises(LookupError, match="/tasks/pack is in no registry"):
        pack.enqueue(passed, "lamp")
