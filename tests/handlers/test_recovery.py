"""What a worker does when it starts: it finds what its predecessor left, and shares the look."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from handlers import recovery
from models.transactions import transact
from pipelines.fork_join import ForkJoin
from tests.pipelines.orders import STEPS, TASKS, dying, place, ran, waiting
from tests.pipelines.tallies import TALLIES, Mark, packs, tallied
from tests.pipelines.walks import APPLY
from tests.world import Services, World


@pytest.fixture
def home(services: Services) -> World:
    world = World(services, jobs=[APPLY], tasks=TASKS, fork_joins=[TALLIES])
    world.flush()
    return world


def start_worker(world: World, clients: Any = None) -> bool:
    """Do what a worker does when it starts."""
    with world.context():
        return recovery.recover(clients or world.clients, world.registry)


def test_what_a_dead_worker_committed_is_relayed(home: World) -> None:
    """B1: no cron is needed for tasks whose process died right after the commit."""
    with home.context():
        transact(lambda: place(dying(home), "o1"))
    home.clock.sleep(1)

    start_worker(home)
    home.settle(patience_s=60)

    assert set(ran(home, "o1")) == set(STEPS)
    assert waiting(home) == []


def test_a_batch_whose_writer_died_is_folded(home: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: no cron is needed for items whose joiner was never created."""
    monkeypatch.setattr(ForkJoin, "start", lambda *args, **options: None)
    with home.context():
        TALLIES.insert(home.clients, "k", Mark("a"))
    monkeypatch.undo()
    home.engine.reset()
    home.clock.sleep(3)

    start_worker(home)
    home.settle(patience_s=60)

    with home.context():
        assert tallied("k") == {"a": 1}
        assert packs() == []


def test_workers_that_start_together_share_a_look(home: World) -> None:
    """The second one finds that a look began after its own start, and sweeps nothing."""
    world_clock = home.clients.clock
    late = replace(home.clients, clock=_Behind(world_clock, 5))

    assert start_worker(home)
    assert not start_worker(home, late)


def test_a_worker_that_starts_after_a_look_waits_and_looks_itself(home: World) -> None:
    """What its predecessor left may be younger than the last look."""
    assert start_worker(home)
    assert start_worker(home)


@pytest.mark.parametrize("planted", [b"", b"\xff\xfe", b"yesterday", b"nan", b"inf", b"1e300"])
def test_what_stands_in_memcached_cannot_stop_a_worker(home: World, planted: bytes) -> None:
    """Whatever is read there, the worker looks in the end."""
    home.clients.cache.set("recovery:began", planted, ttl_s=60)

    assert start_worker(home)


def test_a_sweep_that_fails_stops_none_behind_it(
    home: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox cannot be read, and the batch is woken all the same."""
    seen: list[str] = []

    def note(name: str, error: Exception | None = None) -> Callable[..., None]:
        def sweep(*args: object, **options: object) -> None:
            seen.append(name)
            if error is not None:
                raise error

        return sweep

    monkeypatch.setattr(recovery.outbox, "sweep", note("outbox", OSError("no answer")))
    monkeypatch.setattr(recovery.continuations, "sweep", note("continuations", OSError("no")))
    monkeypatch.setattr(recovery.fork_join_sweeps, "sweep_all", note("fork-join"))

    assert start_worker(home)

    assert seen == ["outbox", "continuations", "fork-join"]


class _Behind:
    """A clock that is some seconds behind another one: a worker that started earlier."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self.clock = clock
        self.behind = datetime.timedelta(seconds=seconds)

    def now(self) -> datetime.datetime:
        now: datetime.datetime = self.clock.now()
        return now - self.behind

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
