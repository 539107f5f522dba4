"""Threads that wait for remote calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import bodies
from rollforward.datastore.transactions import transact
from rollforward.runtime import Cost
from tests.infra.world import World

pytestmark = pytest.mark.fast


class Note(ndb.Model):
    """Something to read and write."""


@pytest.fixture
def metered(world: World) -> Iterator[World]:
    """A world whose calls are counted, in a context that is open; its stub is the app's own."""
    world.clients.datastore.stub = world.clients.datastore.stub.stub
    with world.clients.context(), world.plan.watched():
        yield world


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that this one starts."""
    names: list[str] = []
    main_thread = threading.get_ident()
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if threading.get_ident() == main_thread:
            names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return names


def note() -> None:
    if Note.get_by_id("n") is None:
        Note(id="n").put()


def spent(world: World, act: Callable[[], object]) -> dict[str, int]:
    """Return the cost of an act, without its zero fields."""
    cost_before = world.clients.meter.cost()
    act()
    cost = (world.clients.meter.cost() - cost_before).as_dict()
    return {name: count for name, count in cost.items() if count and name != "round_trips"}


def test_what_a_query_skips_is_paid_for_and_keys_alone_are_one_read(metered: World) -> None:
    """As the service bills it: by entities that are read on the way; else for the query."""
    ndb.put_multi([Note(id=str(number)) for number in range(5)])
    empty = Note.query(Note._key < ndb.Key(Note, "!"))

    assert spent(metered, lambda: Note.query().fetch(1, offset=3)) == {"reads": 4}
    assert spent(metered, lambda: Note.query().fetch(1)) == {"reads": 1}
    assert spent(metered, lambda: Note.query().fetch(1, keys_only=True)) == {"query_reads": 1}
    assert spent(metered, lambda: empty.fetch(1)) == {"query_reads": 1}


def test_a_delete_is_a_write_that_has_a_price_of_its_own(metered: World) -> None:
    """A missing entity is read, too."""
    notes = [Note(id=str(number)) for number in range(3)]

    assert spent(metered, lambda: ndb.put_multi(notes)) == {"writes": 3}
    assert spent(metered, lambda: ndb.delete_multi([note.key for note in notes[:2]])) == {
        "writes": 2,
        "deletes": 2,
    }
    assert spent(metered, lambda: ndb.get_multi([note.key for note in notes])) == {"reads": 3}


def test_a_commit_that_is_refused_writes_nothing(metered: World) -> None:
    """The row is there already: of the two commits one is paid for."""
    insert = [(bodies.Name("Note", "n"), b"{}")]

    def commit_twice() -> None:
        bodies.commit(metered.clients.datastore, puts=[], inserts=insert, deletes=[])
        with pytest.raises(rpc_errors.AlreadyExists):
            bodies.commit(metered.clients.datastore, puts=[], inserts=insert, deletes=[])

    assert spent(metered, commit_twice) == {"writes": 1}


def test_a_task_is_paid_for_by_its_size_and_each_delivery_again(metered: World) -> None:
    """A call of more than 32 KB counts as two."""
    client = metered.clients.tasks._client  # type: ignore[attr-defined]
    parent = client.queue_path("demo-tests", "us-central1", "default")

    def create(size: int) -> None:
        http = {"url": "http://app.test/tasks/none", "body": b"x" * size}
        client.create_task(parent=parent, task={"http_request": http})

    assert spent(metered, lambda: create(10)) == {"tasks": 1, "task_operations": 1}
    assert spent(metered, lambda: create(33_000)) == {"tasks": 1, "task_operations": 2}
    assert spent(metered, lambda: metered.clients.meter.delivered(33_000)) == {"task_operations": 2}
    assert spent(metered, metered.clients.tasks.ping) == {"task_operations": 1}


def test_a_stored_cost_of_another_version_can_be_read() -> None:
    """Versions that serve side by side need not count the same things."""
    assert Cost.of({"reads": 2, "writes": 1, "tasks": 0, "coins": 7}) == Cost(reads=2, writes=1)


def test_a_transaction_starts_no_thread(metered: World, started: list[str]) -> None:
    """ndb asks gRPC for futures, which costs a thread a call; a transaction waits in place."""
    transact(note)

    assert metered.plan.calls == ["BeginTransaction", "Lookup", "Commit"]
    assert started == []


def test_a_failed_transaction_starts_no_thread(metered: World, started: list[str]) -> None:
    """Its rollback waits in place, too."""

    def fail() -> None:
        note()
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        transact(fail)

    assert metered.plan.calls == ["BeginTransaction", "Lookup", "Rollback"]
    assert started == []


def test_what_the_service_says_in_a_transaction_rises_as_it_is(metered: World) -> None:
    """An error that was waited for in place is the one that ndb makes of a future's."""

    def too_many() -> None:
        ndb.get_multi([ndb.Key(Note, "x" * 2_000)])

    with pytest.raises(rpc_errors.InvalidArgument):
        transact(too_many)


def test_outside_of_a_transaction_ndb_gets_its_futures(metered: World, started: list[str]) -> None:
    """There it may make several calls at once, so gRPC runs a thread for them."""
    note()

    assert metered.plan.calls == ["Lookup", "Commit"]
    assert started != []
