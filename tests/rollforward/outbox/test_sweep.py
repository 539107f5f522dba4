"""The sweep: rows that it relays, hands over, and skips."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox.entities import PARTITIONS, OutboxTask, RowId, lease_key
from rollforward.outbox.relay import RelayResult
from rollforward.outbox.sweep import LEASE_S, Drain, _lease, _take, drain, sweep
from rollforward.runtime import Clients, naive_utc
from rollforward.testing.injection import Crash
from tests.infra.clocks import ahead
from tests.infra.runs import sampling
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.outbox.order_tasks import (
    Order,
    Settle,
    Step,
    dying,
    ran,
    rows_here,
    settle,
    step,
    waiting,
)
from tests.rollforward.outbox.rows import (
    SWEEP,
    away,
    deliver_drains,
    enqueue,
    enqueue_unacked,
    sent,
    spend,
    strand,
    stranded_row,
)

# The sweep


def test_an_idle_sweep_costs_one_query(world: World) -> None:
    """Called once a minute for ever, it must cost next to nothing."""
    cost = spend(world)

    assert (cost.round_trips, cost.reads, cost.writes, cost.tasks) == (1, 0, 0, 0)


def test_a_young_row_is_left_to_its_process(world: World) -> None:
    """A row that was just committed is not the sweep's: its process is about to relay it."""
    strand(world, 3)

    cost = spend(world)

    assert (cost.round_trips, cost.tasks, cost.writes) == (1, 0, 0)
    assert len(waiting(world)) == 3


def test_a_few_stranded_rows_are_relayed_by_the_sweep_itself(world: World) -> None:
    """B1: up to a hundred rows need no task of their own."""
    strand(world, 100)
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)

    assert (swept.created, swept.partitions) == (100, 0)
    assert len(sent(world)) == 100
    assert waiting(world) == []


def test_many_stranded_rows_are_walked_by_partition(world: World) -> None:
    """B1: above a hundred, each partition that has more gets a task, and those relay the rows."""
    strand(world, 300)
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)
        partitions = {row.key.id()[0] for row in rows_here()}
    deliver_drains(world)

    assert (swept.created, swept.partitions) == (100, len(partitions))
    assert len(sent(world)) == 300
    assert waiting(world) == []
    with world.context():
        assert ndb.get_multi([lease_key(p) for p in PARTITIONS]) == [None] * 16


def test_one_partition_with_more_than_a_sweep_sees_gets_a_walk(world: World) -> None:
    """B5: behind the first hundred rows of a partition there may be more that are due."""
    with world.context():
        at = naive_utc(world.clock.now())
        Order(id="o").put()
        ids = [RowId("a" * 24, at, number, is_unacked=False) for number in range(150)]
        ndb.put_multi([stranded_row(id_, number, {}) for number, id_ in enumerate(ids)])
    world.clock.sleep(60)

    with world.context():
        swept = sweep(world.clients)
    deliver_drains(world)

    assert (swept.created, swept.partitions) == (100, 1)
    assert len(sent(world)) == 150


def test_a_partition_with_more_than_a_task_drains_is_walked_in_several(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: of three rows a task, also of unacked ones, which stay; the last task gives it back."""
    monkeypatch.setattr(SWEEP, "MAX_PER_DRAIN", 3)
    with world.context():
        at = naive_utc(world.clock.now())
        Order(id="o").put()
        ids = [RowId("a" * 24, at, number, is_unacked=True) for number in range(8)]
        ndb.put_multi([stranded_row(id_, number, {}) for number, id_ in enumerate(ids)])
    world.clock.sleep(60)

    with world.context():
        drain.work(world.clients, Drain("a", "walk"))
        by_the_first = len(sent(world))
    drained = deliver_drains(world)

    assert (by_the_first, drained) == (3, 2)
    assert len(sent(world)) == 8
    with world.context():
        assert lease_key("a").get() is None


def test_the_oldest_rows_come_first(world: World) -> None:
    """B5: in any partition, a row does not wait for a younger one."""
    with world.context():
        Order(id="o").put()
        for partition, count in (("f", 60), ("0", 100)):
            at = naive_utc(world.clock.now())
            ids = [RowId(partition * 24, at, number, is_unacked=False) for number in range(count)]
            ndb.put_multi([stranded_row(id_, number, {}) for number, id_ in enumerate(ids)])
            world.clock.sleep(30)
        sweep(world.clients)

        per_partition = Counter(row.key.id()[0] for row in rows_here())
    assert per_partition == {"0": 60}


def test_two_walks_do_not_do_the_same_work(world: World) -> None:
    """While one walk has a partition, another leaves it alone; it takes over when that is dead."""
    strand(world, 4)
    world.clock.sleep(60)
    [one, *_] = waiting(world)
    partition = one.key.id()[0]

    with world.context():
        _take(world.clients, Drain(partition, "first"))
        drain.work(world.clients, Drain(partition, "second"))
        left_alone = len(sent(world))
        drain.work(world.clients, Drain(partition, "first"))
        by_its_owner = len(sent(world))
    strand_in(world, partition)
    world.clock.sleep(61)
    with world.context():
        _take(world.clients, Drain(partition, "dead"))
        world.clock.sleep(LEASE_S)
        drain.work(world.clients, Drain(partition, "third"))

    assert left_alone == 0
    assert by_its_owner >= 1
    assert [row for row in waiting(world) if row.key.id()[0] == partition] == []


def test_a_walk_that_was_overtaken_gives_back_no_lease_but_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was held up until another one had taken its partition: that one keeps it."""
    strand_in(world, "a")
    world.clock.sleep(60)
    relay = SWEEP.relay

    def held_up(clients: Clients, rows: Sequence[OutboxTask]) -> RelayResult:
        world.clock.sleep(LEASE_S)
        assert transact(lambda: _take(clients, Drain("a", "second")))
        return relay(clients, rows)  # type: ignore[no-any-return]

    monkeypatch.setattr(SWEEP, "relay", held_up)

    with world.context():
        drain.work(world.clients, Drain("a", "first"))

        lease = lease_key("a").get()
    assert (lease.owner, waiting(world)) == ("second", [])


def strand_in(world: World, partition: str) -> None:
    with world.context():
        row = RowId(partition * 24, naive_utc(world.clock.now()), 0, is_unacked=False)
        stranded_row(row, 99, {}).put()


def test_a_lease_of_a_clock_far_ahead_is_taken_over(world: World) -> None:
    """A process whose clock is a day ahead does not block a partition."""
    strand_in(world, "a")
    world.clock.sleep(60)

    with world.context():
        _take(ahead(world.clients, 86_400), Drain("a", "wrong"))
        drain.work(world.clients, Drain("a", "right"))

    assert waiting(world) == []


@pytest.mark.parametrize("ahead_s", [3_600, 365 * 86_400])
def test_rows_of_a_clock_far_ahead_are_swept(world: World, ahead_s: int) -> None:
    """B5: a process whose clock was wrong delays its tasks by no more than another."""
    clients = ahead(dying(world), ahead_s)

    with world.context():
        enqueue(clients, "pack")
        transact(lambda: enqueue_unacked(clients))
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["pack", "settle"])
    assert waiting(world) == []


def test_rows_of_a_clock_far_ahead_are_handed_over_with_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: more than the sweep relays itself; that the last one looks young says nothing."""
    monkeypatch.setattr(SWEEP, "MAX_PER_CALL", 2)
    clients = ahead(dying(world), 3_600)
    with world.context():
        for number in range(5):
            row = RowId("a" * 24, naive_utc(clients.clock.now()), number, is_unacked=False)
            stranded_row(row, number, {}).put()

    world.sweep()
    deliver_drains(world)

    assert waiting(world) == []
    assert len(sent(world)) == 5


# A row with a time of its own


@pytest.mark.parametrize("is_unacked", [False, True], ids=["enqueued", "unacked"])
def test_a_delayed_row_that_waited_long_gets_its_task_before_its_time(
    world: World, is_unacked: bool
) -> None:
    """B5: Cloud Tasks or cron was away for ten minutes: the outbox does not keep it for a week."""
    at = world.clock.now() + datetime.timedelta(days=7)
    clients = dying(world)

    def body() -> None:
        Order(id="o").put()
        if is_unacked:
            outbox.enqueue_with_ack(clients, settle, lambda row: Settle("o", row), tag="t", at=at)
        else:
            outbox.enqueue(clients, step, Step("o", "x"), at=at)

    with world.context():
        transact(body)
    world.clock.sleep(700)
    for _ in range(3):
        world.sweep()
        world.clock.sleep(60)

    assert len(sent(world, "fan-out" if is_unacked else "default")) == 1
    assert len(waiting(world)) == is_unacked


# A queue of walks that stands still


def test_a_queue_that_stands_still_does_not_stop_the_sweep(world: World) -> None:
    """B5: while no walk is delivered, each sweep relays a hundred; walks do not pile up."""
    queue = world.engine.place.queue_name("outbox")
    world.engine.pause_queue(queue)
    strand(world, 450)

    try:
        for _ in range(5):
            world.clock.sleep(60)
            with world.context():
                sweep(world.clients)
        walks = len(world.live_tasks("outbox"))
    finally:
        world.engine.resume_queue(queue)

    assert len(sent(world)) == 450
    assert waiting(world) == []
    assert walks <= len(PARTITIONS)


@sampling.long
@one_emulator
def test_what_a_round_could_not_hand_over_is_due_in_the_next_one(world: World) -> None:
    """B5: walks that an earlier round asked for may be past these rows already."""
    with world.context():
        at = naive_utc(world.clock.now())
        Order(id="o").put()
        ids = [RowId(f"{i % 16:x}{i:023x}", at, 0, is_unacked=True).text for i in range(250)]
        values = {"path": settle.path, "queue": settle.queue, "tag": "t"}
        ndb.put_multi(
            [
                OutboxTask(id=id_, body=json.dumps({"order": "o", "row": id_}), **values)
                for id_ in ids
            ]
        )
        world.clock.sleep(720)
        ndb.put_multi([_lease(world.clients, Drain(p, "early"), 600) for p in PARTITIONS])

    leases = []
    for _ in range(3):
        world.sweep()
        deliver_all(world, "fan-out")
        leases.append(len(waiting(world)))
        world.clock.sleep(60)

    assert leases == [150, 50, 0]


def deliver_all(world: World, queue: str) -> None:
    name = world.engine.place.queue_name(queue)
    while due := world.engine.due(name):
        assert world.deliver(due[0].task_name) == 204


def test_walks_that_cannot_be_asked_for_are_asked_for_by_the_next_sweep(world: World) -> None:
    """B5: if Cloud Tasks refuses the walks once, the next sweep enqueues them a minute later."""
    strand(world, 300)
    world.clock.sleep(60)

    with world.context():
        clients = replace(world.clients, tasks=away(world))
        with pytest.raises(rpc_errors.GoogleAPICallError):
            sweep(clients)
        swept = sweep(world.clients)
    deliver_drains(world)

    assert swept.partitions > 0
    assert len(sent(world)) == 300


def test_walks_that_a_process_died_before_asking_for_are_asked_for_two_minutes_later(
    world: World,
) -> None:
    """B5: their leases are for a walk that never comes, and do not last as long as for one."""
    strand(world, 300)
    world.clock.sleep(60)

    class Dies:
        def create_many(self, messages: object) -> None:
            raise Crash

        def __getattr__(self, name: str) -> object:
            return getattr(world.clients.tasks, name)

    tasks: Any = Dies()
    with world.context():
        with pytest.raises(Crash):
            sweep(replace(world.clients, tasks=tasks))
        for _ in range(2):
            world.clock.sleep(60)
            partitions = sweep(world.clients).partitions
            if partitions:
                break
    deliver_drains(world)

    assert partitions > 0
    assert len(sent(world)) == 300


@sampling.long
@one_emulator
def test_rows_that_are_young_get_no_walk(world: World) -> None:
    """However many were just committed: they are their processes' own."""
    strand(world, 3_000)

    with world.context():
        swept = sweep(world.clients)

    assert (swept.created, swept.partitions) == (0, 0)


def test_young_rows_behind_old_ones_get_no_walk(world: World) -> None:
    """The sweep relays the old rows itself; rows behind a young one are young, too."""
    with world.context():
        Order(id="o").put()
        for count in (40, 80):
            world.clock.sleep(10)
            at = naive_utc(world.clock.now())
            ids = [RowId("a" * 24, at, number, is_unacked=False) for number in range(count)]
            ndb.put_multi([stranded_row(id_, number, {}) for number, id_ in enumerate(ids)])
        world.clock.sleep(10)

        swept = sweep(world.clients)

    assert (swept.created, swept.partitions) == (40, 0)


def test_a_sweep_at_the_start_takes_what_a_moment_ago_was_young(world: World) -> None:
    """B5: a starting worker takes rows of its predecessor at any age."""
    strand(world, 300)
    world.clock.sleep(1)

    with world.context():
        swept = sweep(world.clients, stale_s=0.5)
    deliver_drains(world)

    assert swept.created == 100
    assert len(sent(world)) == 300
