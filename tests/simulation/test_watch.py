"""A schedule in which two actors wait for each other ends, and tells who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tests.simulation.schedule import BrokenPromiseError, Simulator, play_or_shrink
from tests.simulation.shop import app
from tests.simulation.shop.entities import PlacedOrder
from tests.simulation.watch import TICK_S, TICKS, StuckError

PART, SEED = "mail", 0


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    simulator = Simulator(ticks=4, tick_s=0.25)
    yield simulator
    simulator.close()


@pytest.fixture
def locked(simulator: Simulator) -> Iterator[None]:
    """Let the guard of an order hold a lock while it pauses."""
    lock = threading.Lock()

    def is_placed(order: str) -> bool:
        with lock:
            simulator.world.sleep(20.0)
            return PlacedOrder.get_by_id(order) is not None

    with mock.patch.object(app, "is_placed", is_placed):
        yield
    assert not lock.locked()


@pytest.mark.usefixtures("locked")
def test_a_lock_that_is_held_over_a_pause_ends_the_schedule(simulator: Simulator) -> None:
    with pytest.raises(StuckError) as caught:
        simulator.play(SEED, [], [PART])
    waits, _, paused = str(caught.value).partition("\npaused: ")
    assert waits.startswith("no turn any more: p")
    assert "visitor waits or loops" in waits
    assert "in is_placed: with lock:" in waits
    assert "visitor" in paused
    assert "in is_placed: simulator.world.sleep(20.0)" in paused
    assert not simulator.world.actors


@pytest.mark.usefixtures("locked")
def test_a_stuck_schedule_tells_the_command_that_plays_it_again(simulator: Simulator) -> None:
    with pytest.raises(
        BrokenPromiseError, match=f"play it by: python .* {SEED} --faults"
    ) as caught:
        play_or_shrink(simulator, SEED)
    assert "no turn any more" in str(caught.value)


def test_a_loop_without_a_turn_ends_the_schedule(simulator: Simulator) -> None:
    def loop(_: Any) -> bool:
        while True:
            pass

    with mock.patch.object(app, "is_placed", loop), pytest.raises(StuckError, match="in loop"):
        simulator.play(SEED, [], [PART])


def test_after_a_stuck_schedule_others_are_played(simulator: Simulator) -> None:
    def wait(_: Any) -> bool:
        return threading.Event().wait()

    with mock.patch.object(app, "is_placed", wait), pytest.raises(StuckError):
        simulator.play(SEED, [], [PART])
    # With the usual patience: a busy machine may keep a schedule waiting for seconds.
    with mock.patch.multiple(simulator, ticks=TICKS, tick_s=TICK_S):
        assert simulator.play(SEED, [], [PART]).calls > 0
