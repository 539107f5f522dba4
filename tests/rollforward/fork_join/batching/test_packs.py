"""Packs as a fold has them: what ndb would return, without its entities."""

from __future__ import annotations

import json

import pytest

from rollforward.datastore.transactions import NoTransactionError, pending_writes, transact
from rollforward.datastore.versions import read_versions
from rollforward.fork_join.batching.packs import list_packs, read_pack_versions, read_packs
from rollforward.fork_join.entities import PackId, WorkPack, pack_key, packs_of_epoch
from tests.infra.memory_datastore import stored_pack
from tests.infra.world import World

pytestmark = pytest.mark.fast

EPOCH = "c0ffee012345.20300501T120000000000.1a2b3c4d"
OTHER_EPOCH = "c0ffee012345.20300501T120000000001.1a2b3c4d"


def pack_of(id_: str, epoch: str = EPOCH, queue: str = "sums", items: int = 1) -> PackId:
    return PackId(queue, epoch, items, 0, id_)


PACKS = [pack_of("b", items=12), pack_of("a"), pack_of("ü.0")]  # In the order of their keys.


def put_packs() -> None:
    """Store packs with all their properties, and with the least of them, beside other packs."""
    given = {
        "tag": "red",
        "traceparents": "00-1 00-2",
        "keep_result": True,
        "failures": 2,
        "fails_alone": True,
    }
    others = [pack_of("a", OTHER_EPOCH), pack_of("a", queue="sums2"), pack_of("a").parked]
    for pack in [*PACKS, *others]:
        items = json.dumps([f"1ü{number}" for number in range(pack.items)], ensure_ascii=False)
        optional = given if pack is PACKS[0] else {}
        WorkPack(key=pack_key(pack.text), batch_key="k|ü", items=items, **optional).put()


def test_the_packs_of_an_epoch_are_listed_in_order(world: World) -> None:
    """D1: those that a query of ndb finds."""
    with world.clients.context():
        put_packs()

        listed = list_packs(world.clients, "sums", EPOCH, 10)

        assert listed == PACKS
        assert [pack.text for pack in listed] == [
            key.id() for key in packs_of_epoch("sums", EPOCH).fetch(keys_only=True)
        ]
        assert list_packs(world.clients, "sums", EPOCH, 2) == PACKS[:2]
        assert list_packs(world.clients, "nothing", EPOCH, 2) == []


def test_a_pack_is_read_as_ndb_reads_it(world: World) -> None:
    """D1: in the order of the question, also beside those that are gone; with its version."""
    asked = [PACKS[2], pack_of("gone"), PACKS[1], PACKS[0]]
    with world.clients.context():
        put_packs()
        rows = read_versions(world.clients.datastore, [pack_key(pack.text) for pack in asked])
        found = [None if row is None else stored_pack(row[0]) for row in rows]  # type: ignore[arg-type]

        assert transact(lambda: read_packs(asked)) == found
        assert found[1] is None
        assert read_pack_versions(world.clients, asked) == [
            (stored_pack(row[0]), row[1])  # type: ignore[arg-type]
            for row in rows
            if row is not None
        ]


def test_a_pack_is_deleted_with_the_transaction_and_not_before(world: World) -> None:
    """D1: a fold whose transaction fails has deleted nothing."""

    def delete(*, fails: bool) -> int:
        for pack in read_packs(PACKS[:2]):
            assert pack is not None
            pack.delete()
        if fails:
            raise KeyError
        return pending_writes()

    with world.clients.context():
        put_packs()

        with pytest.raises(KeyError):
            transact(lambda: delete(fails=True))
        assert list_packs(world.clients, "sums", EPOCH, 10) == PACKS

        assert transact(lambda: delete(fails=False)) == 2
        assert list_packs(world.clients, "sums", EPOCH, 10) == PACKS[2:]


def test_packs_are_read_in_a_transaction_alone(world: World) -> None:
    """Outside of one nothing would notice that they change."""
    with world.clients.context(), pytest.raises(NoTransactionError):
        read_packs(PACKS)
