"""The deadline of a delivery: declared with the task, sent with each of its tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.operations import replay_dead_task
from rollforward.outbox.entities import OutboxTask
from rollforward.outbox.sweep import sweep
from rollforward.runtime import Clients, open_cloud_tasks
from rollforward.tasks import Reject, Task, UrlTarget
from rollforward.tasks.cloud_tasks import AppEngineTarget, CloudTaskQueue
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.declaration import task
from rollforward.testing.services import ACCOUNT, BASE_URL, LOCATION, PROJECT
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import Remind, one_emulator, queued, remind

pytestmark = pytest.mark.fast


@task("/tasks/tests/render", queue="default", deadline_s=1_800)
def render(clients: Clients, args: Remind) -> None:
    """Never work: these tests look at what is sent."""
    raise Reject("it can never work")


@pytest.fixture
def rendering(services: Services) -> World:
    """A world whose app delivers the task, and whose clients know it."""
    world = World(services, tasks=[render, remind])
    world.clients = replace(world.clients, task_paths=world.registry.tasks)
    return world


def deadlines(world: World) -> list[float]:
    """Return the deadlines of the tasks in the queues, in seconds."""
    return [sent.dispatch_deadline.total_seconds() for sent in queued(world)]


@pytest.mark.parametrize("deadline_s", [14, 0, -1, 1_801])
def test_a_deadline_out_of_the_service_s_bounds_is_refused_at_the_declaration(
    deadline_s: int,
) -> None:
    """Cloud Tasks would refuse each task of it."""
    with pytest.raises(ValueError, match=r"deadline_s must be 15 to 1800 seconds, got"):
        task(queue="default", deadline_s=deadline_s)


@one_emulator
@pytest.mark.parametrize(
    "target", [UrlTarget(BASE_URL, ACCOUNT, BASE_URL), AppEngineTarget()], ids=["url", "appengine"]
)
def test_each_way_of_enqueuing_sends_the_deadline(
    rendering: World, target: UrlTarget | AppEngineTarget
) -> None:
    """Alone, many at once, and with a transaction; a task without one has the service's default."""
    client = open_cloud_tasks(emulator=rendering.services.cloud_tasks.grpc_address)
    queue = CloudTaskQueue(client, PROJECT, LOCATION, target)
    clients = replace(rendering.clients, tasks=queue)

    render.enqueue(clients, Remind("alone"))
    render.enqueue_many(clients, [Remind("one"), Remind("two")])
    with rendering.context():
        transact(lambda: outbox.enqueue(clients, render, Remind("committed")))
    assert deadlines(rendering) == [1_800] * 4

    rendering.engine.reset()
    remind.enqueue(clients, Remind("as usual"))
    assert deadlines(rendering) == [600]


@one_emulator
def test_a_row_that_was_stored_without_a_deadline_gets_the_declared_one(rendering: World) -> None:
    """Another version of the code stored no deadline; its row is relayed by this one."""
    with rendering.context():
        transact(lambda: outbox.enqueue(_mute(rendering), render, Remind("old")))
        [row] = OutboxTask.query().fetch()
        row.deadline_s = None
        row.put()
        rendering.clock.sleep(60)
        assert sweep(rendering.clients).created == 1

    assert deadlines(rendering) == [1_800]


@one_emulator
def test_a_replayed_task_has_the_deadline_that_is_declared_now(rendering: World) -> None:
    """A task that died of its deadline is replayed with the longer one that was deployed since."""
    render.enqueue(rendering.clients, Remind("p1"))
    rendering.settle()
    longer: dict[str, Task[Remind]] = {render.path: replace(render, deadline_s=900)}

    with rendering.context():
        [dead] = DeadTask.query().fetch()
        replay_dead_task(replace(rendering.clients, task_paths=longer), dead.key.id())

    assert deadlines(rendering) == [900]


class _NoRelay:
    """A process that dies before it relays."""

    def send(self, clients: Clients, rows: object) -> None:
        """Relay nothing."""

    look = send


def _mute(world: World) -> Clients:
    return replace(world.clients, relay=_NoRelay())


@one_emulator
def test_the_queue_gives_each_attempt_the_declared_deadline(rendering: World) -> None:
    """The emulator ends an attempt when the service would."""
    render.enqueue(rendering.clients, Remind("slow"))
    [due] = rendering.engine.due()

    attempt = rendering.engine.begin_attempt(due.task_name)

    assert attempt.deadline_s == 1_800
