"""Planned waits under faults: the task runs at its time, as itself, and exists once."""

from __future__ import annotations

import datetime
import random

import pytest
from flask import request
from google.cloud import ndb

from rollforward.runtime import Clients
from rollforward.tasks import Retry, task, waits
from rollforward.tasks.attempts import current_task
from rollforward.testing.injection import KINDS, OVERLAP
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.world import Services, World

WAIT_S = 30.0
# Names under which Cloud Tasks has delivered the task of a tag.
SEEN: dict[str, set[str]] = {}


class WaitRun(ndb.Model):
    """That a task has run after its wait: a row for each task."""

    tag = ndb.TextProperty()


class WaitStart(ndb.Model):
    """When the task of a tag was enqueued."""

    at = ndb.DateTimeProperty(indexed=False)


@task("/tasks/tests/courier", queue="default")
def call_courier(clients: Clients, tag: str) -> None:
    """Wait until the courier is in, then note that it ran."""
    SEEN.setdefault(tag, set()).add(request.headers["X-CloudTasks-TaskName"])
    start = WaitStart.get_by_id(tag)
    in_at = start.at + datetime.timedelta(seconds=WAIT_S)
    left_s = (in_at - clients.clock.now().replace(tzinfo=None)).total_seconds()
    if left_s > 0.5:
        raise Retry("the courier is out", after_s=left_s)
    WaitRun(id=current_task(), tag=tag).put()


class WaitScenario:
    """Enqueue a task that has to wait, and see it run."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, tag: str) -> None:
        with self.world.plan.unwatched():
            SEEN[tag] = set()
            at = self.world.clock.now().replace(tzinfo=None)
            (WaitStart.get_by_id(tag) or WaitStart(id=tag, at=at)).put()
        call_courier.enqueue(self.world.clients, call_courier.bind(tag), name=(tag,))

    def is_done(self, tag: str) -> bool:
        return bool(self.runs(tag))

    def runs(self, tag: str) -> list[WaitRun]:
        return [run for run in WaitRun.query().fetch() if run.tag == tag]

    def check(self, tag: str, fault: str) -> None:
        runs = self.runs(tag)
        assert len(runs) == 1, fault
        # One task before the wait and one behind it, however often their deliveries were repeated.
        assert len(SEEN[tag]) == 2, fault
        ndb.delete_multi([run.key for run in runs])


@pytest.fixture
def scenario(services: Services) -> WaitScenario:
    return WaitScenario(World(services, tasks=[call_courier]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_makes_one_task_with_a_fault_at_any_call(scenario: WaitScenario, kind: str) -> None:
    """H1: it is the same task all the while, and comes again at its time."""
    assert Explorer(scenario.world, scenario).explore([kind])


def test_a_wait_makes_one_task_when_deliveries_overlap_at_any_call(scenario: WaitScenario) -> None:
    """H1: both deliveries create the next task under one name."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP], at_most=ALL)


def test_a_wait_makes_one_task_in_any_order(scenario: WaitScenario) -> None:
    """H1: each task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(1)
    Explorer(scenario.world, scenario).play()


def test_the_faults_bite(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """With names that are new each time, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = WaitScenario(World(services, tasks=[call_courier]))
    numbers = iter(range(10**6))
    monkeypatch.setattr(waits, "_next_name", lambda name, number: f"{name}-w{next(numbers)}")

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(at_most=ALL)
