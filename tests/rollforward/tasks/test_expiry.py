"""Deletion of expired rows: by the sweep alone, or by tasks when there are more."""

from __future__ import annotations

from collections import Counter

import pytest

from rollforward.runtime import Clients
from rollforward.tasks import expiry
from rollforward.tasks.expiry import PAGES_PER_TASK, DeleteExpired, Expiry
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

PAGE = 3


class Rows(Expiry):
    """Expired rows of two partitions, in memory."""

    def __init__(self, **left: int) -> None:
        super().__init__("/tasks/tests/delete-expired", [], page_size=PAGE, max_tasks=3)
        self.left = Counter(left)

    def delete_page(self, clients: Clients, partition: str) -> int:
        deleted = min(self.page_size, self.left[partition])
        self.left[partition] -= deleted
        return deleted


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    monkeypatch.setattr(expiry, "PARTITIONS", "ab")
    return Rows(a=2 * PAGE, b=2 * PAGE)


@pytest.fixture
def world(services: Services, rows: Rows) -> World:
    return World(services, tasks=[rows.task])


@one_emulator
def test_a_full_page_empties_all_partitions_in_each_minute(world: World, rows: Rows) -> None:
    """The tasks of one minute's sweep do not stand for those of the next one."""
    for _ in range(2):
        rows.left.update(a=2 * PAGE, b=2 * PAGE)
        with world.context():
            assert rows.sweep(world.clients) == PAGE
        world.settle()
        assert rows.left.total() == 0
        world.clock.sleep(60)


@one_emulator
def test_a_page_that_is_not_full_starts_no_task(world: World, rows: Rows) -> None:
    """An idle sweep costs what it reads, and nothing else."""
    rows.left = Counter(a=PAGE - 1, b=PAGE - 1)

    with world.context():
        assert rows.sweep(world.clients) == PAGE - 1

    assert world.engine.due() == []


@one_emulator
def test_a_chain_of_tasks_ends_and_leaves_the_rest_to_the_next_sweep(
    world: World, rows: Rows
) -> None:
    """Three tasks of ten pages each, and no fourth one."""
    rows.left = Counter(a=1000 * PAGE)

    with world.context():
        rows.task.enqueue(world.clients, DeleteExpired("a", "now"))
    world.settle()

    assert rows.left["a"] == (1000 - 3 * PAGES_PER_TASK) * PAGE
