"""Rows that are written without ndb, compared with those that it writes."""

from __future__ import annotations

import pytest

from rollforward.datastore.bodies import PlainRow, insert_rows
from rollforward.datastore.versions import protobuf_of
from rollforward.fork_join.entities import PackId, WorkPack, WorkReceipt, pack_key, receipt_key
from rollforward.fork_join.insert import _Pack
from rollforward.fork_join.items import Insertion
from tests.infra.world import World

PACK = PackId("q", "c0ffee012345.20300501T120000000000.1a2b3c4d", 2, 0, "id")


@pytest.mark.parametrize("tag", [None, "tag"])
@pytest.mark.parametrize("keep_result", [True, False])
def test_a_pack_is_the_row_that_ndb_writes(
    world: World, tag: str | None, keep_result: bool
) -> None:
    """Each property, indexed or not, and those that are not set; read again by ndb."""
    insertion = Insertion("ké", '{"a":1}', tag=tag, keep_result=keep_result, traceparent="t")
    entity = WorkPack(
        key=pack_key_here(world),
        batch_key="ké",
        items='[{"a":1},{"a":2}]',
        tag=tag,
        keep_result=keep_result or None,
        traceparents="t",
    )
    with world.context():
        row = _Pack(PACK, [insertion], '{"a":1},{"a":2}').row()
        assert row.protobuf(world.clients.datastore) == protobuf_of(entity)
        insert_rows(world.clients.datastore, [row])
        assert entity.key.get() == entity == row.entity()


def pack_key_here(world: World) -> object:
    with world.context():
        return pack_key(PACK.text)


def test_a_receipt_is_the_row_that_ndb_writes(world: World) -> None:
    """With the index that finds the expired ones."""
    with world.context():
        key = receipt_key("q", "k", "r")
        properties: dict[str, str | int] = {
            "pack": "p", "position": 3, "digest": "d", "expires": "0x"
        }  # fmt: skip
        entity = WorkReceipt(key=key, **properties)
        row = PlainRow(WorkReceipt, key, properties)
        assert row.protobuf(world.clients.datastore) == protobuf_of(entity)
