"""Each item is acked once or waits: two workers in any order, a crash, a lost reply, an expiry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.pull_queues import Lease, PullQueue, leasing
from rollforward.pull_queues.entities import items_of
from rollforward.testing.injection import (
    CRASH_AFTER,
    CRASH_BEFORE,
    ERROR,
    OVERLAP,
    REPLY_LOST,
    UNKNOWN_OUTCOMES,
    Crash,
)
from tests.infra.runs import sampling
from tests.infra.runs.soak import IS_SOAK
from tests.infra.world import World

WORK = PullQueue("work", max_deliveries=9, partitions=1)
LEASE_S = 30.0
STEPS = ("La", "Aa", "Lb", "Ab", "T", *(("La", "T") if IS_SOAK else ()))


class Worker:
    """Leases what it can, and acks what it has; it may die in between."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: list[Lease] = []
        self.done: list[Lease] = []
        self.acked: list[str] = []

    def lease(self) -> None:
        self.held = WORK.lease(self.world.clients, limit=5, lease_s=LEASE_S)

    def ack(self) -> None:
        self.done, self.held = self.held, []
        lost = WORK.ack(self.world.clients, self.done)
        self.acked += [lease.payload for lease in self.done if lease not in lost]

    def ack_again(self) -> None:
        """Ack once more, since the answer was lost on its way."""
        lost = WORK.ack(self.world.clients, self.done)
        self.acked = [lease.payload for lease in self.done if lease not in lost]

    def renew(self) -> None:
        self.held = WORK.renew(self.world.clients, self.held, lease_s=LEASE_S)

    def release(self) -> None:
        WORK.release(self.world.clients, self.held)


def drained(world: World) -> list[str]:
    """Let time pass, and do what still waits; return what that was."""
    world.clock.sleep(LEASE_S + 1)
    drainer = Worker(world)
    drainer.lease()
    drainer.ack()
    assert items_of("work").fetch(keys_only=True) == []
    return drainer.acked


@sampling.long
def test_every_order_of_two_workers_steps_acks_each_item_once(world: World) -> None:
    """Exhaustive: a lease and an ack of each, or one dies over it; an expiry; in a soak two."""
    with_a_crash = tuple(step for step in STEPS if step != "Aa")
    orders = {order for plan in (STEPS, with_a_crash) for order in itertools.permutations(plan)}
    for steps in sorted(orders):
        WORK.add(world.clients, "item")
        workers = {"a": Worker(world), "b": Worker(world)}
        acked: list[str] = []
        for step in steps:
            if step == "T":
                world.clock.sleep(LEASE_S + 1)
            elif step[0] == "L":
                workers[step[1]].lease()
            else:
                workers[step[1]].ack()
        for worker in workers.values():
            acked += worker.acked
        assert acked + drained(world) == ["item"], steps


def _calls(world: World, do: Callable[[], None]) -> int:
    world.plan.reset()
    with world.plan.watched():
        do()
    return len(world.plan.calls)


@pytest.mark.parametrize("kind", [CRASH_BEFORE, CRASH_AFTER, ERROR])
def test_a_worker_that_dies_at_any_call_loses_and_doubles_nothing(world: World, kind: str) -> None:
    """What it acked is gone, what it held comes back when its lease ends."""
    for at in range(_calls(world, lambda: _work(world, Worker(world)))):
        worker = Worker(world)
        _break(world, kind, at, worker)
        drainer = drained(world)
        # A crash after the last commit leaves nobody to say that the item was acked.
        assert worker.acked + drainer in (["item"], []), world.plan.fired
        assert worker.acked + drainer or kind == CRASH_AFTER, world.plan.fired


@pytest.mark.parametrize("code", [code.name for code in UNKNOWN_OUTCOMES])
def test_a_lost_reply_at_any_call_loses_and_doubles_nothing(world: World, code: str) -> None:
    """The worker finds out by itself whether it leased, and whether it acked."""
    for at in range(_calls(world, lambda: _work(world, Worker(world)))):
        worker = Worker(world)
        _break(world, f"{REPLY_LOST}:{code}", at, worker)
        assert worker.acked + drained(world) == ["item"], world.plan.fired


def test_another_worker_at_any_call_gets_the_item_or_does_not(world: World) -> None:
    """While one call of a worker waits, another leases and acks: one of them has done it."""
    for at in range(_calls(world, lambda: _work(world, Worker(world)))):
        one, other = Worker(world), Worker(world)

        def overtake(other: Worker = other) -> None:
            world.clock.sleep(LEASE_S + 1)
            other.lease()
            other.ack()

        world.plan.on_fire = overtake
        _break(world, OVERLAP, at, one)
        assert one.acked + other.acked + drained(world) == ["item"], world.plan.fired


WORKS = {
    "ack": ("lease", "ack"),
    "renew": ("lease", "renew", "ack"),
    "release": ("lease", "release", "lease", "ack"),
    "ack again": ("lease", "ack", "ack_again"),
}


@pytest.mark.parametrize("fault", ["", ERROR, REPLY_LOST])
@pytest.mark.parametrize("work", WORKS)
def test_another_worker_between_a_fault_and_the_next_call_shares_no_ack(
    world: World, work: str, fault: str
) -> None:
    """P2: whichever call is broken, before the next one another worker leases and acks."""
    for at in range(_calls(world, lambda: _work(world, Worker(world), WORKS[work])) + 1):
        one, other = Worker(world), Worker(world)

        def overtake(other: Worker = other) -> None:
            world.clock.sleep(LEASE_S + 1)
            other.lease()
            other.ack()

        world.plan.on_fire = overtake
        faults = {at: fault, at + 1: OVERLAP} if fault else {at: OVERLAP}
        _break_all(world, faults, one, WORKS[work])
        assert sorted(one.acked + other.acked + drained(world)) == ["item"], world.plan.fired


def test_without_the_fence_a_late_ack_takes_anothers_item(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: an ack that looks at no version is found by the search."""
    sound = leasing.commit_if_current

    def unfenced(client: object, *, puts: object = (), deletes: object = ()) -> list[int]:
        for key, _ in deletes:  # type: ignore[attr-defined]
            key.delete()
        return sound(client, puts=puts) if puts else []  # type: ignore[arg-type]

    monkeypatch.setattr(leasing, "commit_if_current", unfenced)
    with pytest.raises(AssertionError):
        test_every_order_of_two_workers_steps_acks_each_item_once(world)


def _work(world: World, worker: Worker, steps: Sequence[str] = ("lease", "ack")) -> None:
    WORK.add(world.clients, "item", idempotency_key=world.clients.new_id())
    for step in steps:
        getattr(worker, step)()


def _break(world: World, kind: str, at: int, worker: Worker) -> None:
    """Add an item, and break a call of what the worker does; it tries once."""
    _break_all(world, {at: kind}, worker)
    if not items_of("work").fetch(keys_only=True) and not worker.acked and kind == CRASH_BEFORE:
        WORK.add(world.clients, "item")  # It died before it had added anything.


def _break_all(
    world: World, faults: Mapping[int, str], worker: Worker, steps: Sequence[str] = ("lease", "ack")
) -> None:
    world.plan.reset(more=faults)
    with world.plan.watched():
        try:
            _work(world, worker, steps)
        except Crash:
            world.bury()
        except rpc_errors.GoogleAPIError:
            pass
    world.plan.at, world.plan.more = None, {}
