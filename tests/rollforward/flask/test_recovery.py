"""What a worker does when it starts: it finds what its predecessor left, and shares the look."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward import continuations
from rollforward.continuations.progress import progress
from rollforward.datastore.transactions import transact
from rollforward.flask import recovery
from rollforward.fork_join.joiners import Joiners
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import APPLY, Walk, put_items
from tests.rollforward.fork_join.tally_queue import TALLIES, Mark, packs, tallied
from tests.rollforward.outbox.order_tasks import STEPS, TASKS, dying, place, ran, waiting


@pytest.fixture
def home(services: Services) -> World:
    world = World(services, jobs=[APPLY], tasks=TASKS, fork_joins=[TALLIES])
    world.flush()
    return world


def start_worker(world: World, clients: Any = None) -> int:
    """Do what a worker does when it starts; return how often it looked itself."""
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
    monkeypatch.setattr(Joiners, "start", lambda *args, **options: None)
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


def test_a_run_whose_task_is_gone_goes_on(home: World) -> None:
    """A1: no cron is needed for a page whose task was never created."""
    put_items(home, 3)
    with home.context():
        continuations.start(home.clients, APPLY, Walk("run"), run_id="run")
    home.engine.reset()
    home.clock.sleep(3)

    start_worker(home)
    home.settle(patience_s=60)

    with home.context():
        assert progress("run").state == "finished"


def test_workers_that_start_together_share_a_look(home: World) -> None:
    """Another worker's look began after this one was due: this worker does not look as well."""
    began_s = home.clients.clock.now().timestamp() + recovery.LOOKS_S[0] + 0.5
    home.clients.cache.set(recovery.LAST_LOOK, str(began_s).encode(), ttl_s=60)

    assert start_worker(home) == len(recovery.LOOKS_S) - 1


def test_a_worker_that_starts_after_a_look_waits_and_looks_itself(home: World) -> None:
    """What its predecessor left may be younger than the last look."""
    assert start_worker(home) == len(recovery.LOOKS_S)
    assert start_worker(home) == len(recovery.LOOKS_S)


def test_a_look_that_follows_an_old_one_says_when_it_began(home: World) -> None:
    """The old look's mark outlived its turn; others that start now share the new look."""
    home.clients.cache.set(recovery.LAST_LOOK, b"1000.0", ttl_s=60)
    began_s = home.clients.clock.now().timestamp()

    start_worker(home)

    said = home.clients.cache.get(recovery.LAST_LOOK)
    assert said is not None
    assert float(said) > began_s


@pytest.mark.parametrize("planted", [b"", b"\xff\xfe", b"yesterday", b"nan", b"inf", b"1e300"])
def test_what_stands_in_memcached_cannot_stop_a_worker(home: World, planted: bytes) -> None:
    """Whatever is read there, the worker looks in the end."""
    home.clients.cache.set(recovery.LAST_LOOK, planted, ttl_s=60)

    assert start_worker(home) == len(recovery.LOOKS_S)


def test_a_sweep_that_fails_stops_none_behind_it(
    home: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox cannot be read, and the batch is woken all the same."""
    seen: list[str] = []

    def sweep(clients: Any, name: str, **options: object) -> dict[str, int]:
        seen.append(name)
        if name in ("outbox", "continuations"):
            raise OSError("no answer")
        return {}

    monkeypatch.setattr(home.registry, "sweep", sweep)

    start_worker(home)

    patterns = home.registry.patterns.values()
    swept = [pattern.name for pattern in patterns if pattern.is_swept]
    assert swept[:4] == ["tasks", "outbox", "lanes", "continuations"]
    assert seen == swept * len(recovery.LOOKS_S)
