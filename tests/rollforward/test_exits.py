"""Code of the app that exits, as a command line does: it fails, and stops nothing else."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from rollforward import continuations
from rollforward.continuations import Job
from rollforward.continuations.progress import progress
from rollforward.lanes import Lane
from rollforward.runtime import Clients
from rollforward.tasks import task
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import Item, Walk, items_of, put_items_here
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

DONE: Counter[str] = Counter()


@dataclass(frozen=True)
class Report:
    month: str


@task("/tasks/tests/report", queue="default", max_attempts=2)
def report(clients: Clients, args: Report) -> None:
    DONE[args.month] += 1
    if args.month == "13":
        sys.exit("no such month")


REPORTS = Lane("test-reports", order=True)


@contextmanager
def open_reports(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
    def act(item: Item) -> None:
        DONE[str(item.value)] += 1
        if item.value == 1:
            sys.exit(2)

    yield act


REPORT_ALL = Job("report-all", "fan-out", Walk, items_of, side_effect=open_reports, page_size=3)


def note_all(clients: Clients, args: Walk, items: list[Item]) -> list[None]:
    DONE.update(str(item.value) for item in items)
    if any(item.value == 1 for item in items):
        sys.exit(2)
    return [None] * len(items)


NOTE_ALL = Job("note-all", "fan-out", Walk, items_of, apply=note_all, page_size=3)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    world = World(services, jobs=[REPORT_ALL, NOTE_ALL], tasks=[report], lanes=[REPORTS])
    DONE.clear()
    with world.clients.context():
        yield world


@one_emulator
def test_a_task_that_exits_is_dead_after_its_attempts(world: World) -> None:
    report.enqueue(world.clients, Report("13"))
    world.settle()
    [dead] = DeadTask.query().fetch()
    assert (DONE["13"], dead.error) == (2, "SystemExit")


@one_emulator
def test_a_task_that_exits_lets_its_lane_go_on(world: World) -> None:
    for month in ("13", "1"):
        report.enqueue(world.clients, Report(month), lane=REPORTS("all"))
    world.settle()
    assert DONE == {"13": 2, "1": 1}
    assert "SystemExit: no such month" in DeadTask.query().get().reason


@one_emulator
def test_an_item_that_exits_repeats_no_other_of_its_page(world: World) -> None:
    put_items_here(3)
    continuations.start(world.clients, REPORT_ALL, Walk("r"), run_id="r")
    world.settle()
    run = progress("r")
    assert (run.state, run.totals.done, run.totals.failed) == ("finished", 2, 1)
    assert DONE["0"] == DONE["2"] == 1


@one_emulator
def test_an_item_that_exits_lets_the_others_of_its_commit_be_applied(world: World) -> None:
    put_items_here(3)
    continuations.start(world.clients, NOTE_ALL, Walk("r"), run_id="r")
    world.settle()
    run = progress("r")
    assert (run.state, run.totals.done, run.totals.failed) == ("finished", 2, 1)
