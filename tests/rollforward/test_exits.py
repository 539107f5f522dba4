"""Code of the app that ends by what is no Exception: it fails, and stops nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

import pytest

from rollforward import continuations
from rollforward.app_code import EXITS
from rollforward.continuations import Job
from rollforward.continuations.progress import progress
from rollforward.flows import RetryPolicy, StepFailedError, Steps, flow
from rollforward.fork_join import Batch, fork_join
from rollforward.lanes import Call, Lane, unique
from rollforward.lanes.declaration import LaneKey
from rollforward.runtime import Clients
from rollforward.tasks import Reject, task
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import Item, Walk, items_of, put_items_here
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

DONE: Counter[str] = Counter()
ENDING: list[type[BaseException]] = []


class TimedOut(BaseException):
    """As packages have it that limit the time of a call."""


def leave(words: str) -> NoReturn:
    """End as a command line does, as a task of asyncio, or as a call whose time is over."""
    raise ENDING[-1](words)


def class_of_error() -> str:
    """Return the class that an operator sees."""
    return ENDING[-1].__name__ if ENDING[-1] in EXITS else "NotAnExceptionError"


def error() -> str:
    """Return the end of a reason that an operator sees, without the code's own words."""
    name = ENDING[-1].__name__
    return name if ENDING[-1] in EXITS else f"NotAnExceptionError: {name}"


@dataclass(frozen=True)
class Report:
    month: str


@task("/tasks/tests/report", queue="default", max_attempts=2)
def report(clients: Clients, args: Report) -> None:
    DONE[args.month] += 1
    if args.month == "13":
        leave("no such month")


REPORTS = Lane("test-reports", order=True)


@unique("test-exits", while_running=False, max_attempts=2)
def bind(clients: Clients, year: str, calls: Sequence[Call[Report]]) -> None:
    DONE[year] += 1
    leave("no such year")


def write_off(clients: Clients, args: Report, reason: str) -> None:
    DONE["written off"] += 1
    if DONE["written off"] < 3:
        leave("no pen")


@task("/tasks/tests/lost-report", queue="default", max_attempts=2)
def lose(clients: Clients, args: Report) -> None:
    raise Reject("it is lost")


LOST = replace(lose, on_give_up=write_off)


@fork_join("test-exits", queue="fork-join", period_s=1)
def file(clients: Clients, batch: Batch, reports: Sequence[Report]) -> None:
    if any(report.month == "13" for report in reports):
        leave("no such month")
    DONE.update(report.month for report in reports)


def close() -> str:
    DONE["left"] += 1
    leave("no such month")


@flow("test-exits", retries=RetryPolicy(attempts=3))
def close_year(step: Steps, kind: str) -> str:
    try:
        return str(getattr(step, kind)("close", close))
    except StepFailedError as error:
        return error.reason


@contextmanager
def open_reports(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
    def act(item: Item) -> None:
        DONE[str(item.value)] += 1
        if item.value == 1:
            leave("2")

    yield act


REPORT_ALL = Job("report-all", "fan-out", Walk, items_of, side_effect=open_reports, page_size=3)


def note_all(clients: Clients, args: Walk, items: list[Item]) -> list[None]:
    DONE.update(str(item.value) for item in items)
    if any(item.value == 1 for item in items):
        leave("2")
    return [None] * len(items)


NOTE_ALL = Job("note-all", "fan-out", Walk, items_of, apply=note_all, page_size=3)


@pytest.fixture(params=[*EXITS, TimedOut])
def world(services: Services, request: pytest.FixtureRequest) -> Iterator[World]:
    ENDING[:] = [request.param]
    world = World(
        services,
        jobs=[REPORT_ALL, NOTE_ALL],
        tasks=[report, LOST],
        lanes=[REPORTS, bind],
        fork_joins=[file],
        flows=[close_year],
    )
    DONE.clear()
    with world.clients.context():
        yield world


@one_emulator
def test_a_task_that_exits_is_dead_after_its_attempts(world: World) -> None:
    report.enqueue(world.clients, Report("13"))
    world.settle()
    [dead] = DeadTask.query().fetch()
    assert (DONE["13"], dead.error) == (2, class_of_error())


@one_emulator
def test_a_task_that_exits_lets_its_lane_go_on(world: World) -> None:
    for month in ("13", "1"):
        report.enqueue(world.clients, Report(month), lane=REPORTS("all"))
    world.settle()
    assert DONE == {"13": 2, "1": 1}
    assert f"{error()}: no such month" in DeadTask.query().get().reason


@one_emulator
def test_calls_whose_run_exits_are_dead_with_its_words(world: World) -> None:
    bind.call(world.clients, "2030", Report("1"))
    world.settle()
    [dead] = DeadTask.query().fetch()
    assert (DONE["2030"], dead.error) == (2, class_of_error())
    assert dead.reason.startswith(f"gave up after 2 failures: {error()}: no such year\n")


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


@one_emulator
@pytest.mark.parametrize("lane", [None, REPORTS("all")], ids=["alone", "lane"])
def test_a_handler_that_exits_is_called_again(world: World, lane: LaneKey | None) -> None:
    LOST.enqueue(world.clients, Report("12"), lane=lane)
    report.enqueue(world.clients, Report("1"), lane=lane)
    world.settle()
    assert DONE == {"written off": 3, "1": 1}


@one_emulator
def test_an_item_that_exits_is_parked_and_lets_the_others_be_folded(world: World) -> None:
    for month in ("12", "13", "1"):
        file.insert(world.clients, "2030", Report(month))
    world.settle()
    assert (DONE, file.depth("2030").parked) == ({"12": 1, "1": 1}, [Report("13")])


@one_emulator
@pytest.mark.parametrize("kind", ["outside", "commit"])
def test_a_step_that_exits_fails_as_often_as_it_may(world: World, kind: str) -> None:
    close_year.start(world.clients, "2030", kind)
    world.settle(patience_s=60)
    state = close_year.state("2030")
    assert (state.state, state.result) == ("succeeded", f"{error()}: no such month")
    assert DONE["left"] == 3
