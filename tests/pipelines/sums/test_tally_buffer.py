"""The API's tally: counted in memory, written once, by a thread that ends."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from google.api_core import exceptions as rpc_errors

from models.sums import SumTally
from pipelines.sums import sums
from pipelines.sums.reconciliation import read_tallies
from pipelines.sums.sums import Count
from pipelines.sums.tally_buffer import TallyDelta, tally_buffer, write
from rollforward.datastore.transactions import transact
from rollforward.fork_join import DifferentItemError
from rollforward.testing.injection import REPLY_LOST
from tests.infra.stack import until
from tests.infra.world import World
from tests.pipelines.sums.loading import both_sides


def test_what_the_api_accepts_is_tallied_once(world: World) -> None:
    """A repeat is no second item; what a process tallied is written by a flush."""
    with world.clients.context():
        for key, amount in [("k", 5), ("k", 5), (None, -2), (None, -2)]:
            sums.add(world.clients, "s", amount, idempotency_key=key)
        with pytest.raises(DifferentItemError):
            sums.add(world.clients, "s", 6, idempotency_key="k")
    accepted, _, waiting = both_sides(world)
    assert (accepted, waiting) == (Count(3, 1), 3)
    world.settle()

    assert both_sides(world) == (Count(3, 1), Count(3, 1), 0)


def test_tallies_are_written_in_few_writes_and_before_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many inserts within a second: no tally of theirs is a write; SIGTERM loses none."""
    monkeypatch.setattr("pipelines.sums.tally_buffer.FLUSH_INTERVAL_S", 60)
    with world.clients.context():
        for _ in range(20):
            sums.add(world.clients, "s", 1, idempotency_key=None)
    with world.context():
        assert SumTally.query().fetch() == []

    world.clients.process_state.shutdown()

    with world.context():
        assert sum(tally.items for tally in SumTally.query()) == 20


def test_tallies_are_written_by_themselves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second, by a thread that ends then; what Datastore does not take, later."""
    monkeypatch.setattr("pipelines.sums.tally_buffer.FLUSH_INTERVAL_S", 0.05)
    others = set(threading.enumerate())
    written = threading.Event()
    failures = [rpc_errors.ServiceUnavailable("away"), ValueError("odd")]

    def flaky(delta: TallyDelta) -> None:
        if failures:
            raise failures.pop()
        write(delta)
        written.set()

    monkeypatch.setattr("pipelines.sums.tally_buffer.write", flaky)
    with world.clients.context():
        sums.add(world.clients, "s", 4, idempotency_key=None)

    assert written.wait(20)
    until(
        lambda: not any(t.name == "sums:tally" for t in {*threading.enumerate()} - others), 20, 0.02
    )
    with world.context():
        assert read_tallies("s").api == Count(1, 4)


def test_a_tally_that_lost_its_reply_is_counted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard keeps the numbers of its last deltas."""
    monkeypatch.setattr("pipelines.sums.tally_buffer.FLUSH_INTERVAL_S", 60)
    with world.clients.context():
        sums.add(world.clients, "s", 4, idempotency_key=None)
    world.plan.kind, world.plan.at = REPLY_LOST, 2
    with world.plan.watched(), world.clients.context():
        tally_buffer(world.clients).flusher.flush()
    assert "Commit" in world.plan.fired

    assert both_sides(world)[0] == Count(1, 4)


def test_a_delta_that_is_repeated_after_those_of_many_is_counted_once(world: World) -> None:
    """Its reply was lost; meanwhile forty other processes have written to its shard."""
    delta = TallyDelta("s", 0, "mine", 1, items=3, amount=9)
    with world.clients.context():
        transact(lambda: write(delta))
        for process in range(40):
            other = TallyDelta("s", 0, f"p{process}", 1, items=1, amount=1)
            transact(lambda other=other: write(other))  # type: ignore[misc]
        transact(lambda: write(delta))
        transact(lambda: write(dataclasses.replace(delta, number=2)))

        assert read_tallies("s").api == Count(46, 58)
