"""Leases with clocks that jump: each worker's own, by up to an hour, forward and back."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.pull_queues import ItemId, Lease, PullQueue
from pipelines.runtime import Clients
from tests.soak import IS_SOAK
from tests.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
WORKERS = ("a", "b")
Step = tuple[str, str, int]

_numbers = itertools.count()
steps = st.tuples(
    st.sampled_from(["add", "lease", "lease", "ack", "renew", "release", "jump"]),
    st.sampled_from(WORKERS),
    st.integers(-3600, 3600),
)


@dataclass
class JumpingClock:
    """A clock that tells what it was set to."""

    time: datetime.datetime = NOON

    def now(self) -> datetime.datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += datetime.timedelta(seconds=seconds)


@dataclass
class Worker:
    """One who leases, by a clock of its own."""

    clients: Clients
    clock: JumpingClock
    held: dict[ItemId, Lease] = field(default_factory=dict)


class Play:
    """Workers on one queue, and who has leased each item last."""

    def __init__(self, world: World) -> None:
        self.queue = PullQueue(f"jumps-{next(_numbers)}", max_deliveries=1000, partitions=1)
        clocks = {name: JumpingClock() for name in WORKERS}
        self.workers = {
            name: Worker(replace(world.clients, clock=clock), clock)
            for name, clock in clocks.items()
        }
        self.last: dict[ItemId, Lease | None] = {}
        self.acked: list[ItemId] = []

    def do(self, what: str, who: str, seconds: int) -> None:
        getattr(self, what)(self.workers[who], seconds)

    def add(self, worker: Worker, seconds: int) -> None:
        self.last[self.queue.add(worker.clients, "item")] = None

    def lease(self, worker: Worker, seconds: int) -> None:
        leases = self.queue.lease(worker.clients, limit=3, lease_s=30)
        assert not {each.id for each in leases} & set(self.acked), "an item came back to life"
        self._take(worker, leases)

    def ack(self, worker: Worker, seconds: int) -> None:
        held, worker.held = list(worker.held.values()), {}
        owned = self._owned(held)
        lost = {each.id for each in self.queue.ack(worker.clients, held)}
        there = {each.id for each in held} - set(self.acked)
        assert lost & there == there - owned, "an ack by one whose lease was over"
        self.acked += owned

    def renew(self, worker: Worker, seconds: int) -> None:
        held = list(worker.held.values())
        renewed = self.queue.renew(worker.clients, held, lease_s=30)
        assert {each.id for each in renewed} == self._owned(held)
        self._take(worker, renewed)

    def release(self, worker: Worker, seconds: int) -> None:
        held, worker.held = list(worker.held.values()), {}
        owned = self._owned(held)
        self.queue.release(worker.clients, held)
        self.last.update(dict.fromkeys(owned))

    def jump(self, worker: Worker, seconds: int) -> None:
        worker.clock.sleep(seconds)

    def drain(self) -> None:
        """Ack what is left, by one whose clock is ahead of all others."""
        worker = self.workers["a"]
        worker.clock.time = NOON + datetime.timedelta(days=1)
        while len(self.acked) < len(self.last):
            before = len(self.acked)
            self.lease(worker, 0)
            self.ack(worker, 0)
            assert len(self.acked) > before, "an item is lost"

    def _take(self, worker: Worker, leases: Sequence[Lease]) -> None:
        for each in leases:
            worker.held[each.id] = self.last[each.id] = each

    def _owned(self, leases: Sequence[Lease]) -> set[ItemId]:
        """Return the items of those leases that nobody else has leased since."""
        mine = {each.id for each in leases if self._is_last(each)}
        return mine - set(self.acked)

    def _is_last(self, lease: Lease) -> bool:
        last = self.last[lease.id]
        return last is not None and last.version == lease.version


@settings(
    max_examples=400 if IS_SOAK else 25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(plan=st.lists(steps, min_size=4, max_size=14))
def test_each_item_is_acked_by_its_last_leaser_or_waits_in_any_history(
    world: World, plan: list[Step]
) -> None:
    """Clocks decide who may lease when; what is lost or done twice they never decide."""
    with world.clients.context():
        play = Play(world)
        for what, who, seconds in plan:
            play.do(what, who, seconds)
        play.drain()

        assert sorted(play.acked) == sorted(play.last)
