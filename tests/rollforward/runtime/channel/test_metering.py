"""The meter's count against the emulators' count, from which dollars are computed."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from google.cloud import ndb

from benchmarks.harness.proxies import proxy_before
from benchmarks.harness.wire_count import (
    CHARGED,
    MOST_PERCENT_APART,
    WireCount,
    apart,
    percent_apart,
)
from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients, Cost
from rollforward.runtime.channel import rpc
from rollforward.tasks import Retry, task
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast


class Coin(ndb.Model):
    """Something to count."""

    side = ndb.IntegerProperty(default=0)


@dataclass(frozen=True)
class Flip:
    """A flip of a coin, and its consequences."""

    name: str
    text: str = ""


flipped: set[str] = set()


@task("/tasks/tests/flip", queue="default")
def flip(clients: Clients, args: Flip) -> None:
    """Turn a coin over in a transaction, at the second delivery."""
    if args.name not in flipped:
        flipped.add(args.name)
        raise Retry("once more")

    def body() -> None:
        coin = Coin.get_by_id(args.name) or Coin(id=args.name)
        coin.side = 1 - coin.side
        coin.put()
        outbox.enqueue(clients, tell, Flip(args.name))

    transact(body)


@task("/tasks/tests/tell", queue="default")
def tell(clients: Clients, args: Flip) -> None:
    """Delete a coin."""
    ndb.Key(Coin, args.name).delete()


@dataclass
class Watched:
    """A world whose calls pass by something that counts them."""

    world: World
    count: WireCount

    def work(self) -> tuple[Cost, dict[str, int]]:
        """Do some of all that is charged; return the meter's count, and the wire's."""
        clients = self.world.clients
        with clients.context():
            ndb.put_multi([Coin(id=f"c{number}", side=number % 2) for number in range(30)])
            ndb.get_multi([ndb.Key(Coin, f"c{number}") for number in range(20, 40)])
            Coin.query().fetch(10, offset=3)
            Coin.query(Coin.side == 1).fetch(keys_only=True)
            Coin.query(Coin.side == 7).fetch()
            flip.enqueue_many(clients, [Flip(f"c{number}", "x" * 50_000) for number in range(3)])
            flip.enqueue(clients, Flip("c9"))
        self.world.settle()
        return clients.meter.total(), self.count.counts()


@pytest.fixture
def watched(services: Services) -> Iterator[Watched]:
    flipped.clear()
    attempts = services.cloud_tasks.engine.attempts
    count, begun = WireCount(), attempts.operations
    queue = copy.copy(services.cloud_tasks)
    with (
        proxy_before(services.datastore, count.saw) as datastore,
        proxy_before(queue.grpc_address, count.saw) as cloud_tasks,
    ):
        queue.grpc_address = cloud_tasks.address
        count.deliveries = lambda: attempts.operations - begun
        behind = dataclasses.replace(services, datastore=datastore.address, cloud_tasks=queue)
        yield Watched(World(behind, tasks=[flip, tell]), count)


def test_the_meter_counts_what_the_emulators_count(watched: Watched) -> None:
    """Not within a percent, but each operation: nothing is estimated."""
    cost, counts = watched.work()

    assert {name: cost.as_dict()[name] for name in CHARGED} == counts
    assert all(counts.values())
    assert apart(cost, Counter(counts)).met


@pytest.mark.parametrize("forgotten", CHARGED)
def test_a_meter_that_forgets_one_kind_of_operation_is_found_out(
    watched: Watched, forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark fails then, and names the kind."""
    add = rpc.Meter._add

    def forget(meter: rpc.Meter, spent: Cost, added: Cost) -> None:
        add(meter, spent, dataclasses.replace(added, **{forgotten: 0}))

    monkeypatch.setattr(rpc.Meter, "_add", forget)
    cost, counts = watched.work()

    percents = percent_apart(cost, counts)
    assert [name for name in CHARGED if percents[name] > MOST_PERCENT_APART] == [forgotten]
    result = apart(cost, Counter(counts))
    assert result.met is False
    assert forgotten.replace("_", " ") in result.versus


def test_half_a_percent_is_near_enough_and_two_are_not() -> None:
    """Calls between the two readings make no difference."""
    counts = Counter(dict.fromkeys(CHARGED, 1_000))

    def cost(reads: int) -> Cost:
        return Cost(**{**dict.fromkeys(CHARGED, 1_000), "reads": reads})

    assert apart(cost(1_005), counts).met
    assert apart(cost(1_020), counts).met is False
