"""The sweeps, as the scheduler calls them."""

from __future__ import annotations

import pytest
from werkzeug.test import TestResponse

from rollforward.datastore.transactions import transact
from tests.handlers.conftest import app_with
from tests.infra.world import SWEEPS, Services, World
from tests.rollforward.outbox.order_tasks import STEPS, TASKS, dying, place, ran

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def home(services: Services) -> World:
    return World(services, tasks=TASKS)


def call(world: World, path: str) -> TestResponse:
    return world.app.test_client().get(path, headers=world.cron_headers())


def test_one_sweep_does_the_work_of_all(home: World) -> None:
    """B1: an app that schedules one job loses nothing, either."""
    with home.context():
        transact(lambda: place(dying(home), "o1"))
    home.clock.sleep(60)

    response = call(home, "/cron/sweep")
    home.settle(patience_s=60)

    assert response.status_code == 200
    assert response.json["outbox"]["created"] > 0
    assert set(response.json) == {path.split("/")[2] for path in SWEEPS}
    assert set(ran(home, "o1")) == set(STEPS)


@pytest.mark.parametrize("path", ["/cron/nosuch/sweep", "/cron/sweep/all"])
def test_a_pattern_without_a_sweep_is_not_found(home: World, path: str) -> None:
    """The scheduler learns that its configuration is off."""
    assert call(home, path).status_code == 404


def test_a_failed_sweep_is_told_to_the_scheduler(
    home: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeps behind it are done all the same."""
    pattern = home.registry.patterns["outbox"]

    def fail(*args: object, **options: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(pattern, "sweep", fail)

    response = call(home, "/cron/sweep")

    assert response.status_code == 500
    assert response.json["outbox"] is None
    assert response.json["continuations"] == {"woken": 0, "expired": 0}
    assert call(home, "/cron/outbox/sweep").status_code == 500


def test_strangers_start_no_sweep(home: World) -> None:
    """S1: the caller proves itself before a sweep is looked up."""
    app = app_with(home)
    for path in ("/cron/sweep", "/cron/outbox/sweep", "/cron/nosuch/sweep"):
        assert app.test_client().get(path).status_code == 403
