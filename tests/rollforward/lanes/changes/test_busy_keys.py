"""Operators at a busy key: nobody waits for them, and the key does not keep them waiting."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.lanes import Lane, LaneBusyError, LaneKey, control
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key
from rollforward.lanes.rows.states import keep
from rollforward.lanes.runs import lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.runtime import Clients
from rollforward.runtime.sharing import optimistic_transaction
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version
from rollforward.testing.world import apart, in_threads
from tests.infra.world import World
from tests.rollforward.lanes.office import DESK, IN_ORDER, TWO, send, write

# Where reads lock, whoever waits for a lock that is not given back waits for long.
locking = pytest.mark.parametrize("services", ["firestore"], indirect=True)
Act = Callable[[LaneKey, Clients], object]
ACTS: dict[str, Act] = {
    "pause": lambda key, clients: key.pause(clients),
    "resume": lambda key, clients: key.resume(clients),
    "drain": lambda key, clients: key.drain(clients),
}


def wake(world: World, lane: Lane) -> None:
    """Deliver a hint for Ada here and now, as another thread would."""

    def act() -> None:
        with world.clients.context():
            deliver(lane, world.clients, LaneArgs(f"{lane.name}|ada"))

    apart(act)


def before_writes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], times: int) -> None:
    """Let something happen between what an operator reads and what the operator commits."""
    sound, left = control.put_state, [act] * times

    def put_state(*args: Any) -> None:
        if left:
            left.pop()()
        sound(*args)

    monkeypatch.setattr(control, "put_state", put_state)


@locking
@pytest.mark.parametrize("name", ["pause", "drain"])
def test_a_delivery_does_not_wait_for_an_operator_who_is_at_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """K5: nor would it for one who has died there. The change is made by the state that is left."""
    monkeypatch.setattr(lookups, "SLICE_S", 0.0)  # A turn has one task.
    send(world.clients, IN_ORDER, "ada", 0, 1)
    before_writes(monkeypatch, lambda: wake(world, IN_ORDER), 1)
    result = ACTS[name](IN_ORDER("ada"), world.clients)
    assert DESK.begun == ["ada:0"]
    if name == "drain":
        assert isinstance(result, control.Drained)
        assert result.deleted == 1
    else:
        assert IN_ORDER("ada").state().is_paused
    world.settle()
    assert DESK.begun == ["ada:0"]


@locking
@pytest.mark.parametrize("name", ACTS)
def test_an_operator_who_loses_every_race_locks_the_key(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """K5: its deliveries wait for that one change, and not for each other."""
    monkeypatch.setattr(optimistic_transaction, "pause_before_retry", lambda failures: None)
    key, races = IN_ORDER("ada"), list[int]()
    send(world.clients, IN_ORDER, "ada", 0)
    if name == "resume":
        key.pause(world.clients)
    else:
        LaneState(key=state_key(key.id), stamp="s").put()

    def beat() -> None:
        """Write the state, as the beat of a delivery does."""
        races.append(1)

        def body() -> None:
            state = state_key(key.id).get()
            state.pace_ms += 1
            keep(world.clients, state)

        def act() -> None:
            with world.clients.context():
                transact_by_version(world.clients, body)

        apart(act)

    before_writes(monkeypatch, beat, optimistic_transaction.MAX_ATTEMPTS)
    ACTS[name](key, world.clients)
    assert len(races) == optimistic_transaction.MAX_ATTEMPTS
    state = key.state()
    assert state.is_paused == (name == "pause")
    assert state.waiting == (0 if name == "drain" else 1)


@pytest.mark.parametrize("lane", [IN_ORDER, TWO, Lane("test-two", limit=8)], ids=["1", "2", "8"])
def test_a_busy_key_is_paused_drained_and_resumed_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K1, K2, K5: each task runs once or is drained, and none begins while the key is paused."""
    monkeypatch.setattr(lookups, "SLICE_S", 0.01)
    key, over = lane("ada"), threading.Event()
    drained: list[int] = []
    write.enqueue_many(world.clients, [write.bind("ada", str(n)) for n in range(120)], lane=key)

    def in_context(act: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with world.clients.context():
                act()

        return run

    def deliveries() -> None:
        while not over.is_set():
            with contextlib.suppress(LaneBusyError, rpc_errors.Aborted):
                deliver(lane, world.clients, LaneArgs(key.id))

    def operator() -> None:
        try:
            for _ in range(6):
                key.pause(world.clients)
                for _ in range(1_000):
                    if not key.state().claims:
                        break
                    over.wait(0.01)
                begun = len(DESK.begun)
                drained.append(key.drain(world.clients, limit=3).deleted)
                assert len(DESK.begun) == begun
                key.resume(world.clients)
                over.wait(0.05)
        finally:
            over.set()

    in_threads(*[in_context(deliveries) for _ in range(3)], in_context(operator))
    world.settle()
    assert max(Counter(DESK.begun).values()) == 1
    assert len(DESK.written) + sum(drained) == 120
    assert LaneTask.query().fetch() == []
