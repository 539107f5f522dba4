"""Rows of tasks that a tenant's context has enqueued: deliveries and sweeps find them."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud.ndb.context import get_context

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox.cancellable import enqueue_cancellable
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.stored.cancellation import cancel
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator
from tests.rollforward.tasks.stored.films import film, frames, rows_here, runs_here

DAY_S = 24 * 3600.0
LARGE = frames(1_200_000)


@pytest.fixture
def studio(services: Services) -> World:
    return World(services, tasks=[film])


def tenant() -> Any:
    """Return a tenant's context, within the one that is open."""
    return get_context().new(namespace="tenant").use()


@one_emulator
def test_large_arguments_of_a_tenant_s_context_are_read(studio: World) -> None:
    """H7: with a task that is created at once, and with one that a transaction commits."""
    with studio.context(), tenant():
        film.enqueue(studio.clients, film.bind("at once", LARGE))
        transact(lambda: outbox.enqueue(studio.clients, film, film.bind("committed", LARGE)))
    studio.settle()

    with studio.context():
        assert DeadTask.query().fetch() == []
        assert runs_here() == {"at once": 1, "committed": 1}
        assert rows_here()["ArgumentsChunk"] == 0


@one_emulator
def test_a_task_that_a_tenant_s_context_cancels_never_begins(studio: World) -> None:
    """B9: the delivery reads the row that the cancellation has written."""
    with studio.context(), tenant():
        handles = [
            enqueue_cancellable(studio.clients, film, film.bind(tag, "x"), name=name)
            for tag, name in [("cut", None), ("named", ("a",))]
        ]
        assert [cancel(handle) for handle in handles] == [True, True]
    studio.settle()

    with studio.context():
        assert runs_here() == {}


@one_emulator
def test_a_distant_task_of_a_tenant_s_context_runs(studio: World) -> None:
    """B8: the sweep finds its row when it is near."""
    with studio.context(), tenant():
        film.enqueue(studio.clients, film.bind("sequel", "x"), delay_s=40 * DAY_S)
    for _ in range(41):
        studio.clock.sleep(DAY_S)
        studio.sweep()
    studio.settle()

    with studio.context():
        assert runs_here() == {"sequel": 1}
