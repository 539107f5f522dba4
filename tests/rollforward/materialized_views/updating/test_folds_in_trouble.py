"""Folds in trouble: rows that cannot be read, poison, lost races, and more than one fold can do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.auth.exceptions import TransportError

from rollforward.local.cloudtasks.protocol import messages
from rollforward.materialized_views.definitions import UnknownTableError
from rollforward.materialized_views.rows import BadContributionError
from rollforward.materialized_views.updates import FoldTable
from rollforward.materialized_views.updating import apply, table_fold
from rollforward.materialized_views.updating.hints import OwnTasks
from rollforward.outbox.entities import OutboxTask, outbox_key
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Numbers,
    counts,
    number,
    one_emulator,
    played,
)

pytestmark = pytest.mark.fast

TABLE = "numbers.1.1"


def stored_again(row: OutboxTask, key: Any, **changed: Any) -> None:
    """Store an outbox row under another key, with other properties."""
    row.key.delete()
    OutboxTask(key=key, **{**row.to_dict(), **changed}).put()


def row_of(name: str) -> OutboxTask:
    """Return the outbox row of an update of a row."""
    (row,) = [row for row in OutboxTask.query().fetch() if row.tag.endswith(f'"{name}"')]
    return row


def fold_now(world: World) -> int | None:
    """Deliver the fold that is due first; return its answer."""
    return world.deliver(world.engine.due()[0].task_name)


def body_of(world: World, due: Any) -> bytes:
    """Return the body of a task that is due."""
    return bytes(world.engine.get_task(due.task_name, messages.FULL).http_request.body)


def bodies_due(world: World) -> list[bytes]:
    """Return the bodies of the tasks that are due."""
    return [body_of(world, due) for due in world.engine.due()]


def fails(
    monkeypatch: pytest.MonkeyPatch, compare: Callable[[list[str]], Exception | None]
) -> list:
    """Let transactions of folds fail as a function of their rows says; return what was tried."""
    tried: list[list[str]] = []
    sound = apply.Applier.apply_many

    def apply_many(self: Any, clients: Any, table: str, rows: Any, unacked: Any) -> None:
        names = [row.row.strip('"') for row in rows]
        tried.append(names)
        error = compare(names)
        if error is not None:
            raise error
        sound(self, clients, table, rows, unacked)

    monkeypatch.setattr(apply.Applier, "apply_many", apply_many)
    return tried


@one_emulator
@pytest.mark.parametrize("key", ["a|1|2|3|4|5|6", "no parts", 7])
def test_a_row_whose_key_cannot_be_read_stops_no_other(services: Services, key: Any) -> None:
    """C1: another version may have written it; readers and gauges see it wait."""
    with played(services, [Numbers]) as (world, views):
        for name in ("a", "b", "c"):
            views.save(world.clients, number(name, 1, row=name))
        stored_again(row_of("b"), outbox_key(key))

        assert views.read(world.clients, Numbers).freshness.waiting == 3
        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"a": 1, "c": 1}


@one_emulator
@pytest.mark.parametrize("body", ["", "null", "[]"])
def test_a_row_without_a_body_stops_no_other(services: Services, body: str) -> None:
    """C1."""
    with played(services, [Numbers]) as (world, views):
        for name in ("a", "b", "c"):
            views.save(world.clients, number(name, 1, row=name))
        stored_again(row_of("b"), row_of("b").key, body=body)

        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"a": 1, "c": 1}


@one_emulator
@pytest.mark.parametrize("value", [b"null", b"5", b"{", b'{"a": 1}', b"[[]]"])
def test_what_memcached_makes_up_stops_no_fold(services: Services, value: bytes) -> None:
    """C1."""
    with played(services, [Numbers]) as (world, views):
        for name in ("own-tasks", "place", "pace"):
            world.clients.cache.set(f"views:{name}:{TABLE}", value, 60)
        views.save(world.clients, number("a", 1))

        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"all": 1}


@one_emulator
@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.PermissionDenied("no"),  # type: ignore[no-untyped-call]
        rpc_errors.FailedPrecondition("no"),  # type: ignore[no-untyped-call]
        TransportError("no metadata"),  # type: ignore[no-untyped-call]
        ConnectionResetError(),
    ],
)
def test_a_fault_of_the_store_is_no_poison(
    services: Services, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """C1: the fold is tried again, and no update gets a task of its own."""
    with played(services, [Numbers]) as (world, views):
        for n in range(4):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        with monkeypatch.context() as patch:
            tried = fails(patch, lambda rows: error)
            assert fold_now(world) in (409, 422, 503)
        own = [body for body in bodies_due(world) if b"tick_ms" not in body]
        world.settle()

        assert (len(tried), own) == (1, [])
        assert counts(world, Numbers, views) == dict.fromkeys(range(4), 1)


# Lost races


def lost() -> Exception:
    return rpc_errors.Aborted("a rival was first")  # type: ignore[no-untyped-call]


@one_emulator
def test_a_row_that_loses_its_race_stops_no_other(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the fold waits for it and is tried again; no update gets a task of its own."""
    with played(services, [Numbers]) as (world, views):
        for n in range(8):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        with monkeypatch.context() as patch:
            fails(patch, lambda rows: lost() if "0" in rows else None)
            assert fold_now(world) == 409
        assert counts(world, Numbers, views) == dict.fromkeys(range(1, 8), 1)
        assert [body for body in bodies_due(world) if b"tick_ms" not in body] == []
        world.settle()

        assert counts(world, Numbers, views) == dict.fromkeys(range(8), 1)


@one_emulator
def test_the_updates_of_a_row_that_lose_together_are_applied_apart(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: a save of one source may end each transaction that reads it."""
    with played(services, [Numbers]) as (world, views):
        for n in range(8):
            views.save(world.clients, number(f"s{n}", 1))
        sound = apply.Applier.apply_many

        def apply_many(self: Any, clients: Any, table: str, rows: Any, unacked: Any) -> None:
            if len(unacked) > 1:
                raise lost()
            sound(self, clients, table, rows, unacked)

        monkeypatch.setattr(apply.Applier, "apply_many", apply_many)
        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"all": 8}


# Poison


@one_emulator
def test_poison_in_one_row_costs_one_transaction(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: all of its updates get own tasks at once, and later folds leave them alone."""
    with played(services, [Numbers]) as (world, views):
        for n in range(30):
            views.save(world.clients, number(f"s{n}", 1, row="bad"))
        views.save(world.clients, number("good", 1, row="good"))
        tried = fails(monkeypatch, poison)
        assert fold_now(world) == 204
        assert len(tried) == 3  # Both rows together, and each alone.
        assert counts(world, Numbers, views) == {"good": 1}
        views.save(world.clients, number("good", 2, row="good"))
        rings = [due for due in world.engine.due() if b"tick_ms" in body_of(world, due)]
        assert [world.deliver(due.task_name) for due in rings] == [204]

        if services.memcached is not None:
            assert tried[3:] == [["good"]]


def poison(rows: list[str]) -> Exception | None:
    return BadContributionError("it is full") if "bad" in rows else None


@one_emulator
def test_poison_asks_for_no_further_fold(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: also where the rows with own tasks are forgotten, since nothing of them was written."""
    monkeypatch.setattr(OwnTasks, "has", lambda *args: False)
    monkeypatch.setattr(table_fold, "MAX_LISTED", 4)
    monkeypatch.setattr(table_fold, "MAX_LISTINGS", 2)
    fails(monkeypatch, lambda rows: BadContributionError("it is full"))
    with played(services, [Numbers]) as (world, views):
        for n in range(12):
            views.save(world.clients, number(f"s{n}", 1, row=n % 3))
        for _ in range(8):
            rings = [due for due in world.engine.due() if b"tick_ms" in body_of(world, due)]
            for due in rings:
                assert world.deliver(due.task_name) == 204

        assert rings == []


@one_emulator
def test_a_fold_of_another_versions_table_waits(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: as one task, and not as one for each update; after an hour the sweep has them."""
    with played(services, [Numbers]) as (world, views):
        for n in range(4):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        unknown = UnknownTableError("of another version", after_s=5)
        tried = fails(monkeypatch, lambda rows: unknown)
        with pytest.raises(UnknownTableError):
            views.fold(world.clients, FoldTable(TABLE))
        world.clock.sleep(3_700)
        views.fold(world.clients, FoldTable(TABLE))

        assert len(tried) == 2
        assert [body for body in bodies_due(world) if b"tick_ms" not in body] == []


# More than one fold can do


@one_emulator
@pytest.mark.parametrize("bound", ["listings", "time"])
def test_a_fold_goes_on_where_the_last_one_ended(
    services: Services, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """C1: so that the first rows, saved again and again, starve no other."""
    monkeypatch.setattr(table_fold, "MAX_ROWS", 1)
    if bound == "listings":
        monkeypatch.setattr(table_fold, "MAX_LISTED", 2)
        monkeypatch.setattr(table_fold, "MAX_LISTINGS", 1)
    else:
        monkeypatch.setattr(table_fold, "MAX_FOLD_S", 0)
    with played(services, [Numbers]) as (world, views):
        if services.memcached is None:
            pytest.skip("the place is kept in memcached")
        views.save(world.clients, *[number(f"s{n}", 1, row=n) for n in range(8)])
        for turn in range(10):
            again = [number(f"again{turn}-{n}", 1, row=n) for n in range(2)]
            views.save(world.clients, *again)
            views.fold(world.clients, FoldTable(TABLE))

        assert set(counts(world, Numbers, views)) == set(range(8))


@one_emulator
def test_a_fold_that_fails_is_tried_again_behind_the_row(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: a row over which the store fails again and again starves no other."""
    monkeypatch.setattr(table_fold, "MAX_ROWS", 1)
    with played(services, [Numbers]) as (world, views):
        if services.memcached is None:
            pytest.skip("the place is kept in memcached")
        for n in range(3):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        broken = rpc_errors.DeadlineExceeded("too slow")  # type: ignore[no-untyped-call]
        fails(monkeypatch, lambda rows: broken if "0" in rows else None)
        for _ in range(2):
            with contextlib.suppress(rpc_errors.DeadlineExceeded):
                views.fold(world.clients, FoldTable(TABLE))

        assert counts(world, Numbers, views) == {1: 1, 2: 1}
