"""Rows of one text: read by name, in order, at a moment, and written all or none."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import bodies, lookup
from rollforward.datastore.bodies import Name
from rollforward.datastore.transactions import NoTransactionError, transact
from rollforward.streams.entities import StreamSlab
from rollforward.testing.short_answers import whole
from tests.infra.world import World

pytestmark = pytest.mark.fast

A, B, C = (Name("StreamSlab", name) for name in ("p:a", "p:b", "p:c"))


def client_of(world: World) -> ndb.Client:
    return world.clients.datastore


def stored(world: World) -> list[bytes | None]:
    rows, _ = bodies.read(client_of(world), [A, B, C])
    return [None if row is None else row.body for row in rows]


def test_rows_are_written_all_or_none(world: World) -> None:
    """A row that is not as the commit expects fails all of it."""
    client = client_of(world)
    version_a, second = bodies.commit(client, inserts=[(A, b"1"), (B, b"2")])
    [third] = bodies.commit(client, puts=[(A, b"3", version_a)], deletes=[(B, second)])
    assert stored(world) == [b"3", None, None]

    for refused in (
        {"puts": [(A, b"4", version_a)], "inserts": [(C, b"5")]},
        {"puts": [(B, b"4", second)], "inserts": [(C, b"5")]},
        {"puts": [(A, b"4", third)], "inserts": [(A, b"5")]},
        {"deletes": [(A, version_a)], "inserts": [(C, b"5")]},
    ):
        with pytest.raises(
            (rpc_errors.FailedPrecondition, rpc_errors.NotFound, rpc_errors.AlreadyExists,
             rpc_errors.InvalidArgument)
        ):  # fmt: skip
            bodies.commit(client, **refused)  # type: ignore[arg-type]
    assert stored(world) == [b"3", None, None]

    assert bodies.commit(client, deletes=[(A, None), (C, None)]) == []
    assert stored(world) == [None, None, None]


def test_rows_are_found_in_order_of_their_names(world: World) -> None:
    client = client_of(world)
    bodies.commit(client, inserts=[(C, b"3"), (A, b"1"), (B, b"2")])

    rows = bodies.scan(client, "StreamSlab", "p:a", "p:c", 10)
    assert [(row.name, row.body) for row in rows] == [("p:a", b"1"), ("p:b", b"2")]
    [versioned] = bodies.scan(client, "StreamSlab", "p:b", "p:z", 1)
    bodies.commit(client, puts=[(B, b"4", versioned.version)])  # A scan tells versions, too.
    assert bodies.first_names(client, "StreamSlab", "p:b", "p:z", 9) == ["p:b", "p:c"]
    assert bodies.first_names(client, "StreamSlab", "p:d", "p:z", 9) == []


def test_a_moment_is_seen_as_it_was_where_the_service_has_snapshots(world: World) -> None:
    client = client_of(world)
    [version] = bodies.commit(client, inserts=[(A, b"1")])
    [old_row], moment = bodies.read(client, [A])
    bodies.commit(client, puts=[(A, b"2", version)], inserts=[(B, b"3")])

    assert (moment is None) == (world.services.datastore_kind == "datastore")
    if moment is not None:
        assert bodies.read(client, [A, B], moment)[0] == [old_row, None]
        assert bodies.first_names(client, "StreamSlab", "p:b", "p:z", 9, moment) == []
    assert stored(world) == [b"2", b"3", None]


def test_ndb_reads_what_is_written_here(world: World) -> None:
    bodies.commit(client_of(world), inserts=[(A, b'{"a":[1]}')])
    with world.context():
        assert StreamSlab.get_by_id("p:a").body == {"a": [1]}
        StreamSlab(id="p:b", body=[2]).put()
    assert stored(world)[1] == b"[2]"


def test_more_rows_are_read_than_one_lookup_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datastore takes 1,000 keys; the emulators take more."""
    sizes = list[int]()
    call = lookup.call_stub

    def counted(method: Any, request: Any) -> Any:
        sizes.append(len(request.keys))
        return call(method, request)

    monkeypatch.setattr(lookup, "call_stub", counted)
    names = [Name("StreamSlab", f"many:{n:04d}") for n in range(2 * lookup.MAX_KEYS + 1)]
    bodies.commit(client_of(world), inserts=[(names[-1], b"last")])
    with whole(world):
        rows, _ = bodies.read(client_of(world), names)

    assert [row.body for row in rows if row is not None] == [b"last"]
    assert rows[-1] is not None
    assert (max(sizes), len(sizes)) == (lookup.MAX_KEYS, 3)


def test_rows_join_the_commit_of_a_transaction(world: World) -> None:
    """Its failure takes them back; without a transaction nothing is written."""
    client = client_of(world)
    bodies.commit(client, inserts=[(A, b'{"a":1}')])

    def write() -> None:
        bodies.write_in_transaction(client, [(B, b'{"b":2}')], [A])

    def fail() -> None:
        write()
        raise LookupError("the body failed")

    with world.context():
        with pytest.raises(LookupError, match="the body failed"):
            transact(fail)
        with pytest.raises(NoTransactionError):
            write()
    assert stored(world) == [b'{"a":1}', None, None]

    with world.context():
        transact(write)
        assert StreamSlab.get_by_id("p:b").body == {"b": 2}
    assert stored(world) == [None, b'{"b":2}', None]
