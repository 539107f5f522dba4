"""How the emulator behaves like a profile: when it dispatches, how fast, and when it slows down."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollforward.cloud_profile import BUNDLED, load
from rollforward.local.cloudtasks.delivery import statuses
from rollforward.local.cloudtasks.delivery.behaviour import Behaviour
from rollforward.local.cloudtasks.delivery.rates import Ramp
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from tests.rollforward.local.cloudtasks.engines import (
    NOW,
    PLACE,
    QUEUE,
    add,
    finish,
    history,
    ids,
    make_engine,
)

Make = Callable[..., Engine]


@pytest.fixture
def make() -> Iterator[Make]:
    """A way to make engines with one queue, which are closed in the end."""
    with contextlib.ExitStack() as stack:

        def make_one(behaviour: Behaviour | None, **limits: Any) -> Engine:
            engine = stack.enter_context(contextlib.closing(make_engine(behaviour=behaviour)))
            engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE, rate_limits=limits))
            return engine

        yield make_one


def test_a_due_task_is_dispatched_after_a_while_each_attempt_anew(make: Make) -> None:
    """A retry, too; no fault is told of."""
    engine = make(Behaviour(dispatch_s=lambda: 5.0))
    add(engine, "a")

    assert (engine.begin_ready(), engine.wake_at()) == ([], NOW + 5)
    engine.advance(5)
    assert len(finish(engine, 500)) == 1
    engine.advance(1)  # The retry is due.
    assert (engine.begin_ready(), engine.wake_at()) == ([], NOW + 11)
    engine.advance(5)
    assert len(finish(engine)) == 1
    assert [attempt["faults"] for attempt in history(engine, "a")] == ["[]", "[]"]


def test_a_task_on_its_way_is_work(make: Make) -> None:
    """Whoever waits for an idle queue waits for it, also behind one that is due much later."""
    engine = make(Behaviour(dispatch_s=lambda: 5.0))
    add(engine, "a")
    engine.begin_ready()

    assert not engine.is_idle()
    engine.advance(5)
    finish(engine)
    assert engine.is_idle()


def test_a_delay_fault_comes_on_top_and_is_told_of(make: Make) -> None:
    """As without a profile."""
    engine = make(Behaviour(dispatch_s=lambda: 5.0))
    engine.faults.add(kind="delay", param=30)
    add(engine, "a")
    engine.begin_ready()
    engine.advance(34.9)
    before = engine.begin_ready()
    engine.advance(0.1)
    finish(engine)

    assert before == []
    assert [attempt["faults"] for attempt in history(engine, "a")] == ['["delay"]']


def test_a_cold_queue_grows_and_is_cold_again_when_it_was_idle(make: Make) -> None:
    """Here from 2 a second to 4, ten seconds later."""
    behaviour = Behaviour(allowed_per_s=lambda s: 2.0 * 2 ** (s // 10), cold_after_s=60)
    engine = make(behaviour, max_dispatches_per_second=8, max_burst_size=1)
    for number in range(60):
        add(engine, f"t{number}")

    def dispatched(seconds: int) -> int:
        """Return how many go out, looking ten times a second."""
        count = 0
        for _ in range(10 * seconds):
            count += len(finish(engine))
            engine.advance(0.1)
        return count

    cold, warm = dispatched(5), dispatched(10)
    engine.advance(60)
    again = dispatched(5)

    assert cold == pytest.approx(10, abs=2)
    assert warm == pytest.approx(10 + 20, abs=2)
    assert again == pytest.approx(10, abs=2)


def test_a_ramp_above_the_queue_s_own_rate_changes_nothing() -> None:
    """The queue's rate is the most."""
    assert Ramp(lambda s: 500.0).factor(8.0, NOW) == 1.0
    assert Ramp().factor(8.0, NOW) == 1.0
    assert Ramp(lambda s: 500.0).factor(0.0, NOW) == 1.0


@pytest.mark.parametrize(
    ("status", "is_app_engine", "slows"),
    [
        *((500, False, True), (502, False, True), (None, False, True)),
        *((500, True, False), (404, False, False), (200, False, False)),
        *((409, False, False), (409, True, False), (422, False, False), (422, True, False)),
        *((429, False, True), (503, False, True), (503, True, True), (429, True, False)),
    ],
)
def test_any_5xx_of_an_http_target_slows_its_queue_down(
    status: int | None, is_app_engine: bool, slows: bool
) -> None:
    """As the documents say of overloaded targets; an instance that died counts as its 503."""
    assert statuses.throttles(is_app_engine, status) is slows


def test_a_queue_brakes_after_an_error_of_its_target(make: Make) -> None:
    """With a profile and without one: the documents say so of every queue."""
    engine = make(None)
    add(engine, "a")
    add(engine, "b")
    finish(engine, 500)
    braked = engine.queues.all()[0].throttle.factor

    assert braked == 0.5
    assert ids(engine.begin_ready()) == []


def test_a_profile_has_all_of_it_and_without_one_nothing_is_added() -> None:
    """Tests and most work on a laptop have none."""
    none, cloud = Behaviour.like(None), Behaviour.like(load(BUNDLED))

    assert (none.dispatch_s(), none.allowed_per_s) == (0.0, None)
    assert none.cold_after_s == math.inf
    assert cloud.dispatch_s() > 0
    assert cloud.allowed_per_s is not None
    assert cloud.allowed_per_s(0.0) == 500
    assert cloud.cold_after_s == 600
