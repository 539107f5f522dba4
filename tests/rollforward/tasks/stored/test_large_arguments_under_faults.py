"""Large arguments with a fault at every remote call: each task works on all of its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.tasks.stored import arguments
from rollforward.tasks.stored.names import MAX_BODY_BYTES, MAX_TASK_BYTES
from rollforward.testing.injection import KINDS, OVERLAP
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.world import Services, World
from tests.rollforward.tasks.stored.films import FilmRun, digest, film, frames

SIZES = {"directly": MAX_TASK_BYTES + 1, "committed": MAX_BODY_BYTES + 1}


@dataclass
class FilmScenario:
    """Enqueue a task with large arguments, alone or in a transaction, and let it run."""

    world: World
    way: str

    def begin(self, tag: str) -> None:
        call = film.bind(tag, frames(SIZES[self.way]))
        if self.way == "directly":
            film.enqueue(self.world.clients, call, name=(tag,))
        else:
            transact(lambda: outbox.enqueue(self.world.clients, film, call, name=(tag,)))

    def is_done(self, tag: str) -> bool:
        return FilmRun.get_by_id(tag) is not None

    def check(self, tag: str, fault: str) -> None:
        assert FilmRun.get_by_id(tag).digest == digest(frames(SIZES[self.way])), fault


@pytest.fixture(params=SIZES)
def scenario(request: pytest.FixtureRequest, services: Services) -> FilmScenario:
    return FilmScenario(World(services, tasks=[film]), request.param)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_has_all_its_arguments_with_a_fault_at_any_call(
    scenario: FilmScenario, kind: str
) -> None:
    """H7: and no chunk is left when it is done."""
    assert Explorer(scenario.world, scenario).explore([kind])


def test_a_task_has_all_its_arguments_when_deliveries_overlap_at_any_call(
    scenario: FilmScenario,
) -> None:
    """H7: a delivery that is overtaken finds that the task is done, and is no dead task."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP], at_most=ALL)


def test_a_task_has_all_its_arguments_in_any_order(scenario: FilmScenario) -> None:
    """H7: each task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(1)
    Explorer(scenario.world, scenario).play()


def _created_before_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "batched", lambda rows, size: [])


def _never_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_finish", lambda clients, stored_id: None)


@pytest.mark.parametrize("plant", [_created_before_its_rows, _never_finished])
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = FilmScenario(World(services, tasks=[film]), "directly")
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(at_most=ALL)
