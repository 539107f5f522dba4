"""Transactions by versions: what a body reads and writes is committed if nobody was faster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.transactions import current_transaction, is_in_transaction, transact
from rollforward.runtime.sharing.optimistic_transaction import MAX_ATTEMPTS, transact_by_version
from tests.infra.world import World


class VersionedRow(ndb.Model):
    """A row that bodies read and write."""

    number = ndb.IntegerProperty(indexed=False, default=0)


@pytest.fixture
def world(world: World) -> Any:
    with world.clients.context(), world.plan.watched():
        ndb.delete_multi([ndb.Key(VersionedRow, name) for name in "ab"])
        world.plan.calls.clear()
        yield world


def number(name: str) -> int | None:
    row = VersionedRow.get_by_id(name)
    return row.number if row is not None else None


def add(name: str = "a") -> int:
    row = VersionedRow.get_by_id(name) or VersionedRow(id=name)
    row.number += 1
    row.put()
    return int(row.number)


def once(act: Callable[[], object]) -> Callable[[], None]:
    left = [act]

    def run() -> None:
        if left:
            left.pop()()

    return run


def elsewhere(world: World, act: Callable[[], object]) -> None:
    """Do something on another thread, and wait for it."""

    def run() -> None:
        with world.clients.context():
            act()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_transaction_is_a_read_and_a_commit(world: World) -> None:
    """No row is locked between them."""

    def body() -> bool:
        add()
        VersionedRow(id="b", number=7).put()
        return is_in_transaction()

    assert transact_by_version(world.clients, body)
    assert list(world.plan.calls) == ["Lookup", "Commit"]
    assert (number("a"), number("b")) == (1, 7)


def test_a_body_that_writes_nothing_commits_nothing(world: World) -> None:
    assert transact_by_version(world.clients, lambda: number("a")) is None
    assert list(world.plan.calls) == ["Lookup"]


def test_a_row_that_changed_between_two_reads_makes_the_body_run_again(world: World) -> None:
    """The second look does not hide what the first one has led to."""
    add()
    meanwhile = once(lambda: elsewhere(world, add))

    def body() -> None:
        first = number("a") or 0
        meanwhile()
        number("a")
        VersionedRow(id="a", number=first + 10).put()

    transact_by_version(world.clients, body)
    assert number("a") == 12


@pytest.mark.parametrize("first", [False, True], ids=["missing", "there"])
@pytest.mark.parametrize("ending", ["put", "delete"])
def test_a_row_that_has_changed_since_it_was_read_makes_the_body_run_again(
    world: World, ending: str, *, first: bool
) -> None:
    """Also one that was missing, and one that the body deletes."""
    if first:
        add()
    meanwhile = once(lambda: elsewhere(world, add))
    seen: list[int | None] = []

    def body() -> None:
        row = VersionedRow.get_by_id("a")
        seen.append(row.number if row else None)
        meanwhile()
        if ending == "put":
            VersionedRow(id="a", number=(row.number if row else 0) + 10).put()
        elif row is not None:
            row.key.delete()

    transact_by_version(world.clients, body)
    before = 1 if first else None
    if ending == "delete" and not first:  # It read nothing to delete.
        assert seen == [None]
    else:
        assert seen == [before, (before or 0) + 1]
        assert number("a") == ((before or 0) + 11 if ending == "put" else None)


def test_a_row_that_was_deleted_meanwhile_is_not_written(world: World) -> None:
    add()
    meanwhile = once(lambda: elsewhere(world, ndb.Key(VersionedRow, "a").delete))

    def body() -> bool:
        row = VersionedRow.get_by_id("a")
        meanwhile()
        if row is not None:
            row.put()
        return row is not None

    assert not transact_by_version(world.clients, body)
    assert number("a") is None


def test_a_commit_whose_reply_was_lost_runs_the_body_again_with_the_same_transaction(
    world: World,
) -> None:
    ids: list[str] = []

    def body() -> int | None:
        ids.append(current_transaction().id)
        return add() if number("a") is None else number("a")

    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    assert transact_by_version(world.clients, body) == 1
    assert number("a") == 1
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_who_always_loses_is_told(world: World) -> None:
    """Nothing of it is written."""
    attempts: list[None] = []

    def body() -> None:
        attempts.append(None)
        row = VersionedRow.get_by_id("a") or VersionedRow(id="a")
        elsewhere(world, add)
        row.number = -100
        row.put()

    with pytest.raises(rpc_errors.Aborted):
        transact_by_version(world.clients, body, attempts=2)
    assert len(attempts) == 2 < MAX_ATTEMPTS
    assert number("a") == 2


def test_an_outcome_that_was_open_is_told_before_a_race_that_was_lost(world: World) -> None:
    answers = [rpc_errors.ServiceUnavailable("lost"), rpc_errors.Aborted("race")]  # type: ignore[no-untyped-call]

    def body() -> None:
        raise answers.pop(0)

    with pytest.raises(rpc_errors.ServiceUnavailable):
        transact_by_version(world.clients, body, attempts=2)
    assert answers == []


def test_an_error_of_the_body_is_its_caller_s(world: World) -> None:
    def body() -> None:
        add()
        raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body"):
        transact_by_version(world.clients, body)
    assert number("a") is None


def test_many_writers_of_a_row_all_get_through(world: World) -> None:
    """Each has read it before the first one writes; where reads lock, too."""
    ready = threading.Barrier(6)

    def write() -> None:
        meet = once(lambda: ready.wait(60))

        def body() -> None:
            row = VersionedRow.get_by_id("a") or VersionedRow(id="a")
            meet()
            row.number += 1
            row.put()

        with world.clients.context():
            transact_by_version(world.clients, body)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(write) for _ in range(6)]:
            future.result()
    assert number("a") == 6
    assert world.plan.calls.count("BeginTransaction") == 0


def test_a_transaction_that_locks_and_one_by_versions_lose_to_each_other(world: World) -> None:
    """The rows of `transact` are safe beside it."""
    add()
    meanwhile = once(lambda: elsewhere(world, lambda: transact_by_version(world.clients, add)))

    def body() -> None:
        row = VersionedRow.get_by_id("a")
        if world.services.datastore_kind != "firestore":  # It would wait for this one.
            meanwhile()
        row.number += 1
        row.put()

    transact(body)
    meanwhile()
    assert number("a") == 3
