"""An advisory lock keeps callers from contending; nothing depends on it."""

from __future__ import annotations

import datetime
import itertools
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.runtime import NoCache
from rollforward.runtime.advisory_lock import PROGRESS_S, WAIT_S, advisory_lock
from rollforward.runtime.process.processes import LockedFiles
from tests.infra.world import World

pytestmark = pytest.mark.fast


@pytest.fixture
def clients(world: World) -> Any:
    """Clients whose clock is the world's: waiting takes no time."""
    return world.clients


def waited_s(clients: Any, name: str) -> float:
    """Return how long a caller has waited for the lock."""
    began = clients.clock.now()
    with advisory_lock(clients, name):
        return float((clients.clock.now() - began).total_seconds())


def test_whoever_comes_while_another_is_at_it_waits(clients: Any) -> None:
    """But not for one of another name; and one that takes long is waited for 2 s only."""
    with advisory_lock(clients, "row a"):
        assert waited_s(clients, "row b") == 0
        assert WAIT_S <= waited_s(clients, "row a") < WAIT_S + 0.1

    assert waited_s(clients, "row a") == 0


def test_whoever_waits_comes_when_the_other_is_done(clients: Any) -> None:
    """Also when that one fails."""
    order: list[str] = []
    is_in, may_go = threading.Event(), threading.Event()

    def first() -> None:
        with advisory_lock(clients, "row"):
            is_in.set()
            may_go.wait(10)
            order.append("first")
            raise LookupError

    def failing() -> None:
        with pytest.raises(LookupError):
            first()

    one = threading.Thread(target=failing)
    one.start()
    assert is_in.wait(10)
    sleeps: list[float] = []

    class Clock:
        now = clients.clock.now

        def sleep(self, seconds: float) -> None:
            sleeps.append(seconds)
            may_go.set()
            one.join(10)

    with advisory_lock(replace(clients, clock=Clock()), "row"):
        order.append("second")

    assert order == ["first", "second"]
    assert len(sleeps) == 1


@pytest.mark.parametrize(
    ("every_s", "waits_s", "is_alive"),
    [(1.0, 5.0, True), (3.0, WAIT_S, False), (0.0, WAIT_S, False)],
    ids=["alive", "slow", "dead"],
)
def test_a_holder_that_shows_progress_is_waited_for_longer(
    clients: Any, every_s: float, waits_s: float, is_alive: bool
) -> None:
    """One that shows none for 2 s may have died; and nobody waits for ever, and knows why."""
    with advisory_lock(clients, "row") as holder:
        began, shown = clients.clock.now(), 0

        class Clock:
            now = clients.clock.now

            def sleep(self, seconds: float) -> None:
                nonlocal shown
                clients.clock.sleep(seconds)
                passed_s = (clients.clock.now() - began).total_seconds()
                if every_s and passed_s // every_s > shown:
                    shown += 1
                    holder.show_progress()

        with advisory_lock(replace(clients, clock=Clock()), "row", max_wait_s=5.0) as turn:
            waited = (clients.clock.now() - began).total_seconds()
        assert waits_s <= waited < waits_s + 0.1
        assert turn.is_beside == is_alive
        assert clients.cache.get("row") is not None
    assert clients.cache.get("row") is None


def test_a_holder_that_is_done_soon_makes_no_call_to_show_progress(clients: Any) -> None:
    """One that takes longer shows it four times a second, also after its clock was put back."""
    at = clients.clock.now()
    clock: Any = SimpleNamespace(now=lambda: at)
    with advisory_lock(replace(clients, clock=clock), "row") as holder:
        seen = [clients.cache.get("row")]
        for passed_s in (0.0, PROGRESS_S / 2, PROGRESS_S / 2, PROGRESS_S / 2, -60.0):
            at += datetime.timedelta(seconds=passed_s)
            holder.show_progress()
            seen.append(clients.cache.get("row"))

    is_shown = [value != before for before, value in itertools.pairwise(seen)]
    assert is_shown == [False, False, True, False, True]


def test_progress_keeps_no_lock_that_another_has_taken(clients: Any) -> None:
    """Its time was over, and another holder has it."""
    with advisory_lock(clients, "row") as holder:
        clients.cache.set("row", b"another's", 60)
        clients.clock.sleep(PROGRESS_S)
        holder.show_progress()
        assert clients.cache.get("row") == b"another's"


def test_a_lock_that_another_has_taken_meanwhile_is_left_to_it(clients: Any) -> None:
    """Its time was over, and another holder has it."""
    with advisory_lock(clients, "row"):
        clients.cache.set("row", b"another's", 60)

    assert clients.cache.get("row") == b"another's"


def test_a_lock_that_is_released_as_a_caller_looks_is_taken(clients: Any) -> None:
    """The caller does not go on without it."""
    held = SimpleNamespace(
        add=clients.cache.add, get=clients.cache.get, delete=clients.cache.delete
    )
    clients.cache.set("row", b"another's", 60)

    def released(name: str) -> bytes | None:
        held.get = clients.cache.get
        clients.cache.delete(name)
        return None

    held.get = released
    with advisory_lock(replace(clients, cache=held), "row"):
        assert clients.cache.get("row") not in (None, b"another's")


def test_without_memcached_and_an_instance_nobody_waits(clients: Any) -> None:
    alone = replace(clients, cache=NoCache())
    with advisory_lock(alone, "row"):
        assert waited_s(alone, "row") == 0


def test_without_memcached_the_threads_of_an_instance_take_turns(
    clients: Any, tmp_path: Path
) -> None:
    """One that takes long is waited for 2 s only, and keeps its lock then."""
    alone = replace(clients, cache=NoCache(), processes=LockedFiles(str(tmp_path)))
    with advisory_lock(alone, "row", max_wait_s=8.0) as turn:
        turn.show_progress()
        assert waited_s(alone, "row b") == 0
        assert WAIT_S <= waited_s(alone, "row") < WAIT_S + 0.1
        assert not alone.processes.try_lock("row")

    assert waited_s(alone, "row") == 0
