"""Keys and ids that are members of an enumeration: the same as the texts that these stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import pytest

from rollforward.batches import TaskBatch
from rollforward.counters import Counter
from rollforward.flows import Steps
from rollforward.fork_join import Batch, fork_join
from rollforward.lanes import Lane
from rollforward.runtime import Clients
from rollforward.runtime.topics import version
from rollforward.schedules import UserSchedules
from rollforward.schedules.entities import ScheduleRow
from rollforward.tasks import task
from tests.infra.world import Services, World
from tests.rollforward.flows.probe import CODE, probe
from tests.rollforward.flows.shop import mail
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


class Plan(str, Enum):  # noqa: UP042  Its members are printed by their names, as Python does.
    PRO = "pro"


class Wait(str, Enum):  # noqa: UP042
    PAID = "paid"
    DONE = "done"


@dataclass(frozen=True)
class Visit:
    pages: int


VISITS: list[tuple[str, int]] = []


@fork_join("test-visits-by-plan", queue="fork-join", period_s=60)
def count_visits(clients: Clients, batch: Batch, visits: Sequence[Visit]) -> None:
    VISITS.append((batch.key, sum(visit.pages for visit in visits)))


@task("/tasks/tests/remind-plan", queue="default")
def remind(clients: Clients, plan: str) -> None: ...


EXACT = Counter("test-exact-plans", queue="fork-join")
GATHERED = Counter("test-gathered-plans", "gathered", queue="fork-join", period_s=60)
REMINDERS = UserSchedules("test-plan-reminders", remind)
REMINDED = TaskBatch("test-reminded-plans", members=[remind])
BY_PLAN = Lane("test-by-plan")


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    VISITS.clear()
    world = World(
        services,
        counters=[EXACT, GATHERED],
        fork_joins=[count_visits],
        schedules=[REMINDERS],
        batches=[REMINDED],
        flows=[probe],
        tasks=[mail],
    )
    with world.clients.context():
        yield world


@one_emulator
@pytest.mark.parametrize("counter", [EXACT, GATHERED], ids=lambda counter: counter.mode)
def test_a_counter_has_one_total_for_a_member_and_its_text(world: World, counter: Counter) -> None:
    counter.increment(world.clients, Plan.PRO)
    counter.increment_many(world.clients, {"pro": 1, "free": 1})
    world.settle()
    totals = counter.totals(world.clients, [Plan.PRO, "free"])
    assert {key: total.value for key, total in totals.items()} == {"pro": 2, "free": 1}
    assert counter.total(world.clients, Plan.PRO, max_age_s=60).value == 2


@one_emulator
def test_items_of_a_member_and_of_its_text_are_one_batch(world: World) -> None:
    count_visits.insert(world.clients, Plan.PRO, Visit(1))
    count_visits.insert(world.clients, "pro", Visit(2))
    count_visits.insert_batch(world.clients, Plan.PRO, [Visit(4)])
    assert count_visits.depth(Plan.PRO).waiting == 3
    world.settle()
    assert VISITS == [("pro", 7)]


@one_emulator
def test_a_member_and_its_text_are_one_topic(world: World) -> None:
    """A page has the text: its token is JSON."""
    world.clients.publish("pro")
    before = version(world.clients.cache, "pro")
    world.clients.publish(Plan.PRO)
    assert version(world.clients.cache, "pro") != before


@one_emulator
def test_a_number_is_a_topic_as_its_text(world: World) -> None:
    """Such as the id of a row: an error after the commit would repeat what has published it."""
    before = version(world.clients.cache, "42")
    world.clients.publish(42)  # type: ignore[arg-type]
    assert version(world.clients.cache, "42") != before


def test_a_member_and_its_text_are_one_key_of_a_lane() -> None:
    assert BY_PLAN(Plan.PRO) == BY_PLAN("pro")


@one_emulator
def test_a_step_whose_name_is_a_member_ends(world: World) -> None:
    """Of each kind, also a batch, whose end names the step."""

    def code(step: Steps) -> str:
        members = step.batch(Plan.PRO, [(mail, mail.bind("o1", 1))]).members
        event = step.wait_for(Wait.PAID)
        return f"{members} {event.payload} {step.outside(Wait.DONE, lambda: 'done')}"

    CODE.run = code
    probe.start(world.clients, "f1")
    probe.signal(world.clients, "f1", Wait.PAID, "cash")
    world.settle()
    assert probe.state("f1").result == "1 cash done"


@one_emulator
def test_what_was_made_under_a_member_is_found_by_its_text(world: World) -> None:
    clients = world.clients
    REMINDED.populate(clients, Plan.PRO, [(remind, remind.bind("pro"))], seal=True)
    assert REMINDED.progress("pro").members == 1
    assert probe.start(clients, Plan.PRO)
    assert not probe.start(clients, "pro")
    REMINDERS.put(clients, Plan.PRO, "0 8 * * *", remind.bind("pro"))
    REMINDERS.remove("pro")
    assert ScheduleRow.query().fetch() == []
