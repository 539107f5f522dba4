"""Worlds for the tests of the outbox."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rollforward.outbox.background import BackgroundRelay
from rollforward.runtime import Clients
from tests.infra.world import Services, World
from tests.rollforward.outbox.gates import Gate, ManualTimer
from tests.rollforward.outbox.order_tasks import TASKS


@pytest.fixture
def world(services: Services) -> World:
    """A world whose app knows the steps of an order."""
    return World(services, tasks=TASKS)


@pytest.fixture
def watched_world(world: World) -> Iterator[World]:
    """The same, in a context that is open and with its calls counted."""
    with world.clients.context(), world.plan.watched():
        yield world


# The relay after the response


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    gate = Gate(world.clients.tasks)
    yield gate
    gate.is_open.set()


@pytest.fixture
def timer() -> ManualTimer:
    return ManualTimer()


@pytest.fixture
def behind(world: World, gate: Gate, timer: ManualTimer) -> Clients:
    """Clients whose relay works after the response, and whose Cloud Tasks is behind a gate."""
    return replace(world.clients, tasks=gate, relay=BackgroundRelay(schedule=timer))  # type: ignore[arg-type]


# One bad row


@pytest.fixture
def missing_queue(world: World) -> Iterator[str]:
    """A queue that a deployment forgot; the test may make up for it."""
    name = f"forgotten-{uuid.uuid4().hex[:8]}"
    yield name
    full = world.engine.place.queue_name(name)
    if any(queue.name == full for queue in world.engine.queues.all()):
        world.engine.delete_queue(full)
