"""Transactions that begin with the first read of their body, around a row read before."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit
from rollforward.datastore.transactions import is_in_transaction, transact
from rollforward.datastore.versions import insert_all, put_if_current, read_versions
from rollforward.runtime import Clients
from rollforward.runtime.sharing import lazy_transaction
from rollforward.runtime.sharing.lazy_transaction import commit_around, transact_around
from tests.infra.world import World


class LazyRow(ndb.Model):
    """The row that a transaction is around, and those that its body reads and writes."""

    number = ndb.IntegerProperty(indexed=False, default=0)


@pytest.fixture
def world(world: World) -> Any:
    with world.clients.context(), world.plan.watched():
        yield world


def inserted(world: World) -> tuple[LazyRow, int]:
    row = LazyRow(id="row")
    row.key.delete()
    [version] = insert_all(world.clients.datastore, [row])
    world.plan.calls.clear()
    return row, version


def numbers(*names: str) -> list[int | None]:
    rows = [LazyRow.get_by_id(name) for name in names]
    return [row.number if row is not None else None for row in rows]


def test_a_body_that_only_writes_is_one_round_trip(world: World) -> None:
    """Its new entities get their ids before, as in any transaction."""
    row, version = inserted(world)

    def body() -> bool:
        LazyRow(id="written", number=2).put()
        row.number = 1
        return is_in_transaction()

    is_inside, new_version = commit_around(world.clients, lambda: (row, version), body)
    assert list(world.plan.calls) == ["Commit"]
    assert is_inside
    row.number = 5
    put_if_current(world.clients.datastore, row, new_version)
    assert numbers("row", "written") == [5, 2]


def test_a_body_that_reads_begins_before_its_first_read(world: World) -> None:
    """Lookups and queries belong to the transaction, and its version can be built on."""
    LazyRow(id="counted", number=3).put()
    row, version = inserted(world)

    def body() -> None:
        counted = LazyRow.get_by_id("counted")
        counted.number += 1
        counted.put()
        assert len(LazyRow.query(LazyRow._key == counted.key).fetch(2)) == 1
        row.number = 1

    _, new_version = commit_around(world.clients, lambda: (row, version), body)
    assert list(world.plan.calls) == ["BeginTransaction", "Lookup", "RunQuery", "Commit"]
    assert numbers("row", "counted") == [1, 4]
    [stored] = read_versions(world.clients.datastore, [row.key])
    assert stored is not None
    assert stored[1] == new_version


@pytest.mark.parametrize("is_reading", [False, True])
def test_a_body_that_has_read_shares_no_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, is_reading: bool
) -> None:
    """A commit that callers share is in no transaction: what was read could change before it."""
    shared = list[Commit]()

    def apply_together(clients: Clients, commit: Commit) -> list[int]:
        shared.append(commit)
        return [result.version for result in commit.apply()]

    monkeypatch.setattr(lazy_transaction, "apply_together", apply_together)
    row, version = inserted(world)

    def body() -> None:
        if is_reading:
            LazyRow.get_by_id("other")
        row.number = 1

    commit_around(world.clients, lambda: (row, version), body)
    assert len(shared) == (0 if is_reading else 1)
    assert numbers("row") == [1]


@pytest.mark.parametrize("is_reading", [False, True])
def test_nothing_is_written_if_another_has_written_the_row(world: World, is_reading: bool) -> None:
    """The row keeps the other's value, and the body's writes are lost with it."""
    ndb.Key(LazyRow, "written").delete()
    row, version = inserted(world)
    put_if_current(world.clients.datastore, LazyRow(id="row", number=7), version)

    def body() -> None:
        if is_reading:
            assert LazyRow.get_by_id("written") is None
        LazyRow(id="written", number=2).put()
        row.number = 1

    with pytest.raises(rpc_errors.Aborted):
        commit_around(world.clients, lambda: (row, version), body)
    assert numbers("row", "written") == [7, None]


def test_an_error_of_the_body_ends_its_transaction(world: World) -> None:
    """A later one on the same rows is not held up."""
    row, version = inserted(world)

    def body() -> None:
        LazyRow.get_by_id("row")
        LazyRow(id="row", number=9).put()
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        commit_around(world.clients, lambda: (row, version), body)
    assert list(world.plan.calls) == ["BeginTransaction", "Lookup", "Rollback"]
    assert numbers("row") == [0]


def test_functions_for_the_commit_are_called_after_it(world: World) -> None:
    row, version = inserted(world)
    called: list[int | None] = []

    def body() -> None:
        row.number = 1
        ndb.get_context().call_on_commit(lambda: called.extend(numbers("row")))

    commit_around(world.clients, lambda: (row, version), body)
    assert called == [1]


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_slow_body_does_not_starve_under_writers_of_its_row(world: World) -> None:
    """After its first loss the row's writers wait, where reads lock; and none of them is lost."""
    row, _ = inserted(world)
    rows: list[LazyRow] = []
    writers: list[threading.Thread] = []

    def add_ten() -> None:
        stored = row.key.get()
        stored.number += 10
        stored.put()

    def write() -> None:
        with world.clients.context():
            transact(add_ten)

    def read() -> tuple[LazyRow, int]:
        [stored] = read_versions(world.clients.datastore, [row.key])
        assert stored is not None
        rows.append(stored[0])
        return stored

    def body() -> None:
        writers.append(threading.Thread(target=write))
        writers[-1].start()
        writers[-1].join(1.0)  # It ends within, unless it has to wait for this transaction.
        rows[-1].number += 1

    transact_around(world.clients, row.key, read, body)
    for writer in writers:
        writer.join()
    assert len(writers) == 2
    assert numbers("row") == [21]
