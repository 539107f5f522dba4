"""Two workers in any history: clocks that jump, replies that are lost, errors, dead letters.

A model knows what each call must return: whose lease is the newest, when each item can be leased,
how often it was, and what is dead. A clock decides who may lease when; what is lost or done twice
it never decides.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollforward.datastore.transactions import transact
from rollforward.pull_queues import ItemId, Lease, PullQueue, leasing
from rollforward.pull_queues.entities import PullReceipt
from rollforward.runtime import Clients
from rollforward.testing.injection import UNKNOWN_OUTCOMES
from tests.infra.runs.soak import IS_SOAK
from tests.infra.world import Services, World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
LEASE_S = 30
MAX_DELIVERIES = 2
WORKERS = ("a", "b")
ACTS = (
    *("add", "add", "add_in_transaction", "lease", "lease", "lease", "lease_tag", "ack"),
    *("ack_again", "renew", "release", "replay", "jump", "jump"),
)
FAULTS = ("", "", *(f"{kind}:{code.name}" for kind in ("reply-lost", "error")
                    for code in UNKNOWN_OUTCOMES), "error:ABORTED")  # fmt: skip
Step = tuple[str, str, int, str]

_numbers = itertools.count()
steps = st.tuples(
    st.sampled_from(ACTS),
    st.sampled_from(WORKERS),
    st.sampled_from([-3600, -LEASE_S, -1, 0, 1, LEASE_S, 3600]),
    st.sampled_from(FAULTS),
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
    acked: list[Lease] = field(default_factory=list)  # By its last ack, with what that returned.
    lost: list[Lease] = field(default_factory=list)


@dataclass
class Known:
    """What the model knows of an item that is not acked."""

    tag: str | None
    ready: datetime.datetime
    deliveries: int = 0
    newest: Lease | None = None
    is_dead: bool = False


class Play:
    """Workers on one queue, and a model of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.queue = PullQueue(
            f"jumps-{next(_numbers)}", max_deliveries=MAX_DELIVERIES, partitions=1
        )
        clocks = {name: JumpingClock() for name in WORKERS}
        self.workers = {
            name: Worker(replace(world.clients, clock=clock), clock)
            for name, clock in clocks.items()
        }
        self.items: dict[ItemId, Known] = {}
        self.acked: list[ItemId] = []

    def do(self, action: str, who: str, seconds: int, fault: str) -> None:
        worker = self.workers[who]
        plan = self.world.plan
        plan.reset(fault, next_call="Commit" if fault else "")
        with plan.watched():
            getattr(self, action)(worker, seconds)
        plan.reset()

    def add(self, worker: Worker, seconds: int) -> None:
        tag = "tag" if seconds > 0 else None
        key = worker.clients.new_id()

        def add() -> ItemId:
            return self.queue.add(worker.clients, "item", tag=tag, idempotency_key=key)

        self._added(worker, tag, add)

    def add_in_transaction(self, worker: Worker, seconds: int) -> None:
        def add() -> ItemId:
            return transact(lambda: self.queue.add_in_transaction(worker.clients, "item"))

        self._added(worker, None, add)

    def _added(self, worker: Worker, tag: str | None, add: Callable[[], ItemId]) -> None:
        now_utc = worker.clock.time
        self.items[add()] = Known(tag, now_utc)

    def lease(self, worker: Worker, seconds: int) -> None:
        self._lease(worker, lambda item: True, {})

    def lease_tag(self, worker: Worker, seconds: int) -> None:
        self._lease(worker, lambda item: item.tag == "tag", {"tag": "tag"})

    def _lease(self, worker: Worker, is_asked: Callable[[Known], bool], options: Any) -> None:
        now_utc = worker.clock.time
        leases = self.queue.lease(worker.clients, limit=40, lease_s=LEASE_S, **options)
        expected = set()
        for id_, item in self.items.items():
            if item.is_dead or item.ready > now_utc or not is_asked(item):
                continue
            if item.deliveries == MAX_DELIVERIES:
                item.is_dead, item.newest = True, None
            else:
                item.deliveries += 1
                expected.add(id_)
        assert {each.id: each.deliveries for each in leases} == {
            id_: self.items[id_].deliveries for id_ in expected
        }
        self._take(worker, leases, now_utc)

    def ack(self, worker: Worker, seconds: int) -> None:
        worker.acked, worker.held = list(worker.held.values()), {}
        worker.lost = self._not_owned(worker.acked)
        done = [lease.id for lease in worker.acked if lease not in worker.lost]
        assert self.queue.ack(worker.clients, worker.acked) == worker.lost
        for id_ in done:
            del self.items[id_]
        self.acked += done

    def ack_again(self, worker: Worker, seconds: int) -> None:
        """Ack the same leases once more: the answer to the first ack was lost."""
        assert self.queue.ack(worker.clients, worker.acked[::-1]) == worker.lost[::-1]

    def renew(self, worker: Worker, seconds: int) -> None:
        now_utc, held = worker.clock.time, list(worker.held.values())
        lost = self._not_owned(held)
        renewed = self.queue.renew(worker.clients, held, lease_s=LEASE_S)
        assert {each.id for each in renewed} == {each.id for each in held if each not in lost}
        self._take(worker, renewed, now_utc)

    def release(self, worker: Worker, seconds: int) -> None:
        now_utc, held = worker.clock.time, list(worker.held.values())
        lost = self._not_owned(held)
        self.queue.release(worker.clients, held)
        if seconds > 0:
            worker.held = {}  # Otherwise it does not know that the release took effect.
        for each in held:
            if each not in lost:
                self.items[each.id].ready, self.items[each.id].newest = now_utc, None

    def replay(self, worker: Worker, seconds: int) -> None:
        now_utc = worker.clock.time
        dead = {id_ for id_, item in self.items.items() if item.is_dead}
        assert {letter.id for letter in self.queue.dead_letters()} == dead
        for id_ in sorted(dead)[:1]:
            assert self.queue.replay(worker.clients, id_)
            self.items[id_] = Known(self.items[id_].tag, now_utc)

    def jump(self, worker: Worker, seconds: int) -> None:
        worker.clock.sleep(seconds)

    def drain(self) -> None:
        """Ack what is left, by one whose clock is ahead of all others."""
        worker = self.workers["a"]
        for day in range(1, 4):
            worker.clock.time = NOON + datetime.timedelta(days=day)
            self.lease(worker, 0)
            self.ack(worker, 0)
            while any(item.is_dead for item in self.items.values()):
                self.replay(worker, 0)
        assert not self.items, "an item is lost"

    def _take(self, worker: Worker, leases: Sequence[Lease], now_utc: datetime.datetime) -> None:
        for each in leases:
            worker.held[each.id] = self.items[each.id].newest = each
            self.items[each.id].ready = now_utc + datetime.timedelta(seconds=LEASE_S)

    def _not_owned(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases that are not the newest of their items."""
        return [
            lease
            for lease in leases
            if lease.id not in self.items or self.items[lease.id].newest != lease
        ]


@pytest.fixture
def world(services: Services) -> World:
    """A world without a context: each history opens its own."""
    return World(services)


def play(world: World, plan: Sequence[Step]) -> None:
    """Play a history, then let what is left be acked: each item was acked once."""
    with world.clients.context():
        play = Play(world)
        for step in plan:
            play.do(*step)
        play.drain()
    assert len(set(play.acked)) == len(play.acked)


@settings(
    max_examples=400 if IS_SOAK else 40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(plan=st.lists(steps, min_size=4, max_size=16))
def test_each_item_is_acked_by_its_last_leaser_or_waits_in_any_history(
    world: World, plan: list[Step]
) -> None:
    """P2: each call returns what the model says, and in the end each item was acked once."""
    play(world, plan)


LOST = "reply-lost:UNAVAILABLE"


@pytest.mark.parametrize(
    ("bug", "plan"),
    [
        ("no receipts", [("add", "a"), ("lease", "a"), ("ack", "a", LOST), ("ack_again", "a")]),
        ("no fence", [("add", "a"), ("lease", "a"), ("jump", "b"), ("lease", "b"), ("ack", "a")]),
        ("no look", [("add", "a"), ("lease", "a", LOST), ("ack", "a")]),
    ],
)
def test_planted_bugs_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch, bug: str, plan: Sequence[Sequence[str]]
) -> None:
    """Histories that the search comes by."""
    sound = leasing.commit_if_current

    def unfenced(client: ndb.Client, *, puts: Any = (), deletes: Any = ()) -> list[int]:
        ndb.delete_multi([key for key, _ in deletes])
        return sound(client, puts=puts)

    patches: dict[str, tuple[str, Any]] = {
        "no receipts": ("ack_key", lambda queue, leases: ndb.Key(PullReceipt, str(next(_numbers)))),
        "no fence": ("commit_if_current", unfenced),
        "no look": ("OUTCOME_UNKNOWN", ()),
    }
    steps = [(action, worker, 3600, *(fault or [""])) for action, worker, *fault in plan]
    play(world, steps)

    monkeypatch.setattr(leasing, *patches[bug])
    with pytest.raises((AssertionError, rpc_errors.GoogleAPICallError)):
        play(world, steps)
