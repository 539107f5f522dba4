"""Receipts go after 32 days, which no delivery of a task outlives; and no other goes."""

from __future__ import annotations

import datetime

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters import exact
from rollforward.counters.commits import Attempt
from rollforward.counters.entities import CounterReceipt, receipt_key
from rollforward.counters.increments import RECEIPTS_FOR
from rollforward.counters.pattern import EXPIRY
from rollforward.datastore import expiry
from rollforward.datastore.partitions import PARTITIONS
from rollforward.runtime import Clients
from tests.infra.world import Services, World
from tests.rollforward.counters.counts import LIKES, add, counter_world, receipts, total

LONGEST_DELIVERY = datetime.timedelta(days=31)


@pytest.fixture
def world(services: Services) -> World:
    return counter_world(services)


def delete(world: World) -> int:
    """Delete expired receipts, in all partitions."""
    with world.context():
        return sum(EXPIRY.delete_page(world.clients, partition) for partition in PARTITIONS)


def test_a_receipt_outlives_any_delivery_of_a_task(world: World) -> None:
    """E4: on its 31st day a redelivery is known; on its 33rd the receipt goes."""
    add(world, "a", idempotency_key="r")
    world.clock.sleep(LONGEST_DELIVERY.total_seconds())
    early = delete(world)
    repeated = add(world, "a", idempotency_key="r")
    world.clock.sleep(2 * 24 * 3600)
    late = delete(world)

    assert RECEIPTS_FOR > LONGEST_DELIVERY
    assert (early, repeated.is_duplicate, late) == (0, True, 1)
    assert total(world, "a") == 1
    assert receipts(world) == []


def test_the_sweep_deletes_receipts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """E4: of one partition each time; when that is much, a task does so for each of them."""
    monkeypatch.setattr(EXPIRY, "page_size", 4)
    expired = [f"{partition}{number}" for partition in PARTITIONS for number in range(6)]
    with world.context():
        ndb.put_multi(
            CounterReceipt(id=id_, commit="c", digest="d", expires=f"{id_[0]}20200101T00")
            for id_ in expired
        )
    add(world, "a", idempotency_key="r")
    world.sweep()
    world.settle()

    remaining = receipts(world)
    with world.context():
        assert [receipt.key for receipt in remaining] == [receipt_key("likes", "a", "r")]


def test_a_key_that_is_used_anew_while_the_sweep_is_at_it_keeps_its_receipt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: between the query and the deletion another sweep deletes, and a client repeats."""
    add(world, "a", idempotency_key="r")
    world.clock.sleep(33 * 24 * 3600)
    real_transact = expiry.transact

    def meanwhile(body: object) -> object:
        monkeypatch.setattr(expiry, "transact", real_transact)
        receipt_key("likes", "a", "r").delete()
        assert not LIKES.increment(world.clients, "a", idempotency_key="r").is_duplicate
        return real_transact(body)  # type: ignore[arg-type]

    monkeypatch.setattr(expiry, "transact", meanwhile)
    delete(world)

    assert len(receipts(world)) == 1
    assert add(world, "a", idempotency_key="r").is_duplicate
    assert total(world, "a") == 2


def test_a_commit_in_doubt_is_looked_for_once_more_at_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: the last attempt took effect, and neither it nor the first look was answered."""
    add(world, "a")
    write = exact.write

    def lose(clients: Clients, attempt: Attempt) -> None:
        write(clients, attempt)
        world.plan.break_next("Lookup", "error", 1)
        raise rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(exact, "MAX_ATTEMPTS", 1)
    monkeypatch.setattr(exact, "write", lose)

    assert not add(world, "a", idempotency_key="r").is_duplicate
    assert total(world, "a") == 2
