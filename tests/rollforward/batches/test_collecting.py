"""Ends of members by a pull queue: counted once, whatever becomes of a collector."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.batches import TaskBatch, collecting
from rollforward.pull_queues.entities import items_of
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    PULLED,
    callbacks,
    deliver_all,
    notes,
    outcomes,
    tell,
    told,
)


def waiting() -> int:
    return len(items_of("batch-ends").fetch(keys_only=True))


def test_a_batch_completes_by_a_pull_queue(world: World) -> None:
    """F1, F6: members are counted, the callback is created once, and no item is left."""
    with world.context():
        PULLED.populate(world.clients, "b", notes("a", "bad", "says", "c"), seal=True)

    world.settle()

    with world.context():
        assert outcomes(PULLED, "b") == ["done", "failed", "done", "done"]
        assert [said["members"] for said in told(PULLED, "b")] == [4]
        assert waiting() == 0
    assert set(callbacks(world).values()) == {1}


def test_what_a_collector_has_counted_and_not_acked_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ack fails; the items come back, and change nothing."""
    with world.context():
        PULLED.populate(world.clients, "b", notes("a", "c"), seal=True)

    def fail(*args: object) -> None:
        raise rpc_errors.ServiceUnavailable("no ack")

    with monkeypatch.context() as broken:
        broken.setattr(collecting.PullQueue, "ack", fail)
        deliver_all(world, "default")
        deliver_all(world, "fan-out")
        world.clock.sleep(1)
        deliver_all(world, "fork-join")
        with world.context():
            assert waiting() == 2
            assert PULLED.progress("b").is_complete

    world.settle()

    with world.context():
        assert PULLED.progress("b").done == 2
        assert waiting() == 0
    assert set(callbacks(world).values()) == {1}


def test_ends_that_could_not_be_counted_are_there_for_the_next_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are given back: nobody waits until their lease ends."""
    with world.context():
        PULLED.populate(world.clients, "b", notes("a", "c"), seal=True)
    deliver_all(world, "default")
    deliver_all(world, "fan-out")
    args = collecting.Collect(PULLED.declaration.key("b"))

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    with world.context():
        with monkeypatch.context() as broken:
            broken.setattr(collecting, "count_ends", fail)
            with pytest.raises(ZeroDivisionError):
                collecting.collect.work(world.clients, args)
        collecting.collect.work(world.clients, args)

        assert PULLED.progress("b").is_complete
        assert waiting() == 0


def test_ends_that_no_collector_finds_are_swept(world: World) -> None:
    """F3: their collector ran before they came, as by a clock that is behind."""
    with world.context():
        PULLED.populate(world.clients, "b", notes("a", "c"), seal=True)
    deliver_all(world, "default")
    deliver_all(world, "fan-out")
    world.engine.purge_queue(world.engine.place.queue_name("fork-join"))
    world.clock.sleep(1)

    with world.context():
        assert collecting.collect_late(world.clients) == 2
        assert PULLED.progress("b").is_complete


def test_ends_go_one_of_two_ways() -> None:
    with pytest.raises(ValueError, match="members end by one of"):
        TaskBatch("other", members=[], on_complete=tell, ends_by="mail")  # type: ignore[arg-type]
