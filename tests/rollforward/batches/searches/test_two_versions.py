"""Batches while two versions of the app serve side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from rollforward.batches import TaskBatch
from rollforward.batches.callbacks import path_of
from rollforward.batches.entities import BatchState, state_key
from rollforward.fork_join.entities import WorkPack
from rollforward.tasks import Task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.errors import UnknownTaskError
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    TREES,
    Branch,
    Note,
    branch,
    deliver_all,
    deliver_next,
    note,
    notes,
    tell,
    told,
)


def serve_without(world: World, *removed: Task[object]) -> None:
    """Let a version of the app serve that does not know some tasks; without any, the new one."""
    known = getattr(world, "all_tasks", None) or dict(world.registry.tasks)
    world.all_tasks = known  # type: ignore[attr-defined]
    tasks = {path: task for path, task in known.items() if path not in {t.path for t in removed}}
    world.registry.tasks = tasks
    object.__setattr__(world.clients, "task_paths", frozenset(tasks))


def callbacks_of(batches: TaskBatch) -> list[Task[Any]]:
    return [task for task in batches.tasks if task.path == path_of(batches.name)]


def dead_paths(world: World) -> list[str]:
    with world.context():
        return [dead.path for dead in DeadTask.query().fetch()]


def deliver_each(world: World, queues: Iterable[str]) -> None:
    """Deliver what is due in some queues, and then what is due in a second."""
    for queue in queues:
        deliver_all(world, queue)
        world.clock.sleep(1)


def test_a_version_without_the_callback_completes_a_batch(world: World) -> None:
    """F3: its fold counts the last end; the callback waits for the version that has it."""
    serve_without(world)
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "b", "c"), seal=True)
    deliver_each(world, ("default", "fan-out"))
    serve_without(world, tell, *callbacks_of(NOTES))
    deliver_each(world, ("fork-join",))

    with world.context():
        assert NOTES.progress("b").is_complete
    deliver_next(world, "default")
    assert not dead_paths(world)
    serve_without(world)
    world.settle()
    with world.context():
        assert told(NOTES, "b")[0]["done"] == 3
    assert RAN == {"b/a": 1, "b/b": 1, "b/c": 1}


def test_a_version_without_the_callback_cancels_what_is_nested(world: World) -> None:
    """F7: whichever version cancels, of whichever batch the nested one is."""
    serve_without(world)
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 2))], seal=True)
    deliver_next(world, "default")
    deliver_next(world, "fan-out")
    with world.context():
        TREES.cancel(world.clients, "root")
    serve_without(world, tell, *callbacks_of(TREES))
    deliver_each(world, ("default",))

    with world.context():
        [child] = TREES.nested("root")
        assert child.outcome == "cancelled"
    assert not dead_paths(world)


@pytest.mark.parametrize("generation", [1, 2])
def test_a_nested_batch_whose_end_was_parked_ends_its_member_again(
    world: World, generation: int
) -> None:
    """F3: when the member is delivered once more, which the sweep sees to."""
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 1, bad=1))], seal=True)
    if generation == 2:
        world.settle()
        with world.context():
            assert TREES.run_again(world.clients, "root") == 1
    while not has_nested_ended(world, generation):
        if due := world.engine.due():
            world.deliver(due[0].task_name)
        else:
            world.clock.sleep(0.1)
    lose_ends(world)
    world.settle()
    with world.context():
        assert not TREES.progress("root").is_complete
    world.clock.sleep(1801)
    world.sweep()
    world.settle()

    with world.context():
        assert len(told(TREES, "root")) == generation
        assert TREES.progress("root").failed == 1


def has_nested_ended(world: World, generation: int) -> bool:
    """Return whether a nested batch has ended, and its end is not counted yet."""
    with world.context():
        states = [state for state in BatchState.query().fetch() if state.parent]
        is_waiting = state_key("trees:root").get().state == "running"
    return is_waiting and [
        state.parent_generation for state in states if state.state == "completed"
    ] == [generation]


def lose_ends(world: World) -> None:
    """Take the ends that wait out of their queue, as twenty failures do."""
    with world.context():
        packs = WorkPack.query().fetch()
        assert packs
        for pack in packs:
            pack.key.delete()


def test_a_callback_that_no_registry_has_is_refused_with_the_first_members(world: World) -> None:
    """Nobody would call it back: that is said at once, and not by the fold of the last end."""
    lost = Task(tell.path.replace("tell", "lost"), "default", tell.args, tell.work)
    batches = TaskBatch("notes", members=[note], on_complete=lost)
    serve_without(world)
    with world.context():
        with pytest.raises(UnknownTaskError, match="/tasks/lost is in no registry"):
            batches.populate(world.clients, "b", [(note, Note("a"))])
        assert state_key("notes:b").get() is None
