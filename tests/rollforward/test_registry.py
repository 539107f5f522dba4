"""The registry: what an app is made of, in one list, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pipelines.registry import APP
from rollforward.materialized_views import ViewGroup, ViewMaintenance
from rollforward.registry import PATTERNS, Registry
from rollforward.runtime import Clients
from rollforward.tasks import Task
from rollforward.tasks.errors import UnknownQueueError
from rollforward.tasks.pattern import Gauge, Pattern
from tests.rollforward.fork_join.tally_queue import TALLIES
from tests.rollforward.outbox.order_tasks import TASKS

pytestmark = pytest.mark.fast


@dataclass(frozen=True)
class Chore:
    name: str


@dataclass(frozen=True)
class Nothing:
    pass


class Chores(Pattern[Chore]):
    """A pattern of somebody else's."""

    name = "chores"
    takes = Chore

    def expand(self, part: Chore) -> Iterable[object]:
        return [TALLIES] if part.name == "tally" else []

    def tasks(self, parts: Sequence[Chore]) -> Iterable[Task[Any]]:
        return [Task(f"/tasks/chores/{p.name}", "chores", Nothing, print) for p in parts]

    def sweep(
        self, clients: Clients, parts: Sequence[Chore], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        return {"swept": len(parts)}

    def gauges(self, clients: Clients, parts: Sequence[Chore]) -> Sequence[Gauge]:
        return [Gauge("chores_open", "Chores.", len(parts))]


def test_parts_come_in_any_order() -> None:
    """What can be delivered does not follow from the order of the list."""
    one, other = Registry(*APP.declared), Registry(*reversed(APP.declared))

    assert set(one.tasks) == set(other.tasks)
    assert set(one.jobs) == set(other.jobs)


def test_a_part_may_be_registered_twice() -> None:
    """A group of views brings its queue and its jobs along; naming them as well does no harm."""
    group = ViewMaintenance(ViewGroup("none"))
    registry = Registry(group, group.views.fan_in, *group.jobs, group)

    assert set(registry.tasks) == set(Registry(group).tasks)


def test_a_new_pattern_needs_no_handler() -> None:
    """Its tasks, its sweep, its gauges and the parts it brings along follow from the pattern."""
    clients: Any = None
    registry = Registry(Chore("wash"), Chore("tally"), patterns=[Chores(), *PATTERNS])

    assert "/tasks/chores/wash" in registry.tasks
    assert registry.parts("fork-join") == [TALLIES]
    assert registry.sweep(clients, "chores") == {"swept": 2}
    assert [each.value for each in Chores().gauges(clients, registry.parts("chores"))] == [2]
    assert [pattern.name for pattern in registry.patterns.values() if pattern.is_swept] == [
        *("chores", "tasks", "outbox", "lanes", "continuations", "fork-join", "pull-queues"),
        *("counters", "materialized-views", "batches", "flows", "schedules", "streams"),
        "operations",
    ]


def test_what_no_pattern_takes_is_refused() -> None:
    """The error says what a registry takes."""
    with pytest.raises(
        TypeError, match=r"'nonsense' cannot be registered: .* Task, Lane, Job, ForkJoin"
    ):
        Registry("nonsense")


def test_two_tasks_with_one_path_are_refused() -> None:
    """One of them would never be delivered."""
    twin = Task(TASKS[0].path, "default", Nothing, print)
    with pytest.raises(TypeError, match=f"{TASKS[0].path} is declared twice"):
        Registry(*TASKS, twin)


def test_a_task_whose_queue_does_not_exist_is_named() -> None:
    """The error says what to do; it is no dead task an hour later."""
    registry = Registry(Task("/tasks/lost", "nosuch", Nothing, print))

    with pytest.raises(
        UnknownQueueError, match=r"/tasks/lost goes to the queue 'nosuch'.*add `- name: nosuch`"
    ):
        registry.check_queues({"default", "outbox", "fork-join"})
    Registry().check_queues({"default", "outbox", "fork-join"})


def test_the_path_of_the_replay_is_taken() -> None:
    """An app's own task there would never be delivered, or dead tasks never replayed."""
    with pytest.raises(TypeError, match="/tasks/dead/replay is declared twice"):
        Registry(Task("/tasks/dead/replay", "default", Nothing, print))
