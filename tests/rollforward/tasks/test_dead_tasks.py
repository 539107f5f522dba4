"""Dead tasks: parked once, replayed once, whatever fails on the way."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

import main
from pipelines.registry import APP
from rollforward.registry import Registry
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import Task, dead_tasks, hashed_name
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import ReplayDeadTask, dead_letter, replay_task
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast

PATH = "/tasks/tests/act"


@dataclass(frozen=True)
class Act:
    """Arguments of the task that was parked."""

    tag: str


@pytest.fixture
def done() -> Counter[str]:
    """How often the replayed work was done."""
    return Counter()


@pytest.fixture
def world(services: Services, done: Counter[str]) -> World:
    """A world whose app knows one more task, and how to replay it."""
    world = World(services)

    def act(clients: Clients, args: Act) -> None:
        done[args.tag] += 1

    registry = Registry(*APP.declared, Task(PATH, "default", Act, act))
    world.app = main.create_app(world.settings, world.clients, registry)
    return world


REPLAY = replay_task({})


def park_one(world: World, tag: str = "x", **changes: Any) -> str:
    """Park a task and return its dead task's id."""
    parked = {
        "path": PATH,
        "queue": "default",
        "task_name": f"t-{tag}",
        "body": b'{"tag": "%s"}' % tag.encode(),
        "reason": "no such party",
        **changes,
    }
    with world.context():
        return dead_letter(world.clients, **parked)


def test_a_later_task_of_a_name_takes_no_open_dead_tasks_place(
    world: World, done: Counter[str]
) -> None:
    """H6: Cloud Tasks frees a name a day after its task; each delivery counts in its own row."""
    first_id = park_one(world, "x")
    later_id = park_one(world, "x", body=b'{"tag": "y"}')
    assert [park_one(world, "x"), park_one(world, "x", body=b'{"tag": "y"}')] == [
        first_id,
        later_id,
    ]
    assert [row(world, dead_id).count for dead_id in (first_id, later_id)] == [2, 2]

    ask_for_replay(world, first_id)
    assert park_one(world, "x", body=b'{"tag": "y"}') == later_id
    assert row(world, first_id).resolved
    ask_for_replay(world, later_id)
    assert done == {"x": 1, "y": 1}


def test_a_dead_task_of_an_earlier_version_is_counted_again(world: World) -> None:
    """H6: its row does not say of which task it is."""
    dead_id = park_one(world, "x")
    with world.context():
        dead = DeadTask.get_by_id(dead_id)
        dead.digest = None
        dead.put()
    assert park_one(world, "x", body=b'{"tag": "y"}') == dead_id


def test_a_long_reason_keeps_the_error_that_ends_it(world: World) -> None:
    """Tracebacks of errors that cause each other are long: the page of one had frames alone."""
    frames = '  File "a.py", line 7, in f\n    f()\n' * 1_000

    dead = row(world, park_one(world, reason=f"gave up. {frames}ValueError: no party\n"))

    assert len(dead.reason) <= dead_tasks.MAX_REASON_CHARS
    assert dead.reason.startswith("gave up. ")
    assert dead.reason.endswith("ValueError: no party\n")


def ask_for_replay(world: World, dead_id: str) -> None:
    """Create the task of a replay, as the console does, and deliver all that follows."""
    with world.context():
        REPLAY.enqueue(world.clients, ReplayDeadTask(dead_id))
    world.settle()


def row(world: World, dead_id: str) -> Any:
    with world.context():
        return DeadTask.get_by_id(dead_id)


def test_a_replay_does_the_work_once(world: World, done: Counter[str]) -> None:
    """A replayed task runs with the body it was parked with, and leaves the list.

    Its row stays for 30 days, for those who ask what became of it.
    """
    dead_id = park_one(world)

    ask_for_replay(world, dead_id)

    assert done == Counter({"x": 1})
    dead = row(world, dead_id)
    assert (dead.resolved, dead.replays) == (True, 1)
    assert dead.expires >= naive_utc(world.clock.now()) + datetime.timedelta(days=29)
    with world.context():
        assert dead_tasks.count_open() == 0


def test_a_replay_asked_for_twice_is_done_once(world: World, done: Counter[str]) -> None:
    """Two presses, or one after it was dealt with: the work is done once."""
    dead_id = park_one(world)
    with world.context():
        REPLAY.enqueue(world.clients, ReplayDeadTask(dead_id))
        REPLAY.enqueue(world.clients, ReplayDeadTask(dead_id))

    world.settle()
    ask_for_replay(world, dead_id)

    assert done == Counter({"x": 1})
    assert row(world, dead_id).replays == 1


def test_a_replay_delivered_twice_over_is_done_once(world: World, done: Counter[str]) -> None:
    """Each delivery twice, one after the other: the replay creates one task."""
    dead_id = park_one(world)
    world.doubles = True
    with world.context():
        REPLAY.enqueue(world.clients, ReplayDeadTask(dead_id))
    [due] = world.engine.due()
    world.deliver(due.task_name)

    [replayed] = world.engine.due()
    world.doubles = False
    world.settle()

    assert replayed.task_name.endswith(hashed_name("replay", dead_id, 0))
    assert done == Counter({"x": 1})


def test_a_task_parked_again_after_its_replay_can_be_replayed_again(
    world: World, done: Counter[str]
) -> None:
    """A replay's name holds its number: the second one is not taken for the first."""
    dead_id = park_one(world)
    ask_for_replay(world, dead_id)
    assert park_one(world) == dead_id
    assert not row(world, dead_id).resolved

    ask_for_replay(world, dead_id)

    assert done == Counter({"x": 2})
    assert (row(world, dead_id).count, row(world, dead_id).replays) == (2, 2)


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_replay_that_was_overtaken_leaves_open_what_was_parked_since(world: World) -> None:
    """Another delivery of it replayed the task, which failed again: that failure stays open."""
    tasks = {PATH: Task(PATH, "default", Act, lambda clients, args: None)}
    dead_id = park_one(world)

    def create(message: Any) -> bool:
        is_new = world.clients.tasks.create(message)
        dead_tasks.replay(world.clients, ReplayDeadTask(dead_id), tasks)
        dead_letter(
            world.clients, path=PATH, queue="default", task_name="t-x", body=b"{}", reason="again"
        )
        return is_new

    slow: Any = replace(world.clients, tasks=SimpleNamespace(create=create))  # type: ignore[arg-type]
    with world.context():
        dead_tasks.replay(slow, ReplayDeadTask(dead_id), tasks)

    dead = row(world, dead_id)
    assert (dead.resolved, dead.replays, dead.count) == (False, 1, 2)


def test_a_replay_of_nothing_is_parked_itself(world: World) -> None:
    """An id that nobody knows is not retried for ever, and can be found."""
    ask_for_replay(world, "0" * 40)

    with world.context():
        [dead] = DeadTask.query().fetch()
    assert dead.path == REPLAY.path
    assert "there is no dead task" in dead.reason


@pytest.mark.parametrize("path", ["/tasks/old", "/tasks/dead/replay", "//evil.example/tasks/x"])
def test_only_declared_tasks_are_replayed(world: World, done: Counter[str], path: str) -> None:
    """S11, S12: a dead task's path leads nowhere but to the registry."""
    dead_id = park_one(world, path=path)

    ask_for_replay(world, dead_id)

    assert done == Counter()
    assert not row(world, dead_id).resolved
    with world.context():
        assert dead_tasks.count_open() == 2  # It, and the replay that could not work.


def test_tasks_without_a_name_are_parked_apart(world: World) -> None:
    """Without a name nobody can tell a repetition: nothing is lost by counting it with another."""
    assert park_one(world, task_name="") != park_one(world, task_name="")


def test_the_same_name_in_two_queues_is_two_tasks(world: World) -> None:
    """A dead task's id is made of queue and name, so that none hides another."""
    assert park_one(world) != park_one(world, queue="imports")
    assert park_one(world, queue="a", task_name="bc") != park_one(world, queue="ab", task_name="c")


def test_a_body_of_any_bytes_is_kept_as_text(world: World) -> None:
    """What is no UTF-8 can still be looked at, and never stops the parking."""
    dead_id = park_one(world, body=b"\xff\x00" * 60_000)

    assert row(world, dead_id).body.startswith("\ufffd\x00")
    assert len(row(world, dead_id).body) <= 100_000


class ReplayScenario:
    """Park a task, ask for its replay, and see the work done."""

    def __init__(self, world: World, done: Counter[str]) -> None:
        self.world = world
        self.done = done
        self.ids: dict[str, str] = {}

    def begin(self, tag: str) -> None:
        if tag not in self.ids:
            with self.world.plan.unwatched():
                self.ids[tag] = dead_letter(
                    self.world.clients,
                    path=PATH,
                    queue="default",
                    task_name=tag,
                    body=b'{"tag": "%s"}' % tag.encode(),
                    reason="no",
                )
        args = ReplayDeadTask(self.ids[tag])
        REPLAY.enqueue(self.world.clients, args, name=(self.ids[tag],))

    def is_done(self, tag: str) -> bool:
        return bool(DeadTask.get_by_id(self.ids[tag]).resolved)

    def check(self, tag: str, fault: str) -> None:
        dead = DeadTask.get_by_id(self.ids[tag])
        assert (self.done[tag], dead.count, dead.replays, dead.resolved) == (1, 1, 1, True), fault


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_works_with_a_fault_at_any_call(
    world: World, done: Counter[str], kind: str
) -> None:
    """The work is done once and the row resolved once, whichever remote call breaks."""
    Explorer(world, ReplayScenario(world, done)).explore([kind])


@pytest.mark.parametrize("dead_id", ["", "x" * 1501, "字" * 501], ids=len)
def test_a_replay_of_what_can_be_no_dead_task_is_parked(world: World, dead_id: str) -> None:
    """An id that Datastore cannot hold is no failure that comes again."""
    with world.context():
        REPLAY.enqueue(world.clients, ReplayDeadTask(dead_id))
    world.settle()

    with world.context():
        [dead] = DeadTask.query().fetch()
    assert "dead_task_id must have" in dead.reason
