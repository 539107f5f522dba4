"""What every remote call goes through: which thread waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from models.transactions import transact
from tests.world import World


class Note(ndb.Model):
    """Something to read and write."""


@pytest.fixture
def here(world: World) -> Iterator[World]:
    """A world whose calls are counted, in a context that is open; its stub is the app's own."""
    world.clients.datastore.stub = world.clients.datastore.stub.stub
    with world.clients.context(), world.plan.watched():
        yield world


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that this one starts."""
    names: list[str] = []
    here = threading.get_ident()
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if threading.get_ident() == here:
            names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return names


def note() -> None:
    if Note.get_by_id("n") is None:
        Note(id="n").put()


def test_what_a_query_skips_is_paid_for_and_keys_alone_are_not(here: World) -> None:
    """As the service bills it: by entities that are read on the way."""
    ndb.put_multi([Note(id=str(number)) for number in range(5)])

    def reads(**options: Any) -> int:
        before = here.clients.meter.cost()
        Note.query().fetch(1, **options)
        return (here.clients.meter.cost() - before).reads

    assert (reads(offset=3), reads(), reads(keys_only=True)) == (4, 1, 0)


def test_a_transaction_starts_no_thread(here: World, started: list[str]) -> None:
    """ndb asks gRPC for futures, which costs a thread a call; a transaction waits in place."""
    transact(note)

    assert here.plan.calls == ["BeginTransaction", "Lookup", "Commit"]
    assert started == []


def test_a_failed_transaction_starts_no_thread(here: World, started: list[str]) -> None:
    """Its rollback waits in place, too."""

    def fail() -> None:
        note()
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        transact(fail)

    assert here.plan.calls == ["BeginTransaction", "Lookup", "Rollback"]
    assert started == []


def test_what_the_service_says_in_a_transaction_rises_as_it_is(here: World) -> None:
    """An error that was waited for in place is the one that ndb makes of a future's."""

    def too_many() -> None:
        ndb.get_multi([ndb.Key(Note, "x" * 2_000)])

    with pytest.raises(rpc_errors.InvalidArgument):
        transact(too_many)


def test_outside_of_a_transaction_ndb_gets_its_futures(here: World, started: list[str]) -> None:
    """There it may have several calls under way at once, so gRPC runs a thread for them."""
    note()

    assert here.plan.calls == ["Lookup", "Commit"]
    assert started != []
