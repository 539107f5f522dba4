"""Tasks that a version did not know once, and tasks that are given up during an outage."""

from __future__ import annotations

import datetime

import pytest

from rollforward.lanes import Lane
from rollforward.lanes.gathered import running
from rollforward.lanes.rows.entities import LaneState, LaneTask, id_at, place_of, task_key
from rollforward.runtime import naive_utc
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Retry, Unavailable
from tests.infra.world import Services, World
from tests.rollforward.lanes.gathered import mailroom
from tests.rollforward.lanes.gathered.mailroom import MailRun, Note, digest
from tests.rollforward.lanes.office import DESK, IN_ORDER, PARCEL, SHARED, write

NOT_ITS_FAULT = [Unavailable("the printer is away"), Retry("not yet", after_s=5)]


@pytest.mark.parametrize("error", NOT_ITS_FAULT, ids=["unavailable", "waits"])
@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=["order", "no order"])
def test_a_task_that_this_version_knows_is_not_given_up_as_unknown(
    world: World, lane: Lane, error: Exception
) -> None:
    """K7: another version did not know it, long ago; since then its key was paused."""
    left = [error]

    def fail_once(name: str) -> None:
        if left:
            raise left.pop()

    DESK.before = fail_once
    now_utc = world.clients.clock.now()
    row_id = id_at(lane("ada").id, place_of(now_utc), "c0ffee")
    LaneTask(
        key=task_key(row_id),
        place=row_id,
        path=write.path,
        body=write.message(write.bind("ada", "1")).body.decode(),
        added=naive_utc(now_utc),
        unknown_since=naive_utc(now_utc - datetime.timedelta(hours=2)),
    ).put()
    lane("ada").resume(world.clients)
    world.settle()
    assert DESK.written == ["ada:1"]
    assert open_dead_tasks().fetch() == []


@pytest.mark.parametrize("error", NOT_ITS_FAULT, ids=["unavailable", "waits"])
def test_a_handler_that_an_outage_keeps_from_its_work_is_called_after_it(
    world: World, error: Exception
) -> None:
    """K7, H3: what may fail twice is given up, however long the outage lasts."""
    left = [error] * 10

    def fail(name: str) -> None:
        if name == "return" and left:
            raise left.pop()

    DESK.before = fail
    PARCEL.enqueue(world.clients, PARCEL.bind("ada"), lane=SHARED("ada"))
    world.settle()
    assert DESK.written == ["return"]
    assert open_dead_tasks().fetch() == []
    assert LaneTask.query().fetch() == []


@pytest.fixture
def gathering(services: Services) -> World:
    """The app with the gathering lanes."""
    world = World(services, lanes=mailroom.LANES)
    mailroom.DESK.__init__(clock=world.clock)  # type: ignore[misc]
    return world


def test_a_window_that_this_version_can_read_is_not_given_up_as_unknown(gathering: World) -> None:
    """R2: it failed once, and then a service is unavailable an hour after the deployment."""
    world, clients = gathering, gathering.clients
    errors: list[Exception] = [Unavailable("the printer is away"), ValueError("bug")]

    def fail(run: MailRun) -> None:
        if errors:
            raise errors.pop()

    mailroom.DESK.before = fail
    with clients.context():
        digest.call(clients, "ada", Note("0"))
        [row] = LaneTask.query().fetch()
        body, row.body = row.body, '{"bird": 1}'
        row.put()
        world.clock.sleep(100)
        world.deliver_due()
        row.body = body
        row.put()
        for seconds in (20, 7_200):
            world.clock.sleep(seconds)
            world.deliver_due()
        world.settle()
        assert mailroom.DESK.texts() == [("0",)]
        assert open_dead_tasks().fetch() == []


def test_a_run_that_has_not_begun_has_not_failed(
    gathering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, H3: Datastore does not answer before the function is called."""
    world, clients = gathering, gathering.clients

    def away(holder: object) -> bool:
        raise running.TRANSIENT[-1]("Datastore is away", cause=None)

    with clients.context():
        digest.call(clients, "ada", Note("0"))
        world.clock.sleep(100)
        with monkeypatch.context() as outage:
            outage.setattr(running.Holder, "can_start", away)
            world.deliver_due()
        [state] = LaneState.query().fetch()
        assert state.gathered["calls"]
        assert "failures" not in state.gathered
        world.settle()
        assert mailroom.DESK.texts() == [("0",)]
