"""Errors of the app whose text fails: each counts as any other error, and stops nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rollforward import continuations
from rollforward.continuations import Job
from rollforward.continuations.progress import progress
from rollforward.lanes import Lane
from rollforward.materialized_views import BadContributionError, Contributions, View, ViewGroup
from rollforward.operations.audit import recorded
from rollforward.operations.entities import AuditEntry
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, Record
from rollforward.streams.testing import StreamTest
from rollforward.tasks import task
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import Item, Walk, items_of, put_items_here
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

DONE: Counter[str] = Counter()


class MuteError(Exception):
    """An error that was made for a response, and has none."""

    def __str__(self) -> str:
        return str(self.response.text)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Visit:
    guest: str


@task("/tasks/tests/visit", queue="default", max_attempts=2)
def visit(clients: Clients, args: Visit) -> None:
    DONE[args.guest] += 1
    if args.guest == "mute":
        raise MuteError


VISITS = Lane("test-visits", order=True)


@contextmanager
def open_visits(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
    def act(item: Item) -> None:
        if item.value == 1:
            raise MuteError

    yield act


VISIT_ALL = Job("visit-all", "fan-out", Walk, items_of, side_effect=open_visits, page_size=3)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    world = World(services, jobs=[VISIT_ALL], tasks=[visit], lanes=[VISITS])
    DONE.clear()
    with world.clients.context():
        yield world


@one_emulator
def test_a_task_that_fails_without_a_text_is_dead_after_its_attempts(world: World) -> None:
    visit.enqueue(world.clients, Visit("mute"))
    world.settle()
    [dead] = DeadTask.query().fetch()
    assert (DONE["mute"], dead.error) == (2, "MuteError")


@one_emulator
def test_a_task_that_fails_without_a_text_lets_its_lane_go_on(world: World) -> None:
    for guest in ("mute", "ada"):
        visit.enqueue(world.clients, Visit(guest), lane=VISITS("door"))
    world.settle()
    assert DONE == {"mute": 2, "ada": 1}
    assert len(DeadTask.query().fetch()) == 1


@one_emulator
def test_an_item_that_fails_without_a_text_lets_its_run_go_on(world: World) -> None:
    put_items_here(3)
    continuations.start(world.clients, VISIT_ALL, Walk("r"), run_id="r")
    world.settle()
    run = progress("r")
    assert (run.state, run.totals.done, run.totals.failed) == ("finished", 2, 1)


class GuestsByName(View):
    source = Item

    @staticmethod
    def contributions(item: Item) -> Contributions:
        raise MuteError


GUESTS = ViewGroup("test-guests", GuestsByName)


@one_emulator
def test_a_view_that_fails_without_a_text_refuses_the_source(world: World) -> None:
    with pytest.raises(BadContributionError, match="fails over it: MuteError"):
        GUESTS.save(world.clients, Item(id="mute"))


@one_emulator
def test_a_change_that_fails_without_a_text_is_in_the_audit_trail(world: World) -> None:
    with (
        pytest.raises(MuteError),
        recorded(world.clients, operator="ada", role="admin", action="replay", target="a task"),
    ):
        raise MuteError
    [entry] = AuditEntry.query().fetch()
    assert entry.result == "MuteError"


class Greet(Computation):
    name = "greet"
    outputs = ("greetings",)

    def __init__(self, key_of: Callable[[Any], str]) -> None:
        self.inputs = {"guests": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        if record.value == "mute":
            raise MuteError
        ctx.produce("greetings", record.value)


def key_or_mute(guest: str) -> str:
    if guest == "mute":
        raise MuteError
    return guest


@pytest.mark.parametrize("key_of", [lambda guest: "all", key_or_mute])
def test_a_record_that_fails_without_a_text_is_a_dead_letter(key_of: Callable[[Any], str]) -> None:
    test = StreamTest(Pipeline("test-greetings", Greet(key_of)))
    for at, guest in enumerate(["ada", "mute", "bob"]):
        test.push("guests", guest, at)
    test.close()
    assert [record.value for record in test.read("greetings")] == ["ada", "bob"]
    [(_, letter)] = test.dead
    assert "MuteError" in letter.error
