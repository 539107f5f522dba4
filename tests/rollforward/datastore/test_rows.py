"""Rows of one text: read by name, in order, at a moment, and written all or none."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import calls, rows
from rollforward.datastore.rows import Name
from rollforward.streams.entities import StreamSlab
from tests.infra.faults.short_answers import whole
from tests.infra.world import World

pytestmark = pytest.mark.fast

A, B, C = (Name("StreamSlab", name) for name in ("p:a", "p:b", "p:c"))


def client_of(world: World) -> ndb.Client:
    return world.clients.datastore


def bodies(world: World) -> list[bytes | None]:
    found, _ = rows.read(client_of(world), [A, B, C])
    return [None if row is None else row.body for row in found]


def test_rows_are_written_all_or_none(world: World) -> None:
    """What is not as the commit expects leaves everything as it was."""
    client = client_of(world)
    first, second = rows.commit(client, inserts=[(A, b"1"), (B, b"2")])
    [third] = rows.commit(client, puts=[(A, b"3", first)], deletes=[(B, second)])
    assert bodies(world) == [b"3", None, None]

    for refused in (
        {"puts": [(A, b"4", first)], "inserts": [(C, b"5")]},
        {"puts": [(B, b"4", second)], "inserts": [(C, b"5")]},
        {"puts": [(A, b"4", third)], "inserts": [(A, b"5")]},
        {"deletes": [(A, first)], "inserts": [(C, b"5")]},
    ):
        with pytest.raises(
            (rpc_errors.FailedPrecondition, rpc_errors.NotFound, rpc_errors.AlreadyExists,
             rpc_errors.InvalidArgument)
        ):  # fmt: skip
            rows.commit(client, **refused)  # type: ignore[arg-type]
    assert bodies(world) == [b"3", None, None]

    assert rows.commit(client, deletes=[(A, None), (C, None)]) == []
    assert bodies(world) == [None, None, None]


def test_rows_are_found_in_order_of_their_names(world: World) -> None:
    client = client_of(world)
    rows.commit(client, inserts=[(C, b"3"), (A, b"1"), (B, b"2")])

    found = rows.scan(client, "StreamSlab", "p:a", "p:c", 10)
    assert [(row.name, row.body) for row in found] == [("p:a", b"1"), ("p:b", b"2")]
    [versioned] = rows.scan(client, "StreamSlab", "p:b", "p:z", 1)
    rows.commit(client, puts=[(B, b"4", versioned.version)])  # A scan tells versions, too.
    assert rows.first_names(client, "StreamSlab", "p:b", "p:z", 9) == ["p:b", "p:c"]
    assert rows.first_names(client, "StreamSlab", "p:d", "p:z", 9) == []


def test_a_moment_is_seen_as_it_was_where_the_service_has_snapshots(world: World) -> None:
    client = client_of(world)
    [version] = rows.commit(client, inserts=[(A, b"1")])
    [before], moment = rows.read(client, [A])
    rows.commit(client, puts=[(A, b"2", version)], inserts=[(B, b"3")])

    assert (moment is None) == (world.services.datastore_kind == "datastore")
    if moment is not None:
        assert rows.read(client, [A, B], moment)[0] == [before, None]
        assert rows.first_names(client, "StreamSlab", "p:b", "p:z", 9, moment) == []
    assert bodies(world) == [b"2", b"3", None]


def test_ndb_reads_what_is_written_here(world: World) -> None:
    rows.commit(client_of(world), inserts=[(A, b'{"a":[1]}')])
    with world.context():
        assert StreamSlab.get_by_id("p:a").body == {"a": [1]}
        StreamSlab(id="p:b", body=[2]).put()
    assert bodies(world)[1] == b"[2]"


def test_more_rows_are_read_than_one_lookup_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datastore takes 1,000 keys; the emulators take more."""
    sizes = list[int]()
    call = calls.call_stub

    def counted(method: Any, request: Any) -> Any:
        sizes.append(len(request.keys))
        return call(method, request)

    monkeypatch.setattr(calls, "call_stub", counted)
    names = [Name("StreamSlab", f"many:{n:04d}") for n in range(2 * calls.MAX_KEYS + 1)]
    rows.commit(client_of(world), inserts=[(names[-1], b"last")])
    with whole(world):
        found, _ = rows.read(client_of(world), names)

    assert [row.body for row in found if row is not None] == [b"last"]
    assert found[-1] is not None
    assert (max(sizes), len(sizes)) == (calls.MAX_KEYS, 3)
