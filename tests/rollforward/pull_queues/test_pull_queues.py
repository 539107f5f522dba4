"""Pull queues: what is added waits, is leased to one worker at a time, and is acked once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import transact
from rollforward.pull_queues import (
    OLDEST,
    BadItemError,
    DifferentItemError,
    Lease,
    PullQueue,
    leasing,
    pattern,
)
from rollforward.pull_queues import add as adding
from rollforward.pull_queues.pattern import PullQueues
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, add, lease, payloads, waiting


def test_an_item_is_leased_to_one_worker_and_gone_after_its_ack(world: World) -> None:
    """Added, leased, acked: nobody else sees it meanwhile, and nobody after."""
    add(world, "a", "b", "c")

    leases = lease(world)

    assert payloads(leases) == ["a", "b", "c"]
    assert {item.deliveries for item in leases} == {1}
    assert lease(world) == []
    assert WORK.ack(world.clients, leases) == []
    assert waiting() == 0


def test_a_lease_takes_no_more_than_it_asks_for(world: World) -> None:
    add(world, *"abcdefgh")

    three, remaining = lease(world, 3), lease(world, 100)

    assert len(three) == 3
    assert payloads(three + remaining) == list("abcdefgh")


def test_an_item_that_is_not_acked_comes_back(world: World) -> None:
    """A worker that died delays its items by its lease, and no longer."""
    add(world, "a")
    lease(world, lease_s=30)
    world.clock.sleep(29)
    assert lease(world) == []

    world.clock.sleep(2)

    [second_lease] = lease(world)
    assert (second_lease.payload, second_lease.deliveries) == ("a", 2)


def test_a_renewed_lease_lasts_longer_and_has_a_new_fence(world: World) -> None:
    add(world, "a")
    [leased] = lease(world, lease_s=30)
    world.clock.sleep(20)
    [renewed] = WORK.renew(world.clients, [leased], lease_s=30)
    world.clock.sleep(20)

    assert lease(world) == []
    assert WORK.ack(world.clients, [leased]) == [leased]
    assert WORK.ack(world.clients, [renewed]) == []


def test_a_lease_is_renewed_for_a_minute_unless_it_says_otherwise(world: World) -> None:
    add(world, "a")
    WORK.renew(world.clients, lease(world))

    world.clock.sleep(60 - 0.001)
    assert lease(world) == []
    world.clock.sleep(0.001)
    assert lease(world)[0].deliveries == 2


def test_a_released_item_can_be_leased_at_once_or_later(world: World) -> None:
    add(world, "a")
    WORK.release(world.clients, lease(world))
    WORK.release(world.clients, lease(world), delay_s=10)

    assert lease(world) == []
    world.clock.sleep(11)
    assert lease(world)[0].deliveries == 3


def test_leases_by_tag_leave_the_others(world: World) -> None:
    add(world, "a1", "a2", tag="a")
    add(world, "b1", tag="b")
    add(world, "none")

    assert payloads(lease(world, tag="a")) == ["a1", "a2"]
    assert payloads(lease(world, tag="c")) == []
    assert payloads(lease(world)) == ["b1", "none"]


def test_the_oldest_items_tag_is_leased(world: World) -> None:
    """What belongs together with the item that waits longest, and nothing else."""
    add(world, "b1", tag="b")
    world.clock.sleep(1)
    add(world, "a1", "a2", "a3", tag="a")
    world.clock.sleep(1)
    add(world, "b2", tag="b")

    assert payloads(lease(world, tag=OLDEST)) == ["b1", "b2"]
    assert payloads(lease(world, tag=OLDEST)) == ["a1", "a2", "a3"]
    assert lease(world, tag=OLDEST) == []


def test_items_without_a_tag_are_a_group_of_their_own(world: World) -> None:
    """When the item that waits longest has no tag, those without one are leased together."""
    add(world, "none1")
    world.clock.sleep(1)
    add(world, "a1", tag="a")
    world.clock.sleep(1)
    add(world, "none2")

    assert payloads(lease(world, tag=OLDEST)) == ["none1", "none2"]
    assert payloads(lease(world, tag=OLDEST)) == ["a1"]


def test_a_renewal_that_lands_late_is_known_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit got no reply, and was not there when the worker looked: then it was."""
    add(world, "a", "b")
    leases = lease(world, lease_s=30)
    sound, under_way = leasing.commit_if_current, []

    def hang(client: object, *, puts: object) -> list[int]:
        monkeypatch.setattr(leasing, "commit_if_current", sound)
        under_way.append(puts)
        raise rpc_errors.DeadlineExceeded("no reply")

    def land(clock: object, seconds: float) -> None:
        sound(world.clients.datastore, puts=under_way.pop())

    monkeypatch.setattr(leasing, "commit_if_current", hang)
    with monkeypatch.context() as late:
        late.setattr(type(world.clients.clock), "sleep", land)
        renewed = WORK.renew(world.clients, leases, lease_s=90)

    assert payloads(renewed) == ["a", "b"]
    assert WORK.ack(world.clients, renewed) == []


def test_an_idempotency_key_adds_once(world: World) -> None:
    """Added again before and after its ack, it stays one item; another item is refused."""
    item_id = WORK.add(world.clients, "a", idempotency_key="k")
    assert WORK.add(world.clients, "a", idempotency_key="k") == item_id
    WORK.ack(world.clients, lease(world))

    assert WORK.add(world.clients, "a", idempotency_key="k") == item_id
    assert waiting() == 0
    with pytest.raises(DifferentItemError):
        WORK.add(world.clients, "b", idempotency_key="k")


@pytest.mark.parametrize("page_size", [1, 2, 500])
def test_receipts_go_after_a_day(
    world: World, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    """An idempotency key is known until then, whichever worker sweeps; one sweep takes them all."""
    monkeypatch.setattr(pattern, "MAX_KEYS", page_size)
    for key in ("k", "k2", "k3"):
        WORK.add(world.clients, "a", idempotency_key=key)
    world.clock.sleep(24 * 3600 - 1)
    assert PullQueues().delete_expired(world.clients) == 0
    WORK.add(world.clients, "a", idempotency_key="k")
    assert waiting() == 3
    world.clock.sleep(2)

    assert PullQueues().delete_expired(world.clients) == 3
    WORK.add(world.clients, "a", idempotency_key="k")
    assert waiting() == 4


def test_an_item_joins_a_transaction(world: World) -> None:
    """Added with the data or not at all, each as it says; twice the same in one body is two."""

    def body(fails: bool) -> None:
        WORK.add_in_transaction(world.clients, "a")
        WORK.add_in_transaction(world.clients, "a", tag="t")
        WORK.add_in_transaction(world.clients, "a", tag="t")
        WORK.add_in_transaction(world.clients, "later", tag="t", delay_s=60)
        if fails:
            raise KeyError("no")

    with pytest.raises(KeyError):
        transact(lambda: body(True))
    assert waiting() == 0

    transact(lambda: body(False))
    assert payloads(lease(world, tag="t")) == ["a", "a"]
    assert payloads(lease(world)) == ["a"]
    world.clock.sleep(59)
    assert lease(world, tag="t") == []
    world.clock.sleep(2)
    assert "later" in payloads(lease(world, tag="t"))


def test_a_body_that_runs_again_adds_its_items_once(world: World) -> None:
    """The commit's reply was lost, so the body ran twice: the ids are those of the first run."""
    world.plan.reset("reply-lost", next_call="Commit")
    with world.plan.watched():
        transact(lambda: WORK.add_in_transaction(world.clients, "a"))

    assert world.plan.fired
    assert waiting() == 1


def test_a_body_that_runs_again_brings_back_no_item_that_was_acked(world: World) -> None:
    """P4: the commit's reply was lost, and a worker was done before the body ran again."""
    done: list[str] = []
    runs = itertools.count(1)

    def work() -> None:
        with world.clients.context():
            leases = lease(world)
            assert WORK.ack(world.clients, leases) == []
            done.extend(payloads(leases))

    def body() -> None:
        if next(runs) == 2:
            with world.plan.unwatched():
                in_threads(work)
        WORK.add_in_transaction(world.clients, "a")
        WORK.add_in_transaction(world.clients, "a")

    world.plan.reset("reply-lost", next_call="Commit")
    with world.plan.watched():
        transact(body)

    assert next(runs) == 3
    assert done == ["a", "a"]
    assert waiting() == 0


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_lease_at_the_same_time_share_no_item(world: World, workers: int) -> None:
    """Each item has one owner, however many lease at once."""
    add(world, *(str(i) for i in range(40)))
    leases: list[Lease] = []

    def work() -> None:
        with world.clients.context():
            for _ in range(30):
                leases.extend(WORK.lease(world.clients, limit=5))

    in_threads(*[work] * workers)

    assert len({item.id for item in leases}) == len(leases)
    assert len(leases) + len(lease(world, 100)) == 40


@pytest.mark.parametrize(
    ("payload", "tag", "key"),
    [
        ("x" * 100_001, None, None),
        ("é" * 50_001, None, None),
        ("x", "", None),
        ("x", "t" * 201, None),
        ("x", None, ""),
        ("x", None, "k" * 201),
        (b"x", None, None),
        ("x", 17, None),
        ("x", None, 17),
        ("x\ud83d", None, None),
        ("x", "t\ud83d", None),
    ],
)
def test_what_cannot_be_added_is_refused(world: World, payload: Any, tag: Any, key: Any) -> None:
    with pytest.raises(BadItemError):
        WORK.add(world.clients, payload, tag=tag, idempotency_key=key)

    assert waiting() == 0


@pytest.mark.parametrize("delay_s", [math.nan, math.inf, -math.inf, 1e12])
def test_a_delay_without_an_end_is_refused(world: World, delay_s: float) -> None:
    """An item is added, or a lease is given back, at a time that a row can have."""
    add(world, "a")
    leases = lease(world)
    with pytest.raises(BadItemError, match="delay_s must be at most ten years"):
        WORK.add(world.clients, "b", delay_s=delay_s)
    with pytest.raises(BadItemError, match="delay_s must be at most ten years"):
        transact(lambda: WORK.add_in_transaction(world.clients, "b", delay_s=delay_s))
    with pytest.raises(BadItemError, match="delay_s must be at most ten years"):
        WORK.release(world.clients, leases, delay_s=delay_s)
    assert WORK.ack(world.clients, leases) == []
    assert waiting() == 0


def test_limits_of_a_lease(world: World) -> None:
    for wrong in ({"limit": 0}, {"limit": 1001}, {"lease_s": 0}, {"lease_s": 8 * 24 * 3600}):
        with pytest.raises(ValueError, match=r"^(limit|lease_s) must be between 1 and "):
            WORK.lease(world.clients, **wrong)  # type: ignore[arg-type]


def test_a_lease_reads_no_more_when_more_waits(world: World) -> None:
    """No read grows with the backlog: a lease of one item costs the same at 1 and at 60."""
    one = PullQueue("one", partitions=1)

    def cost_of_a_lease() -> object:
        cost_before = world.clients.meter.cost()
        assert len(one.lease(world.clients)) == 1
        return world.clients.meter.cost() - cost_before

    one.add(world.clients, "first")
    alone = cost_of_a_lease()
    for i in range(60):
        one.add(world.clients, str(i))

    assert cost_of_a_lease() == alone


def test_the_oldest_tag_is_that_of_the_item_that_waits_longest(world: World) -> None:
    """Whichever of the partitions it stands in."""
    for number in range(12):
        add(world, f"item {number:02d}", tag=f"tag-{number}")
        world.clock.sleep(1)

    leased = [payloads(lease(world, tag=OLDEST)) for _ in range(12)]

    assert leased == [[f"item {number:02d}"] for number in range(12)]


def test_an_idempotency_key_of_another_queue_is_another(world: World) -> None:
    ids = {
        queue.add(world.clients, payload, idempotency_key="k")
        for queue, payload in ((WORK, "a"), (PullQueue("others"), "b"), (WORK, "a"))
    }

    assert len(ids) == 2
    assert payloads(lease(world)) == ["a"]


def test_a_payload_of_the_largest_size_is_kept(world: World) -> None:
    largest = "é" * 50_000
    add(world, largest)

    assert payloads(lease(world)) == [largest]


def test_two_queues_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="a name of its own"):
        PullQueues().check([WORK, PullQueue("work")])
    with pytest.raises(ValueError, match="name"):
        PullQueue("Work")


def test_a_hundred_of_the_largest_items_are_leased_and_acked(world: World) -> None:
    """More than one commit takes: neither the lease nor the ack grows beyond a request."""
    one = PullQueue("large", partitions=1)
    for _ in range(100):
        one.add(world.clients, "x" * 100_000)

    leases = one.lease(world.clients, limit=100)

    assert len({item.id for item in leases}) == 100
    assert one.ack(world.clients, leases) == []
    assert one.lease(world.clients) == []


def test_an_add_whose_outcome_is_unknown_brings_nothing_back(world: World) -> None:
    """The reply was lost, and a worker acked the item before the caller looked: it stays done."""

    def work() -> None:
        WORK.ack(world.clients, lease(world))

    world.plan.reset(more={0: "reply-lost", 1: "overlap"})
    world.plan.on_fire = work
    with world.plan.watched(), pytest.raises(rpc_errors.ServiceUnavailable):
        WORK.add(world.clients, "a")

    assert waiting() == 0


def test_an_expired_receipt_in_the_way_loses_no_item(world: World) -> None:
    """It stood there, and the sweep deleted it before the caller looked: the add is made again."""
    WORK.add(world.clients, "a", idempotency_key="k")
    WORK.ack(world.clients, lease(world))
    world.clock.sleep(25 * 3600)
    world.plan.reset("overlap", 1)
    world.plan.on_fire = lambda: PullQueues().delete_expired(world.clients)
    with world.plan.watched():
        WORK.add(world.clients, "a", idempotency_key="k")

    assert world.plan.fired
    assert waiting() == 1


def test_a_receipt_that_is_used_anew_stays(world: World) -> None:
    """The sweep found it expired; since then its key was used again: deleting it would double."""
    WORK.add(world.clients, "a", idempotency_key="k")
    world.clock.sleep(25 * 3600)
    world.plan.reset("overlap", next_call="BeginTransaction")

    def used_anew() -> None:
        PullQueues().delete_expired(world.clients)
        WORK.add(world.clients, "a", idempotency_key="k")

    world.plan.on_fire = used_anew
    with world.plan.watched():
        PullQueues().delete_expired(world.clients)

    assert world.plan.fired
    WORK.add(world.clients, "a", idempotency_key="k")
    assert waiting() == 2


@pytest.mark.parametrize("idempotency_key", [None, "r"])
def test_an_add_that_loses_a_race_is_made_again(world: World, idempotency_key: str | None) -> None:
    """Nothing was written then; it is raised when it is lost each time, and nothing is there."""
    world.plan.reset("error:ABORTED", next_call="Commit")
    with world.plan.watched():
        WORK.add(world.clients, "a", idempotency_key=idempotency_key)
    assert world.plan.fired
    assert payloads(lease(world)) == ["a"]

    world.plan.reset(more=dict.fromkeys(range(0, 20, 2), "error:ABORTED"))
    other = idempotency_key and "another"
    with world.plan.watched(), pytest.raises(rpc_errors.GoogleAPICallError):
        WORK.add(world.clients, "b", idempotency_key=other)

    assert world.plan.calls.count("Commit") == adding.MAX_ATTEMPTS
    assert waiting() == 1
