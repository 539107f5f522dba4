"""Metrics of tasks that wait in lanes: each run counts under the path of its own task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollforward.tasks.errors import OtherVersionError, Reject, Retry, Unavailable
from rollforward.telemetry.metrics import Outcome
from rollforward.testing.world import apart
from tests.infra.world import Services, World
from tests.rollforward.flask.endpoints.test_delivery_metrics import samples, total
from tests.rollforward.lanes.office import DESK, IN_ORDER, LANES, SHARED, send, write


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """Yield the app with the lanes of an office, and the context of a request open."""
    world = World(services, lanes=LANES, tasks=[write])
    DESK.__init__()  # type: ignore[misc]
    with world.clients.context():
        yield world


OWN = (f'task="{write.path}"', 'queue="default"')


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *((KeyError("bug"), Outcome.FAILED), (Reject("no"), Outcome.DEAD)),
        *((Retry("race"), Outcome.LOST_RACE), (Retry("later", after_s=9), Outcome.WAITING)),
        *((OtherVersionError("x"), Outcome.OTHER_VERSION), (Unavailable("x"), Outcome.UNAVAILABLE)),
    ],
)
def test_each_run_of_a_task_in_a_lane_is_counted_by_its_outcome(
    world: World, error: Exception, outcome: Outcome
) -> None:
    """The delivery that ran it counts beside it, under the lane's path."""
    left = [1]

    def fail_once(name: str) -> None:
        if name == "ada:1" and left:
            left.pop()
            raise error

    DESK.before = fail_once
    send(world.clients, SHARED, "ada", 0, 1, 2)
    world.settle()

    found = apart(lambda: samples(world))
    done = 2 if outcome is Outcome.DEAD else 3
    assert total(found, "task_deliveries_total", *OWN, 'outcome="done"') == done
    assert total(found, "task_deliveries_total", *OWN, f'outcome="{outcome.value}"') == 1
    assert total(found, "task_deliveries_total", *OWN) == done + 1
    assert total(found, "task_duration_seconds_count", *OWN) == done + 1
    assert total(found, "task_deliveries_total", f'task="/tasks/lanes/{SHARED.name}"') >= 1


def test_the_delay_of_a_task_is_its_wait_for_its_turn(world: World) -> None:
    """From when it was added; the second one waited for the first."""

    def take_long(name: str) -> None:
        world.clock.sleep(5)

    DESK.before = take_long
    send(world.clients, IN_ORDER, "ada", 0, 1)
    world.settle()

    found = apart(lambda: samples(world))
    assert total(found, "task_delay_seconds_count", *OWN) == 2
    assert total(found, "task_delay_seconds_sum", *OWN) == pytest.approx(5, abs=1)
