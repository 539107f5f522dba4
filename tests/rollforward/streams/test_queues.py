"""Queues of streams: what is short does not wait behind what runs for 20 seconds."""

from __future__ import annotations

import pytest

from rollforward.datastore.transactions import transact
from rollforward.streams.driver import tasks_of
from rollforward.streams.stream_tasks import Tick, Work
from tests.infra.world import Services
from tests.rollforward.streams.harness import WEBLOG, hits, stream_world

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
WORKERS = 40


@one_emulator
def test_a_tick_and_a_push_are_dispatched_while_as_many_workers_are_busy_as_may_be(
    services: Services,
) -> None:
    """G4: a watermark moves, and a transaction's record comes in, however much work waits."""
    world, tasks = stream_world(services), tasks_of(WEBLOG)
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("a", "/", 1)))
    world.settle()
    works = [Work("hits", 0)] * WORKERS
    with world.context():
        tasks.work.enqueue_many(world.clients, works, names=[("busy", n) for n in range(WORKERS)])
    busy = world.engine.begin_ready()
    assert 0 < len(busy) < WORKERS

    with world.context():
        tasks.tick.enqueue(world.clients, Tick())
        transact(lambda: WEBLOG.push_in_transaction(world.clients, "requests", {"path": "/"}, 2))
    begun = world.engine.begin_ready()

    assert {task.url.rpartition("/")[2] for task in begun} == {"tick", "push"}
    for task in [*busy, *begun]:
        world.end(task, 200)
