"""Tasklets of ndb as code of the app: each runs to its end, and its error counts as any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations import Job
from rollforward.continuations.progress import progress
from rollforward.lanes import Call, Lane, debounced
from rollforward.lanes.declaration import LaneKey
from rollforward.runtime import Clients
from rollforward.tasks import task
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import Item, Walk, items_of, put_items_here
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

DONE: list[str] = []


@dataclass(frozen=True)
class Note:
    text: str


@ndb.tasklet  # type: ignore[untyped-decorator]
def note(text: str) -> Any:
    yield ndb.Key(Item, "none").get_async()
    DONE.append(text)
    if text == "bad":
        raise ValueError("it cannot be noted")


@task("/tasks/tests/note-by-tasklet", queue="default", max_attempts=2)
@ndb.tasklet  # type: ignore[untyped-decorator]
def write(clients: Clients, args: Note) -> Any:
    yield note(args.text)


@task("/tasks/tests/note-by-future", queue="default", max_attempts=2)
def write_by_future(text: str) -> Any:
    return note(text)


NOTES = Lane("test-tasklets", order=True)


@debounced("test-gathered-tasklets", wait_s=1, max_attempts=2)
def write_all(key: str, calls: Sequence[Call[Note]]) -> Any:
    return note(calls[0].args.text)


@contextmanager
def open_notes(clients: Clients, args: Walk) -> Iterator[Callable[[Item], Any]]:
    yield lambda item: note("bad" if item.value == 1 else "good")


@ndb.tasklet  # type: ignore[untyped-decorator]
def tell(clients: Clients, args: Walk) -> Any:
    yield ndb.Key(Item, "none").get_async()
    DONE.append("told")
    if DONE.count("told") == 1:
        raise ValueError("nobody listens")


NOTE_ITEMS = Job(
    "note-items",
    "fan-out",
    Walk,
    items_of,
    side_effect=open_notes,
    max_attempts=2,
    on_finished=tell,
)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    DONE.clear()
    world = World(
        services,
        jobs=[NOTE_ITEMS],
        tasks=[write, write_by_future],
        lanes=[NOTES, write_all],
    )
    with world.clients.context():
        yield world


@one_emulator
@pytest.mark.parametrize("lane", [None, NOTES("all")], ids=["alone", "lane"])
def test_a_task_that_is_a_tasklet_fails_as_any_other(world: World, lane: LaneKey | None) -> None:
    write.enqueue(world.clients, Note("bad"), lane=lane)
    write_by_future.enqueue(world.clients, write_by_future.bind("bad"), lane=lane)
    world.settle()
    assert DONE == ["bad"] * 4
    assert len(DeadTask.query().fetch()) == 2


@one_emulator
def test_calls_that_a_tasklet_gets_run_again_after_its_error(world: World) -> None:
    write_all.call(world.clients, "all", Note("bad"))
    world.settle()
    assert DONE == ["bad", "bad"]
    assert len(DeadTask.query().fetch()) == 1


@one_emulator
def test_an_item_whose_tasklet_fails_is_not_done_and_a_run_is_told_again(world: World) -> None:
    put_items_here(3)
    continuations.start(world.clients, NOTE_ITEMS, Walk("r"), run_id="r")
    world.settle()
    totals = progress("r").totals
    assert (totals.done, totals.failed) == (2, 1)
    assert sorted(DONE) == ["bad", "bad", "good", "good", "told", "told"]
