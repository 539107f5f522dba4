"""Runs while two versions of the app serve side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

import main
from pipelines.registry import APP
from rollforward import continuations
from rollforward.continuations import Job
from rollforward.continuations.entities import FINISHED
from rollforward.continuations.progress import progress
from rollforward.registry import Registry
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.continuations.walk_jobs import APPLY, ledger, put_items


@dataclass(frozen=True)
class NamedWalk:
    """The arguments of the next version, which calls a field otherwise."""

    name: str
    group: str = "g"

    @property
    def run_id(self) -> str:
        return self.name


@dataclass(frozen=True)
class DeepWalk:
    """The arguments of the next version, with one more field."""

    run_id: str
    group: str = "g"
    depth: int = 1


NAMED, DEEP = replace(APPLY, args=NamedWalk), replace(APPLY, args=DeepWalk)


def deploy(world: World, job: Job[Any, Any]) -> None:
    """Let another version of the code answer from now on."""
    world.app = main.create_app(world.settings, world.clients, Registry(*APP.declared, job))
    world.app.testing = False


@one_emulator
def test_a_run_whose_arguments_only_the_next_version_can_read_waits_for_it(world: World) -> None:
    """A1: this version works on no page of it, and none is dead."""
    names = put_items(world, 5)
    with world.context():
        continuations.start(world.clients, NAMED, NamedWalk("run"), run_id="run")
    world.deliver_due()
    world.clock.sleep(300)
    world.sweep()
    world.deliver_due()
    untouched = ledger(world, "run")

    deploy(world, NAMED)
    world.settle()

    assert untouched == Counter()
    assert_run_once(world, names)


@pytest.mark.parametrize("first", [APPLY, DEEP], ids=["old", "new"])
@one_emulator
def test_versions_take_turns_at_the_pages_of_a_run(world: World, first: Job[Any, Any]) -> None:
    """A1, A3: whichever has started it, when a field with a default came."""
    names = put_items(world, 9)
    with world.context():
        continuations.start(world.clients, first, first.args("run"), run_id="run")
    turns = 0
    while due := world.engine.due():
        deploy(world, (APPLY, DEEP)[turns % 2])
        world.deliver(due[0].task_name)
        turns += 1

    assert turns > 4
    assert_run_once(world, names)


def assert_run_once(world: World, names: list[str]) -> None:
    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert progress("run").state == FINISHED
        assert DeadTask.query().fetch() == []
