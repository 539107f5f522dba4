"""Rows that are written without ndb, compared with those that it writes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.cloud.datastore import helpers
from google.cloud.ndb import model

from rollforward.datastore.bodies import PlainRow, insert_rows
from rollforward.datastore.conversion.protobufs import Converter, protobuf_of
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.fork_join.entities import PackId, WorkPack, WorkReceipt, pack_key, receipt_key
from rollforward.fork_join.insert import _Pack
from rollforward.fork_join.items import Insertion
from rollforward.runtime.clock import naive_utc
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
        row = PlainRow(WorkReceipt, key.id(), properties)
        assert row.protobuf(world.clients.datastore) == protobuf_of(entity)


def test_a_row_that_was_read_is_written_as_by_the_client_library(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times have a type of the library's own; it is converted without the library."""
    with world.context():
        created = naive_utc(datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC))
        FlowRun(key=run_key("f|1"), args="{}", created=created, started_by="t").put()
        row = run_key("f|1").get()
        row.due = created
        expected = helpers.entity_to_protobuf(model._entity_to_ds_entity(row))._pb
        monkeypatch.delattr(helpers, "entity_to_protobuf")
        assert protobuf_of(row) == expected


def test_a_row_that_is_converted_again_is_as_one_that_is_converted_anew(world: World) -> None:
    """Whatever has changed since: to a value and to none, of the same row and of another."""
    with world.context():
        created = naive_utc(datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC))
        row = FlowRun(key=run_key("f|1"), args="{}", created=created, started_by="t")
        row.put()
        rows = [row, run_key("f|1").get(use_cache=False), row]
        changes: list[dict[str, Any]] = [
            {},
            {"steps": {"a": {"kind": "outside"}}, "owner": "o", "due": created},
            {"steps": {"a": {}, "b": {}}, "lease_expires_at": created},
            {"due": None, "owner": None, "skips_unknown": True, "sweeps": 3},
            {"state": "succeeded", "result": "é", "expires": "0x"},
            {"args": "x" * 2_000, "skips_unknown": False},
        ]
        converter = Converter()
        for entity in rows:
            for change in changes:
                entity.populate(**change)
                assert converter.protobuf_of(entity) == protobuf_of(entity)
