"""Dead letters replayed in bulk: each once, whatever breaks, is doubled or dies on the way."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

from rollforward.operations.letters import start_letters
from rollforward.pull_queues.entities import PullItem
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.console.test_letters import kill_items_here
from tests.rollforward.pull_queues.harness import WORK

pytestmark = pytest.mark.parametrize("services", ["firestore"], indirect=True)


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app has a pull queue."""
    return desk_with(services, WORK)


class LettersScenario:
    """Let items die, ask for the replay of all, and see each once in the queue."""

    COUNT = 3

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.ids: dict[str, list[str]] = {}

    def begin(self, tag: str) -> None:
        world = self.desk.world
        if tag not in self.ids:
            with world.plan.unwatched():
                ndb.delete_multi(PullItem.query().fetch(keys_only=True))  # Of plays before.
                bodies = [f"{tag}-{number}" for number in range(self.COUNT)]
                self.ids[tag] = kill_items_here(self.desk, *bodies)
        start_letters(
            *(world.clients, world.registry.jobs, "replay", "pull-queues", "work"),
            ids=self.ids[tag], run_id=f"r-{tag}",
        )  # fmt: skip

    def is_done(self, tag: str) -> bool:
        return all(row is not None and row.dead is None for row in self._rows(tag))

    def check(self, tag: str, fault: str) -> None:
        rows = self._rows(tag)
        assert [row.deliveries for row in rows] == [0] * self.COUNT, fault
        assert all(row.ready for row in rows), fault

    def _rows(self, tag: str) -> list[Any]:
        return [
            row
            for row in PullItem.query().fetch()
            if row.key.id().partition("|")[2] in self.ids[tag]
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bulk_replay_of_letters_works_with_a_fault_at_any_call(desk: Desk, kind: str) -> None:
    """None is lost, none twice in the queue."""
    Explorer(desk.world, LettersScenario(desk)).explore([kind])
